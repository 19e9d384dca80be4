//! `bundle`: what a bundle holds, by name; adapters added to it, taken out and renamed. The others decode to what they did.

use std::path::{Path, PathBuf};

use serde::Serialize;
use trifuse::adapters::bundle::{Bundle, to_bytes};
use trifuse::adapters::encode::add::add_adapter;
use trifuse::adapters::encode::{EncodeOptions, Source};
use trifuse::adapters::encoded::Population;
use trifuse::adapters::peft::{adapter_files, open_all};
use trifuse::adapters::whole::{check_apart, check_file, write_file, write_new_file};
use trifuse::{Error, Result};

use super::Outcome;
use super::kept::Kept;
use super::output::{Output, Page, Report, Tone};
use super::progress::Progress;
use super::warnings::{bases, weights};

/// Arguments of `bundle`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

/// What is done with a bundle.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print the adapters' names
    List {
        /// The bundle
        #[arg(value_name = "FILE.s2lc")]
        bundle: PathBuf,
    },
    /// Encode more adapters into it, on its bases where those keep them
    Add(Add),
    /// Take adapters out, and the bases that no other has
    Remove {
        #[command(flatten)]
        files: Files,
        /// The adapters
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Give an adapter another name
    Rename {
        #[command(flatten)]
        files: Files,
        /// The adapter
        #[arg(value_name = "OLD")]
        old: String,
        /// Its name from now on
        #[arg(value_name = "NEW")]
        new: String,
    },
}

/// What is changed, and where the result goes.
#[derive(Debug, clap::Args)]
struct Files {
    /// The bundle
    #[arg(value_name = "FILE.s2lc")]
    bundle: PathBuf,
    /// Write the result here, and leave the bundle as it is
    #[arg(long, short, value_name = "FILE.s2lc")]
    output: Option<PathBuf>,
    /// Bytes of memory that the bundle may take once it is read; by default 64 times the file and 64 MiB
    #[arg(long, value_name = "N")]
    max_bytes: Option<u64>,
}

/// Arguments of `bundle add`.
#[derive(Debug, clap::Args)]
struct Add {
    #[command(flatten)]
    files: Files,
    /// Adapters, as `compress` takes them
    #[arg(required = true, value_name = "[NAME=]DIR")]
    adapters: Vec<PathBuf>,
    /// Least cosine between ΔW and what it decodes to [default: what the bundle keeps of its worst adapter, projection by projection]
    #[arg(long, allow_negative_numbers = true, value_name = "COSINE")]
    min_cosine: Option<f64>,
    /// Greatest relative error of any projection's output on Gaussian inputs
    #[arg(long, allow_negative_numbers = true, value_name = "SHARE")]
    max_output_error: Option<f64>,
}

/// The adapters' names.
#[derive(Debug, Serialize)]
struct Names<'a> {
    bundle: &'a Path,
    adapters: Vec<&'a str>,
}

/// What came of a change.
#[derive(Debug, Serialize)]
struct Changed<'a> {
    output: &'a Path,
    added: Vec<String>,
    removed: Vec<String>,
    #[serde(flatten)]
    kept: Kept,
    /// What a reader must know before using the file.
    warnings: Vec<String>,
}

/// Prints the names, or changes the bundle and shows what it holds then.
pub fn run(args: &Args, output: &Output) -> Result<Outcome> {
    match &args.command {
        Command::List { bundle } => {
            let open = Bundle::open(bundle)?;
            output.report(&Names { bundle, adapters: open.adapters().collect() })?;
        }
        Command::Add(args) => add(args, output)?,
        Command::Remove { files, names } => {
            let mut population = files.open(&[])?;
            for name in names {
                population.remove(name)?;
            }
            if population.adapters.is_empty() {
                return Err(Error::invalid("bundle remove", "an adapter that stays", "all of them named"));
            }
            files.write(&population, Vec::new(), names.clone(), output)?;
        }
        Command::Rename { files, old, new } => {
            let mut population = files.open(&[])?;
            population.rename(old, new)?;
            files.write(&population, vec![new.clone()], vec![old.clone()], output)?;
        }
    }
    Ok(Outcome::Right)
}

fn add(args: &Add, output: &Output) -> Result<()> {
    let options = EncodeOptions { min_cosine: args.min_cosine, max_output_error: args.max_output_error, ..EncodeOptions::default() };
    options.validate()?;
    let mut population = args.files.open(&adapter_files(&args.adapters))?;
    let adapters = open_all(&args.adapters)?;
    let progress = Progress::new(output, "encoding", adapters.len() as u64);
    for adapter in &adapters {
        progress.now(&adapter.name);
        add_adapter(&mut population, Source::from(adapter), &options)?;
        progress.step();
    }
    drop(progress);
    args.files.write(&population, adapters.into_iter().map(|adapter| adapter.name).collect(), Vec::new(), output)
}

impl Files {
    fn place(&self) -> &Path {
        self.output.as_deref().unwrap_or(&self.bundle)
    }

    /// The whole bundle. Refuses an output that is an input too, or that is there, before any work is done.
    fn open(&self, inputs: &[PathBuf]) -> Result<Population> {
        if let Some(place) = &self.output {
            check_file(place)?;
            check_apart(place, inputs.iter().cloned().chain([self.bundle.clone()]))?;
            if place.symlink_metadata().is_ok() {
                return Err(Error::invalid(place.display().to_string(), "a name that is not taken", "one that is taken"));
            }
        }
        let bundle = Bundle::open(&self.bundle)?;
        bundle.population_within(self.max_bytes.unwrap_or_else(|| bundle.most_memory()))
    }

    /// Writes the bundle, and reports what the file says of itself.
    fn write(&self, population: &Population, added: Vec<String>, removed: Vec<String>, output: &Output) -> Result<()> {
        let bytes = to_bytes(population)?;
        match &self.output {
            Some(place) => write_new_file(place, |out| out.write_all(&bytes)),
            None => write_file(&self.bundle, |out| out.write_all(&bytes)),
        }?;
        let kept = Kept::of(&Bundle::open(self.place())?)?;
        let mut warnings = weights(&kept);
        warnings.extend(bases(population.adapters.iter().map(|(name, adapter)| (name.as_str(), &adapter.config))));
        output.report(&Changed { output: self.place(), added, removed, kept, warnings })
    }
}

impl Report for Names<'_> {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        self.adapters.iter().try_for_each(|name| page.line(name))
    }
}

impl Report for Changed<'_> {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        self.kept.table(page, None)?;
        let total = self.kept.total(page);
        page.line(format_args!("{}: {total}", self.output.display()))?;
        for (did, names) in [("added", &self.added), ("removed", &self.removed)].into_iter().filter(|(_, names)| !names.is_empty()) {
            page.line(format_args!("{did}: {}", names.join(", ")))?;
        }
        self.warnings.iter().try_for_each(|warning| page.line(format_args!("{} {warning}", page.tone(Tone::Warning, "note:"))))
    }
}
