//! Continuous batching: requests come and go at any time, and each step computes tokens of all that run, each with its own adapter.
//!
//! An [`Engine`] is a model, its pages of K and V, and a [`Scheduler`](super::schedule::Scheduler). [`Engine::step`] plans, computes, draws, and tells
//! what was drawn; with [`EngineOptions::ahead`] it launches the next step first. With [`EngineOptions::invariant`] a request's bits do not depend on
//! what else is in its steps. A [`Service`] runs an engine on a thread of its own.

mod adapted;
mod ahead;
mod batching;
mod buckets;
mod compute;
mod draw;
mod flight;
mod gather;
mod ids;
mod masks;
mod options;
mod output;
mod prompts;
mod sampler;
mod service;
mod timed;
mod warm;

pub use self::batching::Engine;
pub use self::options::{EngineOptions, Request};
pub use self::output::Output;
pub use self::service::{Call, Outputs, Service, Sink};
pub use self::timed::TimedStep;
