//! The choice of what a step computes: a pure function of the requests, the free pages and the resident adapters.
//!
//! There is no prefill phase and no decode phase. A request has tokens that are known and tokens that are computed, and a step hands out a
//! budget of tokens: first to running requests, which each get at least one, then to waiting ones, earliest first. A long prompt is computed in
//! parts. Every request has a rank, its [`RequestId`](super::step::RequestId): the earlier one goes first everywhere, and what is taken is taken from
//! the latest.
//!
//! ```
//! # fn main() -> trifuse::Result<()> {
//! use trifuse::llm::{cache::Digest, schedule::{Finish, Options, Plan, Request, Sampled, Scheduler}};
//!
//! let mut scheduler = Scheduler::new(Options::new(Digest::of(b"the model's files"), 64, 16, 512))?; // 64 pages of 16 tokens.
//! let request = scheduler.submit(Request::new(vec![3, 1, 4, 1, 5], 2))?;
//! let (mut plan, mut finished) = (Plan::default(), Vec::new());
//! let mut now = 0;
//! while finished.is_empty() {
//!     scheduler.plan(now, &mut plan, &mut finished)?;
//!     // A model computes plan.step here; this one always says 7.
//!     let sampled: Vec<Sampled> = plan.step.sample.iter().map(|row| Sampled { request: row.request, token: 7 }).collect();
//!     scheduler.report(plan.number, &sampled, &mut finished)?;
//!     now += 1;
//! }
//! assert_eq!((finished[0].request, finished[0].reason, finished[0].generated), (request, Finish::Length, 2));
//! # Ok(())
//! # }
//! ```

mod adapters;
mod plan;
mod queue;
mod request;
mod scheduler;

pub use plan::{Load, Plan};
pub use request::{Adapter, AdapterId, Finish, Finished, Request};
pub use scheduler::{Options, Sampled, Scheduler, Usage};
