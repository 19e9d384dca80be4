//! `bench shrink`: pictures of what shrinking a language model costs and saves.

use std::path::PathBuf;

use serde::Serialize;
use trifuse::adapters::whole::{make_folder, write_file};
use trifuse::shrink::profile::Profile;
use trifuse::{Error, Result};
use trifuse_cli::bench::hunt::Ledger;
use trifuse_cli::bench::shrunk::{Evaluated, factored};

use super::super::Outcome;
use super::super::output::{Output, Page, Report};
use super::pictures::{quality, rank};

/// Arguments of `bench shrink`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What `trifuse eval --suite all --json` wrote, for perplexity against time; may be given more than once
    #[arg(long, value_name = "FILE")]
    eval: Vec<PathBuf>,
    /// What `trifuse profile` wrote, for time by rank; a picture each
    #[arg(long, value_name = "FILE")]
    profile: Vec<PathBuf>,
    /// The ledger of `trifuse bench hunt --profile`, which has the peers' times; alone it gives a picture for each device and type
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// The folder for the pictures, as SVG
    #[arg(long, value_name = "DIR")]
    pictures: PathBuf,
}

/// What was drawn.
#[derive(Serialize)]
struct Written {
    written: Vec<PathBuf>,
}

/// Reads, draws and writes.
pub fn run(args: &Args, output: &Output) -> Result<Outcome> {
    if args.eval.is_empty() && args.profile.is_empty() && args.ledger.is_none() {
        return Err(Error::invalid("bench shrink", "--eval, --profile or --ledger", "none of them"));
    }
    let reports = args.eval.iter().map(|path| Evaluated::read(path)).collect::<Result<Vec<_>>>()?;
    let ledger = args.ledger.as_deref().map_or(Ok(Ledger::new()), Ledger::read)?;
    let mut profiles = args.profile.iter().map(|path| Profile::open(path)).collect::<Result<Vec<_>>>()?;
    if profiles.is_empty() {
        profiles = factored(ledger.lines());
        if !profiles.is_empty() {
            output.note("left out: times of ranks one after another, which --profile has");
        }
    }
    let mut pictures: Vec<(String, String)> = quality::picture(&reports)?.map(|text| ("perplexity-time.svg".to_owned(), text)).into_iter().collect();
    for profile in &profiles {
        // Several may be of one type: of two devices.
        let name = format!("time-rank-{}", profile.dtype);
        let before = pictures.iter().filter(|(known, _)| known.starts_with(&name)).count();
        let name = if before == 0 { format!("{name}.svg") } else { format!("{name}-{}.svg", before + 1) };
        pictures.extend(rank::picture(profile, ledger.lines())?.map(|text| (name, text)));
    }
    if pictures.is_empty() {
        output.note("nothing to draw: no model has both a perplexity and a time, and neither a profile nor the ledger holds a rank");
    } else if reports.is_empty() {
        output.note("left out: perplexity against time, which --eval has");
    } else if profiles.is_empty() {
        output.note("left out: time by rank, which --profile and --ledger have");
    }
    make_folder(&args.pictures)?;
    let mut written = Vec::new();
    for (name, text) in pictures {
        let path = args.pictures.join(name);
        write_file(&path, |out| out.write_all(text.as_bytes()))?;
        written.push(path);
    }
    output.report(&Written { written })?;
    Ok(Outcome::Right)
}

impl Report for Written {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        self.written.iter().try_for_each(|path| page.line(path.display()))
    }
}
