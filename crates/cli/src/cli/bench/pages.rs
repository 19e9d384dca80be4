//! `bench report`: tables and pictures of stored reports.

use std::path::{Path, PathBuf};

use serde::Serialize;
use trifuse::Result;
use trifuse::adapters::whole::{check_apart, check_file, make_folder, write_file};
use trifuse_cli::bench::markdown;
use trifuse_cli::bench::stored::{Peers, Stored};

use super::super::Outcome;
use super::super::output::{Output, Page, Report};
use super::pictures;

/// Arguments of `bench report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What `bench SUITE --json` wrote; any number of suites
    #[arg(value_name = "REPORT.json", required = true)]
    pub reports: Vec<PathBuf>,
    /// What benches/peers/run.py wrote beside it; its times are drawn too
    #[arg(long, value_name = "PEERS.json")]
    pub peers: Vec<PathBuf>,
    /// Write the tables to this file, as Markdown; to standard output where neither this nor --pictures is given
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Draw pictures into this folder, as SVG
    #[arg(long, value_name = "DIR")]
    pub pictures: Option<PathBuf>,
}

/// What was written, and the tables where they go to standard output.
#[derive(Serialize)]
struct Written {
    written: Vec<PathBuf>,
    markdown: Option<String>,
}

/// Reads the reports and writes what is asked for.
pub fn run(args: &Args, output: &Output) -> Result<Outcome> {
    if let Some(markdown) = &args.markdown {
        check_apart(markdown, args.reports.iter().chain(&args.peers))?;
    }
    let reports = args.reports.iter().map(|path| Stored::read(path)).collect::<Result<Vec<_>>>()?;
    let peers = args.peers.iter().map(|path| Peers::read(path)).collect::<Result<Vec<_>>>()?;
    let written = write_all(&reports, &peers, args.markdown.as_deref(), args.pictures.as_deref())?;
    if args.pictures.is_some() && written.len() == usize::from(args.markdown.is_some()) {
        output.note("nothing to draw: no report holds a time of an operation");
    }
    let shown = args.markdown.is_none() && args.pictures.is_none();
    output.report(&Written { written, markdown: shown.then(|| pages(&reports, &peers)) })?;
    Ok(Outcome::Right)
}

fn pages(reports: &[Stored], peers: &[Peers]) -> String {
    reports.iter().map(|report| markdown::page(report, peers)).collect::<Vec<_>>().join("\n")
}

/// Sees that tables and pictures can go where they are to go, before what goes there takes its time.
pub fn prepare(markdown: Option<&Path>, folder: Option<&Path>) -> Result<()> {
    markdown.map_or(Ok(()), check_file)?;
    folder.map_or(Ok(()), make_folder)
}

/// Writes tables and pictures where a place is given, and tells the files. Where one cannot be written, those go that were not there before.
pub fn write_all(reports: &[Stored], peers: &[Peers], markdown: Option<&Path>, folder: Option<&Path>) -> Result<Vec<PathBuf>> {
    let mut texts: Vec<(PathBuf, String)> = markdown.map(|path| (path.into(), pages(reports, peers))).into_iter().collect();
    if let Some(folder) = folder {
        make_folder(folder)?;
        texts.extend(pictures::all(reports, peers)?.into_iter().map(|(name, picture)| (folder.join(name), picture)));
    }
    let (mut written, mut new) = (Vec::new(), Vec::new());
    for (path, text) in texts {
        let is_new = path.symlink_metadata().is_err();
        if let Err(error) = write_file(&path, |out| out.write_all(text.as_bytes())) {
            // The first fault is the one to tell.
            new.iter().for_each(|path: &PathBuf| drop(std::fs::remove_file(path)));
            return Err(error);
        }
        if is_new {
            new.push(path.clone());
        }
        written.push(path);
    }
    Ok(written)
}

impl Report for Written {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        if let Some(markdown) = &self.markdown {
            page.line(markdown.trim_end())?;
        }
        self.written.iter().try_for_each(|path| page.line(path.display()))
    }
}
