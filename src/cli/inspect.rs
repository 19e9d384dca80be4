//! `inspect`: what an adapter folder, a population or a bundle holds, tensor by tensor.

use std::path::PathBuf;

use trifuse::{Error, Result};

use super::Outcome;
use super::output::Output;

/// Arguments of `inspect`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An adapter folder, a folder of adapter folders, or a bundle
    pub path: PathBuf,
}

/// Looks and prints.
pub fn run(_args: &Args, _output: &Output) -> Result<Outcome> {
    Err(Error::unsupported("inspect", "adapters are not in this build"))
}
