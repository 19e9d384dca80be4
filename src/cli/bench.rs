//! `bench`: one suite of shapes on one backend.

use std::sync::Arc;

use serde::Serialize;
use trifuse::backend::Backend;
use trifuse::backends::{Choice, Visit};
use trifuse::bench::report::{Flag, Measured, Outcome as Came, SuiteReport};
use trifuse::bench::shape::Suite;
use trifuse::bench::timing::{Schedule, Times};
use trifuse::bench::{Options, run as run_suite};
use trifuse::session::Session;
use trifuse::{DType, Error, Result};

use super::Outcome;
use super::output::{Output, Page, Report, Tone};
use super::progress::Progress;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which suite; a processor gets smaller shapes than a GPU
    #[arg(value_enum, value_name = "SUITE")]
    pub suite: SuiteName,
    /// Only a few shapes that stand for the rest
    #[arg(long)]
    pub quick: bool,
    /// Only the shapes whose name holds this
    #[arg(long, value_name = "TEXT")]
    pub shape: Option<String>,
    /// Only this variant of the operation, rather than the backend's choice
    #[arg(long, value_name = "NAME")]
    pub variant: Option<String>,
    /// Of every operand: f16, bf16 or f32
    #[arg(long, default_value = "f16", value_name = "DTYPE")]
    pub dtype: DType,
    /// Runs before the first that is timed
    #[arg(long, default_value_t = Schedule::default().warmup, value_name = "N")]
    pub warmup: u32,
    /// Timed runs, with cold caches and again with warm ones
    #[arg(long, default_value_t = Schedule::default().iterations, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: u32,
    /// Start no further timed run of a shape after this long
    #[arg(long, default_value_t = Schedule::default().limit_seconds, value_name = "SECONDS")]
    pub limit: f64,
}

/// The suites by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SuiteName {
    /// Prefill, decode, block-sparse
    Attention,
    /// The fused MLP of Llama-2-7B, 1 to 8192 tokens
    Mlp,
    /// Matrix products: square, few rows, odd sizes
    Linear,
    /// Codebook GEMMs: 128 projections in a chain, and in one launch
    Adapters,
}

impl From<SuiteName> for Suite {
    fn from(name: SuiteName) -> Self {
        match name {
            SuiteName::Attention => Self::Attention,
            SuiteName::Mlp => Self::Mlp,
            SuiteName::Linear => Self::Linear,
            SuiteName::Adapters => Self::Adapters,
        }
    }
}

/// The result: the suite's report as it is.
#[derive(Serialize)]
struct Bench(SuiteReport);

/// Measures, and prints a row a shape.
pub fn run(args: &Args, choice: &Choice, output: &Output) -> Result<Outcome> {
    if !(args.limit > 0.0 && args.limit.is_finite()) {
        return Err(Error::invalid("--limit", "seconds above 0", args.limit));
    }
    let options = Options {
        suite: args.suite.into(),
        dtype: args.dtype,
        quick: args.quick,
        shape: args.shape.clone(),
        variant: args.variant.clone(),
        schedule: Schedule { warmup: args.warmup, iterations: args.iterations, limit_seconds: args.limit },
    };
    let report = Bench(choice.open(Work { options, output })?);
    output.report(&report)?;
    let sound = report.0.results.iter().all(|entry| entry.outcome.sound());
    Ok(if sound { Outcome::Right } else { Outcome::Wrong })
}

/// The work on one backend.
struct Work<'a> {
    options: Options,
    output: &'a Output,
}

impl Visit for Work<'_> {
    type Out = SuiteReport;

    fn visit<B: Backend>(self, backend: B) -> Result<SuiteReport> {
        let mut session = Session::new(Arc::new(backend))?;
        let mut progress = None;
        run_suite(&mut session, &self.options, &mut |name, steps| {
            let bar = match progress.take() {
                None => Progress::new(self.output, "bench", steps as u64),
                Some(bar) => {
                    Progress::step(&bar);
                    bar
                }
            };
            bar.now(name);
            progress = Some(bar);
        })
    }
}

impl Report for Bench {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let report = &self.0;
        let (device, ceilings) = (&report.device, &report.ceilings);
        page.line(format!("{} on {} ({}, {})", report.suite.name(), report.backend, device.name, device.driver))?;
        let product = match (ceilings.product_flops_per_second, &ceilings.product) {
            (Some(rate), Some(shape)) => format!(", our best product {} ({shape})", flops(rate)),
            _ => String::new(),
        };
        page.line(format!("ceilings: copy {}{product}", bytes(ceilings.copy_bytes_per_second)))?;
        let head = ["shape", "variant", "cold", "± 95 %", "warm", "FLOP/s", "bytes/s", "ceiling", "error"];
        let rows: Vec<Vec<String>> = report.results.iter().map(|entry| row(page, &entry.name, &entry.outcome)).collect();
        page.table(&head, &[2, 3, 4, 5, 6, 7, 8], rows)?;
        page.line("cold, warm: medians with other data in the caches, and with its own; rates are of the cold one, executed operations")?;
        page.line("ceiling: the least time that the ceilings allow over the time. error: the greatest, as a share of what is allowed")?;
        let flags: std::collections::BTreeSet<&str> =
            report.results.iter().flat_map(|entry| measured(&entry.outcome)).flat_map(|m| &m.flags).map(words).collect();
        flags.into_iter().try_for_each(|flag| page.line(format!("note: {flag}")))?;
        for entry in &report.results {
            if let Some(why) = entry.outcome.why() {
                page.line(format!("{}: {why}", entry.name))?;
            }
        }
        Ok(())
    }
}

fn measured(outcome: &Came) -> Option<&Measured> {
    match outcome {
        Came::Measured(measured) => Some(measured),
        _ => None,
    }
}

fn row(page: &Page, name: &str, outcome: &Came) -> Vec<String> {
    let verdict = match outcome {
        Came::Measured(measured) => return measured_row(page, name, measured),
        Came::Refused { .. } => page.tone(Tone::Bad, "REFUSED"),
        Came::Wrong { .. } => page.tone(Tone::Bad, "WRONG"),
        Came::Failed { .. } => page.tone(Tone::Bad, "FAILED"),
        Came::Unsupported { .. } => page.tone(Tone::Warning, "unsupported"),
    };
    vec![name.into(), verdict]
}

fn measured_row(page: &Page, name: &str, measured: &Measured) -> Vec<String> {
    let spread = |times: &Times| {
        let [low, high] = times.seconds.median_interval95;
        (high - low) / 2.0 / times.seconds.median
    };
    let marked = if measured.flags.iter().any(|flag| matches!(flag, Flag::LaunchBound | Flag::Noisy)) { Tone::Warning } else { Tone::Good };
    vec![
        name.into(),
        measured.variant.into(),
        page.tone(marked, seconds(measured.cold.seconds.median)),
        format!("{:.1} %", spread(&measured.cold) * 100.0),
        seconds(measured.warm.seconds.median),
        flops(measured.rates.executed_flops),
        bytes(measured.rates.bytes),
        format!("{:.0} %", measured.rates.share_of_ceiling * 100.0),
        format!("{:.2}", measured.checked.error_of_allowed),
    ]
}

fn words(flag: &Flag) -> &'static str {
    match flag {
        Flag::HostClock => "timed by the host's clock: putting work into the queue is counted",
        Flag::LaunchBound => "some times may hold a wait for the host: it took longer to put the work into the queue than the device was busy",
        Flag::Noisy => "some medians are uncertain by more than a twentieth",
        Flag::Cut => "some shapes were timed fewer times than asked for (--limit)",
        Flag::NotOptimised => "this program was built without optimisation",
    }
}

fn scaled(value: f64, unit: &str) -> String {
    let (factor, prefix) = [(1e12, "T"), (1e9, "G"), (1e6, "M")].into_iter().find(|(factor, _)| value >= *factor).unwrap_or((1e3, "k"));
    format!("{:.1} {prefix}{unit}", value / factor)
}

fn flops(rate: f64) -> String {
    scaled(rate, "FLOP/s")
}

fn bytes(rate: f64) -> String {
    scaled(rate, "B/s")
}

fn seconds(time: f64) -> String {
    match time {
        1.0.. => format!("{time:.3} s"),
        1e-3.. => format!("{:.3} ms", time * 1e3),
        _ => format!("{:.2} µs", time * 1e6),
    }
}
