//! Files of adapters: PEFT folders in, the bundle, PEFT folders out, and all the ways in which they can be wrong.
#![cfg(feature = "adapters")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bundle;
mod decompress;
mod mutated;
mod peft;
mod real;
mod support;
