//! `kernels`: the variants of the CUDA backend, compiled ahead for the architectures that are asked for.

#[cfg(feature = "cuda")]
mod ahead;
mod args;
#[cfg(feature = "cuda")]
mod report;

use trifuse::Result;

use super::Outcome;
use super::output::Output;
pub use args::Args;

/// Lists, and compiles where an architecture is named.
#[cfg(feature = "cuda")]
pub fn run(args: &Args, output: &Output) -> Result<Outcome> {
    ahead::run(args, output)
}

/// There is nothing to list.
#[cfg(not(feature = "cuda"))]
pub fn run(_: &Args, _: &Output) -> Result<Outcome> {
    let reason = "this build has no CUDA kernels; build it with --features cuda".into();
    Err(trifuse::Error::NoBackend { name: "cuda".into(), reason })
}
