//! `demo`: compresses real adapters, serves a mixed batch from the compressed form and shows what was kept.

use std::path::PathBuf;

use trifuse::backends::Choice;
use trifuse::{Error, Result};

use super::Outcome;
use super::output::Output;

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A folder of adapter folders; without it, the adapters that come with the program
    #[arg(value_name = "DIR")]
    pub adapters: Option<PathBuf>,
}

/// Compresses, serves and prints.
pub fn run(_args: &Args, _backend: &Choice, _output: &Output) -> Result<Outcome> {
    Err(Error::unsupported("demo", "the engine is not in this build"))
}
