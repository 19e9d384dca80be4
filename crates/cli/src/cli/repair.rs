//! `repair`: a shrunk model in, the same model with padded ranks out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};
use trifuse::adapters::bundle::Bundle;
use trifuse::llm::{Beside, Files};
use trifuse::shrink::repair::{Filling, Padded, Target, fillings};
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
    /// Let the padding carry the input bases that the adapters of this bundle share: what adapters read then comes with the projections' own products
    #[arg(long, value_name = "BUNDLE")]
    fill: Option<PathBuf>,
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
    /// Projections whose padding carries bases of adapters.
    filled: usize,
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
    let fillings: BTreeMap<String, Filling> = match &args.fill {
        None => BTreeMap::new(),
        Some(_) if !config.fills.is_empty() => {
            return Err(Error::input(&args.model, "expected factors that carry no bases yet, found some that do: give the model that was repaired"));
        }
        Some(bundle) => fillings(&config, &Bundle::open(bundle)?)?,
    };
    let least = |path: &str, rank: u64| fillings.get(path).map_or(rank, |filling| filling.fill.at + filling.fill.rows());
    let stored: BTreeMap<String, u64> = ranks.iter().map(|(path, &rank)| (path.clone(), args.to.of(least(path, rank)))).collect();
    let mut low_rank = beside.config.get(KEY).cloned().filter(Value::is_object).unwrap_or_else(|| json!({ "ranks": &ranks }));
    low_rank["stored"] = json!(stored);
    if !fillings.is_empty() {
        low_rank["ranks"] = json!(ranks);
        low_rank["fill"] = fillings.iter().map(|(path, filling)| (path.clone(), filling.fill.json())).collect::<Map<String, Value>>().into();
    }
    let source = Padded::new(files.weights.as_ref(), &stored).with_fillings(&fillings);
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
        filled: fillings.len(),
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
        if self.filled > 0 {
            page.line(format_args!("{} of them carry the input bases of the adapters", self.filled))?;
        }
        page.line(format_args!("{}: {}", self.output.display(), bytes(self.bytes)))
    }
}
