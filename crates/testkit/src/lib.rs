//! What proves a backend of [`trifuse`]: the float64 definition of every operation, named cases, how far a result may be
//! from the definition, a runner that compares the two, and what every device must do besides.
//!
//! A crate with a backend of its own takes it as a dev-dependency and runs every case through
//! [`conformance::run_case`] and every test of [`contract::tests`]:
//!
//! ```
//! use std::sync::Arc;
//! use trifuse::{Error, Result, backend::Backend, session::Session};
//! use trifuse_testkit::conformance::{Mode, Outcome, Subject, run_case};
//! use trifuse_testkit::{cases, contract};
//!
//! fn prove<B: Backend>(device: &Arc<B>) -> Result<()> {
//!     let mut session = Session::new(device.clone())?;
//!     for subject in cases::all().into_iter().map(Subject::from) {
//!         match run_case(&mut session, &subject, None, Mode::Direct)? {
//!             Outcome::Passed(_) => {}
//!             Outcome::Unsupported { reason } => println!("{}: left out, {reason}", subject.name()), // as the backend's `plan` says
//!             Outcome::Failed { why } => panic!("{}: {why}", subject.name()),
//!         }
//!     }
//!     for (name, test) in contract::tests() {
//!         match test(device) {
//!             Ok(()) => {}
//!             Err(Error::Unsupported { reason, .. }) => println!("{name}: cut short, {reason}"),
//!             Err(error) => panic!("{name}: {error}"),
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! All cases take minutes where the backend is not optimised: [`Case::kind`](cases::Case::kind) tells an operation's own, and
//! [`conformance::ahead`] works their answers out on all cores.
//!
//! | module | what is in it |
//! |---|---|
//! | [`oracle`] | what each operation computes, in float64 |
//! | [`cases`] | named shapes with seeded operands |
//! | [`tolerance`] | how far from float64 a correct result may be |
//! | [`casefile`] | cases with results from outside, one safetensors file each |
//! | [`conformance`] | runs a case on a backend and checks it |
//! | [`contract`] | what every [`Device`](trifuse::device::Device) must do: memory, order, capture, refusals |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

pub mod casefile;
pub mod cases;
pub mod conformance;
pub mod contract;
pub mod oracle;
pub mod tolerance;
