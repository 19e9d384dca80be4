//! `profile`: measured times of a model's projections, as matrices and as factors of each rank.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::Serialize;
use trifuse::adapters::whole::{check_file, write_file};
use trifuse::backends::{AnyDevice, Choice};
use trifuse::device::Device;
use trifuse::llm::{Config, Drawn, Files};
use trifuse::session::Session;
use trifuse::shrink::profile::Profile;
use trifuse::{DType, Error, Result};

use super::Outcome;
use super::interrupt::Interrupt;
use super::output::{Output, Page, Report};
use super::progress::Progress;
use super::values;

/// Ranks from one to another, in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span([u64; 3]);

impl FromStr for Span {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid("ranks", "FROM..TO or FROM..TO:STEP, such as 32..2048:16", text);
        let (range, step) = text.split_once(':').unwrap_or((text, "16"));
        let (from, to) = range.split_once("..").ok_or_else(wrong)?;
        let [from, to, step] = [from, to, step].map(|number| number.parse::<u64>().ok().filter(|number| (1..=1 << 20).contains(number)));
        match (from, to, step) {
            (Some(from), Some(to), Some(step)) if from <= to => Ok(Self([from, to, step])),
            _ => Err(wrong()),
        }
    }
}

/// Arguments of `profile`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model whose shapes are measured: a folder, a GGUF file, a name in the local cache, or a config.json
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Ranks that are measured, FROM..TO:STEP
    #[arg(long, default_value = "32..2048:16", value_name = "SPAN", value_parser = |text: &str| text.parse::<Span>())]
    ranks: Span,
    /// Rows of the products
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 512], value_name = "N,N", value_parser = clap::value_parser!(u64).range(1..=65536))]
    rows: Vec<u64>,
    /// What the products are computed in; by default f16 on cuda, f32 elsewhere
    #[arg(long, value_name = "DTYPE", value_parser = values::dtype())]
    dtype: Option<DType>,
    /// The file to write
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

/// What was measured.
#[derive(Debug, Serialize)]
struct Profiled<'a> {
    output: &'a Path,
    #[serde(flatten)]
    profile: &'a Profile,
}

/// Measures and writes.
pub fn run(args: &Args, backend: &Choice, output: &Output) -> Result<Outcome> {
    let interrupt = Interrupt::listen()?;
    check_file(&args.output)?;
    let json = args.model.extension().is_some_and(|end| end == "json");
    let config = if json { Drawn::open(&args.model)?.0 } else { Files::open(&args.model)?.config };
    let done = backend.open_any().and_then(|device| Job { args, output, interrupt: &interrupt, config }.on(device));
    if done.is_err() && interrupt.asked() {
        return Ok(Outcome::interrupted(output, &args.output));
    }
    done
}

struct Job<'a> {
    args: &'a Args,
    output: &'a Output,
    interrupt: &'a Interrupt,
    config: Config,
}

impl Job<'_> {
    fn on(self, device: AnyDevice) -> Result<Outcome> {
        let Self { args, output, interrupt, config } = self;
        let dtype = args.dtype.or(device.hints().dtype).unwrap_or(DType::F32);
        let backend = device.backend();
        let mut session = Session::new(Arc::new(device))?;
        let device = format!("{backend}: {}", session.caps().name);
        let shapes: BTreeSet<[u64; 2]> = config.projections(0).into_iter().map(|(_, shape)| shape).collect();
        let shapes: Vec<[u64; 2]> = shapes.into_iter().collect();
        let Span([from, to, step]) = args.ranks;
        let ranks: Vec<u64> = (from..=to).step_by(step as usize).collect();
        let count = shapes.iter().map(|[d_out, d_in]| 1 + ranks.iter().filter(|&rank| rank <= d_out.min(d_in)).count() as u64).sum();
        let progress = Progress::new(output, "measuring", count);
        let profile = Profile::measure(&mut session, (device, dtype), &shapes, (&ranks, &args.rows), &mut || {
            progress.step();
            if interrupt.asked() { Err(Error::io(&args.output, "write")(std::io::ErrorKind::Interrupted.into())) } else { Ok(()) }
        })?;
        drop(progress);
        let text = serde_json::to_vec_pretty(&profile).map_err(|error| Error::invalid("profile", "values that JSON can hold", error))?;
        write_file(&args.output, |out| out.write_all(&text))?;
        output.report(&Profiled { output: &args.output, profile: &profile })?;
        Ok(Outcome::Right)
    }
}

impl Report for Profiled<'_> {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let rows = self.profile.shapes.iter().flat_map(|times| {
            let [d_out, d_in] = times.shape;
            let at = |rank: String, seconds: &[f64]| -> Vec<String> {
                let times = seconds.iter().map(|seconds| format!("{:.2}", 1e6 * seconds));
                [format!("{d_out} x {d_in}"), rank].into_iter().chain(times).collect()
            };
            let ranks = times.ranks.iter().map(|(rank, seconds)| at(rank.to_string(), seconds)).collect::<Vec<_>>();
            [at("whole".into(), &times.whole)].into_iter().chain(ranks)
        });
        let names: Vec<String> = self.profile.rows.iter().map(|rows| format!("{rows} rows, us")).collect();
        let head: Vec<&str> = ["projection", "rank"].into_iter().chain(names.iter().map(String::as_str)).collect();
        page.table(&head, &(1..head.len()).collect::<Vec<_>>(), rows)?;
        page.line(format_args!("{}, {}; {}", self.profile.device, self.profile.dtype, self.output.display()))
    }
}
