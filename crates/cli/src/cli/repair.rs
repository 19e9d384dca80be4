//! `repair`: a shrunk model in, the same model with padded ranks out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};
use trifuse::llm::{Beside, Files};
use trifuse::shrink::repair::{Padded, Target};
use trifuse::shrink::store::{KEY, configuration, write};
use trifuse::{DType, Error, Result};

use super::Outcome;
use super::interrupt::Interrupt;
use super::output::{Output, Page, Report, bytes};
use super::progress::Progress;
use super::values;

/// Arguments of `repair`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A folder with factored projections: of `shrink`, or with the names of SVD-LLM, ASVD or PaLU
    #[arg(value_name = "DIR")]
    model: PathBuf,
    /// The folder to write; it must not hold anything yet
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    /// What ranks are rounded up to multiples of: 8, 16, 64 or recommended
    #[arg(long, value_name = "N", value_parser = |text: &str| text.parse::<Target>())]
    to: Target,
    /// What the weights are written in
    #[arg(long, default_value = "f32", value_name = "DTYPE", value_parser = values::dtype())]
    dtype: DType,
}

/// The result.
#[derive(Debug, Serialize)]
struct Repaired<'a> {
    model: &'a Path,
    output: &'a Path,
    bytes: u64,
    /// Factored projections, those whose rank changed, and parameters of all before and after.
    factored: usize,
    changed: usize,
    parameters_before: u64,
    parameters: u64,
    stored: &'a BTreeMap<String, u64>,
}

/// Reads, pads and writes.
pub fn run(args: &Args, output: &Output) -> Result<Outcome> {
    let interrupt = Interrupt::listen()?;
    let files = Files::open(&args.model)?;
    let beside = Beside::of(&args.model)?;
    let config = files.config.with_ranks_of(files.weights.as_ref())?;
    if config.ranks.is_empty() {
        return Err(Error::input(&args.model, "expected a model with factored projections, found whole matrices alone: shrink it first"));
    }
    let ranks: BTreeMap<String, u64> = config.ranks.iter().map(|(path, rank)| (path.to_owned(), rank)).collect();
    let stored: BTreeMap<String, u64> = ranks.iter().map(|(path, &rank)| (path.clone(), args.to.of(rank))).collect();
    let mut low_rank = beside.config.get(KEY).cloned().filter(Value::is_object).unwrap_or_else(|| json!({ "ranks": &ranks }));
    low_rank["stored"] = json!(stored);
    let source = Padded::new(files.weights.as_ref(), &stored);
    let progress = Progress::new(output, "writing", files.weights.names().len() as u64);
    let mut go_on = |_: &str| {
        progress.step();
        if interrupt.asked() { Err(Error::io(&args.output, "write")(std::io::ErrorKind::Interrupted.into())) } else { Ok(()) }
    };
    let written = write(&args.output, (&configuration(&beside, Some(low_rank), args.dtype), &beside.files), &source, args.dtype, &mut go_on);
    drop(progress);
    if written.is_err() && interrupt.asked() {
        return Ok(Outcome::interrupted(output, &args.output));
    }
    let parameters =
        |of: &BTreeMap<String, u64>| -> u64 { of.iter().map(|(path, rank)| config.projection(path).map_or(0, |[d_out, d_in]| rank * (d_out + d_in))).sum() };
    output.report(&Repaired {
        model: &args.model,
        output: &args.output,
        bytes: written?,
        factored: ranks.len(),
        changed: ranks.iter().filter(|(path, rank)| stored.get(*path) != Some(rank)).count(),
        parameters_before: parameters(&ranks),
        parameters: parameters(&stored),
        stored: &stored,
    })?;
    Ok(Outcome::Right)
}

impl Report for Repaired<'_> {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let more = 100.0 * (self.parameters as f64 / self.parameters_before.max(1) as f64 - 1.0);
        page.line(format_args!("{} of {} factored projections have padded ranks: {more:.2} % more parameters in them", self.changed, self.factored))?;
        page.line(format_args!("{}: {}", self.output.display(), bytes(self.bytes)))
    }
}
