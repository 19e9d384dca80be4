//! `kernels`: the variants of the CUDA backend, compiled ahead for the architectures that are asked for.

#[cfg(feature = "cuda")]
mod ahead;
#[cfg(feature = "cuda")]
mod report;

use std::path::PathBuf;

use trifuse::Result;

use super::Outcome;
use super::output::Output;

/// Arguments of `kernels`.
#[derive(Debug, clap::Args)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "read where there are CUDA kernels"))]
pub struct Args {
    /// Compile for these architectures into the cache, and show what each kernel uses
    #[arg(long, value_name = "sm_80,sm_90a", value_delimiter = ',')]
    arch: Vec<String>,
    /// Write them into this one file, a pack; a machine without NVRTC has it in TRIFUSE_KERNELS
    #[arg(long, short, value_name = "PACK", requires = "arch")]
    output: Option<PathBuf>,
    /// Only this operation
    #[arg(long, value_name = "NAME")]
    op: Option<String>,
    /// Only this variant of each operation
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
}

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
