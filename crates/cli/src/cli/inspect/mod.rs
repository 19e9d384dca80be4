//! `inspect`: what an adapter folder, a population or a bundle holds, tensor by tensor.

mod bundle;
mod folder;

use std::path::PathBuf;

use trifuse::adapters::peft::{CONFIG_FILE, TENSOR_FILE};
use trifuse::{Error, Result};

use super::Outcome;
use super::output::Output;

/// Arguments of `inspect`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An adapter folder, a folder of adapter folders, or a bundle
    path: PathBuf,
    /// Certificate of every projection of this adapter, for a bundle
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Every key and tensor of an adapter's folder, also those that it means the same without
    #[arg(long)]
    all: bool,
}

/// Looks and prints.
pub fn run(args: &Args, output: &Output) -> Result<Outcome> {
    let path = &args.path;
    let found = std::fs::metadata(path).map_err(Error::io(path, "read"))?;
    if found.is_dir() {
        if let Some(name) = &args.adapter {
            return Err(Error::invalid("--adapter", "a bundle; of a folder, give the adapter's own folder", format!("{name:?} of {}", path.display())));
        }
        return folder::run(path, args.all, output);
    }
    if path.file_name().is_some_and(|name| name == CONFIG_FILE || name == TENSOR_FILE) {
        return Err(Error::input(path, "expected an adapter's folder or a bundle, found one file of an adapter; give its folder"));
    }
    bundle::run(path, args.adapter.as_deref(), output)
}
