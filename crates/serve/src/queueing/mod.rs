//! What serving decides without a socket, a device or a thread: who is let in, in which order, in which batch, and that each gets one answer.
//!
//! Nothing here reads a clock: times are given, so that a test can turn them. `tests/properties.rs` and `tests/simulated.rs` try every part of it.

pub mod admit;
pub mod batch;
pub mod clock;
pub mod gather;
pub mod ledger;
pub mod queues;
pub mod rate;
pub mod registry;
pub mod ticket;
