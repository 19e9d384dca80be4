//! `completions`: a script that completes this command line in a shell.

use clap_complete::Shell;
use trifuse::{Error, Result};

use super::Outcome;
use super::output::Output;

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the script; with `--json` it is refused, for a shell reads no JSON.
pub fn run(args: &Args, mut command: clap::Command, output: &Output) -> Result<Outcome> {
    if output.is_json() {
        return Err(Error::invalid("completions", "no --json: the result is a script", "--json"));
    }
    // Into memory first: the generator panics where its writer fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "trifuse", &mut script);
    output.raw(&script)?;
    Ok(Outcome::Right)
}
