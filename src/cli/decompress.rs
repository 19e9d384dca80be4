//! `decompress`: a bundle in, PEFT folders out.

use std::path::PathBuf;

use trifuse::{Error, Result};

use super::Outcome;
use super::output::Output;

/// Arguments of `decompress`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The bundle
    #[arg(value_name = "FILE.s2lc")]
    pub bundle: PathBuf,
    /// The folder to write into, one folder an adapter
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
    /// Only this adapter; may be given again
    #[arg(long, value_name = "NAME")]
    pub adapter: Vec<String>,
    /// What the weights are written as
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    pub dtype: Precision,
}

/// Element types that PEFT loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Precision {
    /// Half precision
    F16,
    /// Single precision
    F32,
}

/// Decodes and writes.
pub fn run(_args: &Args, _output: &Output) -> Result<Outcome> {
    Err(Error::unsupported("decompress", "bundles are not in this build"))
}
