//! `demo`: compresses real adapters, serves a mixed batch from the compressed form and shows what was kept.

mod ahead;
mod inputs;
mod reference;
mod serve;
mod stage;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use trifuse::backends::{AnyDevice, Choice};
use trifuse::device::{Caps, Device, Kind};
use trifuse::session::Session;
use trifuse::{Error, Result};

use super::Outcome;
use super::kept::share;
use super::output::{Output, Page, Report, Tone};
use ahead::compile;
use serve::{Job, serve};
use stage::{Prepared, Shown};

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An adapter folder or a folder of them; without it, the adapters that come with the program
    #[arg(value_name = "DIR")]
    adapters: Option<PathBuf>,
}

/// The result.
#[derive(Debug, Serialize)]
struct Demo {
    backend: Ran,
    /// The origin of the adapters.
    adapters: String,
    stages: Vec<Shown>,
    /// Whether every served answer is right.
    right: bool,
    seconds: f64,
}

/// The device that served.
#[derive(Debug, Serialize)]
struct Ran {
    backend: &'static str,
    device: usize,
    why: String,
    name: String,
    driver: String,
    kind: Kind,
}

/// Compresses, serves and prints; ends with "a check failed" where an answer is not right.
pub fn run(args: &Args, choice: &Choice, output: &Output) -> Result<Outcome> {
    let started = Instant::now();
    let (backend, device) = choose(choice, output)?;
    let folder = tempfile::tempdir().map_err(Error::io(std::env::temp_dir(), "write into"))?;
    let Prepared { adapters, stages } = Prepared::new(args.adapters.as_deref(), folder.path())?;
    let files: Vec<PathBuf> = (0..stages.len()).map(|number| folder.path().join(format!("{number}.s2lc"))).collect();
    let jobs: Vec<Job<'_>> = stages.iter().zip(&files).map(|(stage, file)| stage.job(file)).collect();
    // What a stage is served by is compiled while others are encoded.
    let made = std::thread::scope(|scope| {
        let encoded = stages.iter().zip(&jobs).map(|(stage, job)| {
            let made = stage.encode(&job.bundle, output)?;
            let device = &device;
            scope.spawn(move || compile(device, job));
            Ok(made)
        });
        encoded.collect::<Result<Vec<_>>>()
    })?;
    let served = serve(&device, &jobs)?;
    drop(jobs);
    let shown: Vec<Shown> = stages.into_iter().zip(made).zip(served).map(|((stage, made), served)| stage.shown(made, served)).collect();
    let right = shown.iter().all(|stage| stage.served.right);
    output.report(&Demo { backend, adapters, stages: shown, right, seconds: started.elapsed().as_secs_f64() })?;
    Ok(if right { Outcome::Right } else { Outcome::Wrong })
}

/// Opens a device and has it hold something.
fn probe(backend: &'static str, device: usize) -> Result<Arc<AnyDevice>> {
    let device = Arc::new(Choice::Named(backend, device).open_any()?);
    let mut session = Session::new(Arc::clone(&device))?;
    let slice = session.upload(&[1u32, 2, 3])?;
    match session.download::<u32>(&slice)?.as_slice() {
        [1, 2, 3] => Ok(device),
        other => Err(Error::device("a copy there and back", format!("{other:?} in place of [1, 2, 3]"))),
    }
}

/// The best device that works; where nothing was asked for and the best does not work after all, the processor.
fn choose(choice: &Choice, output: &Output) -> Result<(Ran, Arc<AnyDevice>)> {
    let (backend, device, why) = choice.resolve()?;
    let ran = |backend, device, why, opened: Arc<AnyDevice>| {
        let Caps { name, driver, kind, .. } = opened.caps().clone();
        (Ran { backend, device, why, name, driver, kind }, opened)
    };
    match probe(backend, device) {
        Ok(opened) => Ok(ran(backend, device, why, opened)),
        Err(error) if *choice == Choice::Auto && backend != "cpu" => {
            output.note(format_args!("{backend}:{device} does not work, going on with cpu: {error}"));
            Ok(ran("cpu", 0, format!("the best that works ({backend}: {error})"), probe("cpu", 0)?))
        }
        Err(error) => Err(error),
    }
}

impl Report for Demo {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let Ran { backend, device, why, name, kind, .. } = &self.backend;
        page.line(format_args!("running on {backend}:{device}, {name}: {why}"))?;
        page.line(&self.adapters)?;
        for (number, stage) in self.stages.iter().enumerate() {
            let title = page.tone(Tone::Strong, format_args!("{}. {}", number + 1, stage.title));
            page.line(format_args!("\n{title}"))?;
            let cells: BTreeMap<String, String> = stage.served.by_adapter.iter().map(|(name, &error)| (name.clone(), share(error))).collect();
            stage.kept.table(page, Some(("served", &cells)))?;
            let total = stage.kept.total(page);
            page.line(format_args!("   file: {total}"))?;
            stage.served_lines(page, *kind)?;
            let verdict = page.tone(if stage.good { Tone::Good } else { Tone::Warning }, &stage.verdict);
            page.line(format_args!("   {verdict}"))?;
        }
        page.line("")?;
        page.line("output error: of ΔW on Gaussian inputs; served: the mixed batch from the compressed form against uncompressed LoRA")?;
        let verdict = if self.right { page.tone(Tone::Good, "every served answer is right") } else { page.tone(Tone::Bad, "an answer is WRONG") };
        page.line(format_args!("{verdict}; {:.1} s in all", self.seconds))
    }
}
