//! The command line: one file a command, one JSON object a run.
//!
//! Exit status: 0 right; 1 it ran but a check failed; 2 wrong use; 3 no such backend; 4 bad input; 130 interrupted.

mod adapters;
mod bench;
mod bundle;
mod calibrate;
mod chat;
mod completions;
mod compress;
mod decompress;
mod demo;
mod devices;
mod embed;
mod escape;
mod eval;
mod examples;
mod generate;
mod inspect;
mod interrupt;
mod kept;
mod kernels;
#[cfg(feature = "serve")]
mod load;
mod outcome;
mod output;
mod profile;
mod progress;
mod repair;
mod samples;
#[cfg(feature = "serve")]
mod serve;
mod shrink;
mod start;
mod texts;
mod values;
mod verify;
mod warnings;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use trifuse::{Error, Result};

use outcome::Outcome;
use output::{Color, Output};

const AFTER: &str = "Exit status: 0 right; 1 it ran but a check failed; 2 wrong use; 3 no such backend; 4 bad input; 130 interrupted.";

/// Compresses LoRA adapters and serves many of them in one batch, on any GPU or on the processor.
#[derive(Debug, Parser)]
#[command(name = "trifuse", version, after_help = AFTER)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Debug, clap::Args)]
struct Global {
    /// Where to run; `wgpu:1` is the second device of that backend, and `serve` takes several, as `cuda:0,cuda:1`
    #[arg(long, global = true, default_value = "auto", env = "TRIFUSE_BACKEND", value_name = "BACKEND", value_parser = values::backend(), help_heading = "Global options")]
    backend: values::Devices,
    /// Print one JSON object on standard output; everything else goes to standard error
    #[arg(long, global = true, help_heading = "Global options")]
    json: bool,
    /// Print no progress and no notes, only the result and errors
    #[arg(long, short, global = true, help_heading = "Global options")]
    quiet: bool,
    /// When to colour what is printed; NO_COLOR turns it off too
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN", help_heading = "Global options")]
    color: Color,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List every backend: its devices, or why it has none and what to install
    #[command(after_help = examples::DEVICES)]
    Devices,
    /// Compress real adapters, serve a mixed batch from the compressed form and show what was kept
    #[command(after_help = examples::DEMO)]
    Demo(demo::Args),
    /// Compress a population of PEFT adapters into one bundle
    #[command(after_help = examples::COMPRESS)]
    Compress(compress::Args),
    /// Turn a bundle back into PEFT folders
    #[command(after_help = examples::DECOMPRESS)]
    Decompress(decompress::Args),
    /// List the adapters of a bundle; add some, take some out, rename one
    #[command(after_help = examples::BUNDLE)]
    Bundle(bundle::Args),
    /// Show what an adapter folder or a bundle holds: each tensor used, ignored or refused, and why
    #[command(after_help = examples::INSPECT)]
    Inspect(inspect::Args),
    /// Turn text into embeddings with a sentence encoder, an adapter of its own on every line
    #[command(after_help = examples::EMBED)]
    Embed(embed::Args),
    /// Serve a sentence encoder or a language model, its adapters, and attention over HTTP, by OpenAI's routes and the open inference protocol
    #[cfg(feature = "serve")]
    #[command(after_help = examples::SERVE)]
    Serve(serve::Args),
    /// Ask a server at a rate of requests, time each answer from when it was due, and check it
    #[cfg(feature = "serve")]
    #[command(after_help = examples::LOAD)]
    Load(load::Args),
    /// Go on with a text by a language model
    #[command(after_help = examples::GENERATE)]
    Generate(generate::Args),
    /// Talk with a language model
    #[command(after_help = examples::CHAT)]
    Chat(chat::Args),
    /// Measure how well a language model foretells texts: perplexity, with its interval
    #[command(after_help = examples::EVAL)]
    Eval(eval::Args),
    /// Shrink a language model: projections become two factors each, whose ranks spend a budget
    #[command(after_help = examples::SHRINK)]
    Shrink(shrink::Args),
    /// Measure the times of a model's projections at each rank, which a budget of time is spent by
    #[command(after_help = examples::PROFILE)]
    Profile(profile::Args),
    /// Store the factors of a shrunk model with ranks that other engines are fast at; the model stays what it is
    #[command(after_help = examples::REPAIR)]
    Repair(repair::Args),
    /// Check every operation on every backend against float64
    #[command(after_help = examples::VERIFY)]
    Verify(verify::Args),
    /// Measure a suite of shapes: answers checked first, times by the device's clock, rates against measured ceilings
    #[command(after_help = examples::BENCH)]
    Bench(Box<bench::Args>),
    /// List the CUDA kernels, compile them ahead and show what each uses
    #[command(after_help = examples::KERNELS)]
    Kernels(kernels::Args),
    /// Print a completion script for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions(completions::Args),
}

impl Command {
    /// The command's name, as in JSON.
    fn name(&self) -> &'static str {
        match self {
            Self::Devices => "devices",
            Self::Demo(_) => "demo",
            Self::Compress(_) => "compress",
            Self::Decompress(_) => "decompress",
            Self::Bundle(_) => "bundle",
            Self::Inspect(_) => "inspect",
            Self::Embed(_) => "embed",
            #[cfg(feature = "serve")]
            Self::Serve(_) => "serve",
            #[cfg(feature = "serve")]
            Self::Load(_) => "load",
            Self::Generate(_) => "generate",
            Self::Chat(_) => "chat",
            Self::Eval(_) => "eval",
            Self::Shrink(_) => "shrink",
            Self::Profile(_) => "profile",
            Self::Repair(_) => "repair",
            Self::Verify(_) => "verify",
            Self::Bench(_) => "bench",
            Self::Kernels(_) => "kernels",
            Self::Completions(_) => "completions",
        }
    }
}

/// Parses the command line, does what it says and gives the exit status.
pub fn main() -> ExitCode {
    let Cli { global, command } = match parse() {
        Ok(cli) => cli,
        Err(error) => return told(&error),
    };
    let output = Output::new(command.name(), global.json, global.quiet, global.color);
    match check_names(global.json).and_then(|()| run(command, &global, &output)) {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            output.error(&error);
            ExitCode::from(error.exit_status())
        }
    }
}

/// Refuses names that JSON cannot hold before anything is done: afterwards what was done could not be told.
fn check_names(json: bool) -> Result<()> {
    let odd = std::env::args_os().find(|argument| json && argument.to_str().is_none());
    odd.map_or(Ok(()), |odd| Err(Error::invalid("--json", "arguments in UTF-8, as JSON holds no other", format!("{odd:?}"))))
}

/// Prints help, or what is wrong with the command line; the status says which, and whether it could be printed.
fn told(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(fault) if !error.use_stderr() && fault.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::from(4),
        _ => ExitCode::from(error.exit_code() as u8),
    }
}

fn parse() -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&Cli::command().try_get_matches()?)
}

fn run(command: Command, global: &Global, output: &Output) -> Result<Outcome> {
    match command {
        Command::Devices => devices::run(global.backend.only()?, output),
        Command::Demo(args) => demo::run(&args, global.backend.only()?, output),
        Command::Compress(args) => compress::run(&args, global.backend.only()?, output),
        Command::Decompress(args) => decompress::run(&args, output),
        Command::Bundle(args) => bundle::run(&args, output),
        Command::Inspect(args) => inspect::run(&args, output),
        Command::Embed(args) => embed::run(&args, global.backend.only()?, output),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(&args, &global.backend, output),
        #[cfg(feature = "serve")]
        Command::Load(args) => load::run(&args, output),
        Command::Generate(args) => generate::run(&args, global.backend.only()?, output),
        Command::Chat(args) => chat::run(&args, global.backend.only()?, output),
        Command::Eval(args) => eval::run(&args, global.backend.only()?, output),
        Command::Shrink(args) => shrink::run(&args, global.backend.only()?, output),
        Command::Profile(args) => profile::run(&args, global.backend.only()?, output),
        Command::Repair(args) => repair::run(&args, output),
        Command::Verify(args) => verify::run(&args, global.backend.only()?, output),
        Command::Bench(args) => bench::run(&args, global.backend.only()?, output),
        Command::Kernels(args) => kernels::run(&args, output),
        Command::Completions(args) => completions::run(&args, Cli::command(), output),
    }
}
