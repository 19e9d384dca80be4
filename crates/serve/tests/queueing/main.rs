//! The part of the server that decides, without a socket, a device or a thread: by properties, and by a simulation of a million requests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod batches;
mod fair;
mod flood;
mod names;
mod simulated;
mod tickets;
