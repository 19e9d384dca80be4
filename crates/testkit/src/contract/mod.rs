//! What every device must do, as named tests of a backend: its memory, the order of its queue, capture, clocks, threads,
//! and what it must refuse.
//!
//! A test panics where an answer is wrong, as any test does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod append;
mod beside;
mod capture;
mod chain;
mod heads;
mod memory;
mod mix;
mod numbers;
mod refusals;
mod rows;
mod steps;
mod stress;
mod strides;
mod threads;
mod time;
mod work;

use std::sync::Arc;

use trifuse::Result;
use trifuse::backend::Backend;

/// A test: panics, or gives an error, where the device does not do what it must.
///
/// [`Unsupported`](trifuse::Error::Unsupported) says that the device leaves something out; the rest of the test did not run.
pub type Test<B> = fn(&Arc<B>) -> Result<()>;

/// Every test, with its name. Run them one by one: one takes all the memory there is.
pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    [
        memory::tests::<B>(),
        append::tests(),
        beside::tests(),
        capture::tests(),
        chain::tests(),
        heads::tests(),
        mix::tests(),
        numbers::tests(),
        refusals::tests(),
        rows::tests(),
        steps::tests(),
        stress::tests(),
        strides::tests(),
        threads::tests(),
        time::tests(),
    ]
    .concat()
}
