//! `bench`: one suite of shapes on one backend, and what is made of its reports.

mod compare;
mod hunt;
mod list;
mod measured;
mod pages;
pub(super) mod pictures;
#[cfg(feature = "serve")]
mod queries;
mod regret;
mod shrink;
mod suite;

use trifuse::Result;
use trifuse::backends::Choice;

use super::Outcome;
use super::output::Output;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(flatten)]
    suite: suite::Args,
    #[command(subcommand)]
    command: Option<Command>,
}

/// What is made of reports.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Hold a second report against a first: which shapes became slower, and whether that can be chance
    Compare(compare::Args),
    /// Look for shapes on which ours is slower than another, or than its cost foretells, until a budget of time is spent
    Hunt(hunt::Args),
    /// Put queries of attention into the line of a server's operations, without sockets
    #[cfg(feature = "serve")]
    Queries(queries::Args),
    /// Draw what shrinking a language model costs and saves: perplexity against time, and time by rank
    Shrink(shrink::Args),
    /// Make tables and pictures of reports
    Report(pages::Args),
}

/// Measures, or reads what was measured.
pub fn run(args: &Args, choice: &Choice, output: &Output) -> Result<Outcome> {
    match &args.command {
        None => suite::run(&args.suite, choice, output),
        Some(Command::Compare(args)) => compare::run(args, output),
        Some(Command::Hunt(args)) => hunt::run(args, choice, output),
        #[cfg(feature = "serve")]
        Some(Command::Queries(args)) => queries::run(args, choice, output),
        Some(Command::Shrink(args)) => shrink::run(args, output),
        Some(Command::Report(args)) => pages::run(args, output),
    }
}
