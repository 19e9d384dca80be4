//! `verify`: the six tests of the method and the table of every case on every backend; or case files from outside.

use std::path::PathBuf;

use trifuse::backends::Choice;
use trifuse::{Error, Result};

use super::Outcome;
use super::output::Output;

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run the case files of this folder instead, on the chosen backend
    #[arg(long, value_name = "DIR")]
    pub vectors: Option<PathBuf>,
}

/// Runs, compares and prints a row a case.
pub fn run(_args: &Args, _backend: &Choice, _output: &Output) -> Result<Outcome> {
    Err(Error::unsupported("verify", "the cases are not in this build"))
}
