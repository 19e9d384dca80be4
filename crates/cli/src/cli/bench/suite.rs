//! `bench SUITE`: measures, prints a row a shape, and writes pages and pictures where they are asked for.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use trifuse::backend::Backend;
use trifuse::backends::{Choice, Visit};
use trifuse::ops::layer::{Model, Style};
use trifuse::session::Session;
use trifuse::{DType, Error, Result};
use trifuse_cli::bench::align::{Axis, Sweep};
use trifuse_cli::bench::layer::Choice as LayerChoice;
use trifuse_cli::bench::markdown::{heading, notes, table};
use trifuse_cli::bench::models::known;
use trifuse_cli::bench::own;
use trifuse_cli::bench::regret::Options as RegretOptions;
use trifuse_cli::bench::report::SuiteReport;
use trifuse_cli::bench::shape::Suite;
use trifuse_cli::bench::stored::{Entry, Stored};
use trifuse_cli::bench::timing::Schedule;
use trifuse_cli::bench::{Options, run as run_suite};

use super::super::Outcome;
use super::super::interrupt::Interrupt;
use super::super::output::{Output, Page, Report, Tone};
use super::super::progress::Progress;
use super::super::values;
use super::measured::measured;
use super::pages::{prepare, write_all};
use super::{list, regret};

/// What asks for other shapes, variants or times than a race of shapes has.
const NOT_WITH_REGRET: [&str; 16] =
    ["list", "quick", "shape", "variant", "warmup", "iterations", "adapters", "markdown", "pictures", "axis", "from", "to", "model", "style", "seq", "batch"];

/// The heading of options that not every suite has.
const SINGLE: &str = "Options of single suites";

/// Arguments of `bench SUITE`.
#[derive(Debug, clap::Args)]
#[group(id = "suite_options")]
pub struct Args {
    /// Which suite; a processor gets smaller shapes than a GPU
    #[arg(value_name = "SUITE", required = true, value_parser = one_of(&Suite::ALL, Suite::name, about_suite))]
    pub suite: Option<Suite>,
    /// Only a few shapes that stand for the rest
    #[arg(long)]
    pub quick: bool,
    /// Only the shapes whose name holds this
    #[arg(long, value_name = "TEXT")]
    pub shape: Option<String>,
    /// Only this variant of the operation, or this one's configuration, rather than the backend's choice
    #[arg(long, value_name = "NAME[:CONFIG]")]
    pub variant: Option<String>,
    /// Race random shapes of the operation of `linear`, `mlp`, `attention`, `sparse` or `adapters` instead, after those of --sizes: how much slower the
    /// choice is than the fastest configuration of any variant
    #[arg(long, value_name = "SHAPES", conflicts_with_all = NOT_WITH_REGRET)]
    pub regret: Option<u64>,
    /// What the random shapes of --regret are drawn from
    #[arg(long, default_value_t = 0, value_name = "N", requires = "regret")]
    pub seed: u64,
    /// Print the names of the shapes, and measure none
    #[arg(long)]
    pub list: bool,
    /// Element type of every operand
    #[arg(long, default_value = "f16", value_name = "DTYPE", value_parser = values::dtype())]
    pub dtype: DType,
    /// Runs before the first that is timed [default: 10; of forward-pass 5]
    #[arg(long, value_name = "N")]
    pub warmup: Option<u32>,
    /// Timed runs, with cold caches and again with warm ones [default: 50; of sparse and forward-pass 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: Option<u32>,
    /// Start no further timed run of a shape after this long
    #[arg(long, allow_negative_numbers = true, default_value_t = Schedule::default().limit_seconds, value_name = "SECONDS")]
    pub limit: f64,
    /// Adapters that `forward-pass` registers, rather than 2000 and 20000 (on a processor 200 and 2000)
    #[arg(long, value_name = "N", help_heading = SINGLE, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub adapters: Option<u32>,
    /// Write the table to this file, as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Draw pictures into this folder, as SVG
    #[arg(long, value_name = "DIR")]
    pub pictures: Option<PathBuf>,
    /// What `align` sweeps, and nothing else; may be given more than once
    #[arg(long, value_name = "AXIS", help_heading = SINGLE, value_parser = one_of(&Axis::ALL, Axis::name, about_axis))]
    pub axis: Vec<Axis>,
    /// The first size that `align` sweeps on its --axis
    #[arg(long, value_name = "SIZE", requires = "axis", help_heading = SINGLE)]
    pub from: Option<u64>,
    /// The last size
    #[arg(long, value_name = "SIZE", requires = "axis", help_heading = SINGLE)]
    pub to: Option<u64>,
    /// Elements from one size to the next; the aligned neighbour of each is measured too
    #[arg(long, default_value_t = 1, value_name = "SIZES", help_heading = SINGLE)]
    pub step: u64,
    /// Sizes for `linear`, `mlp` and `attention`, in place of their lists: rows, outputs and K of a product; tokens, model and intermediate of an
    /// MLP; sequences, heads, tokens and elements of a head of attention, as 1x32x2048x128, 1x32/8x2048x128 where K and V have 8 heads, or
    /// 4x32/8x1:4096x128, one query over 4096 keys; may be given more than once
    #[arg(long, value_name = "16x4096x11008", help_heading = SINGLE, conflicts_with_all = ["quick", "model", "seq", "batch"])]
    pub sizes: Vec<own::Sizes>,
    /// SwiGLU without biases for `mlp`, as Llama has it, rather than GELU with them
    #[arg(long, help_heading = SINGLE)]
    pub gated: bool,
    #[command(flatten)]
    pub layers: Layers,
}

/// What `layer` measures, and whose sizes `attention`, `mlp` and `projections` take.
#[derive(Debug, clap::Args)]
pub struct Layers {
    /// Whose layer, of `layer`, `attention`, `mlp` and `projections`; may be given more than once [default: all; of a processor a small one]
    #[arg(long, value_name = "MODEL", value_parser = values::model(), help_heading = SINGLE)]
    pub model: Vec<Model>,
    /// How that `layer` is built; may be given more than once [default: both]
    #[arg(long, value_name = "STYLE", help_heading = SINGLE, value_parser = one_of(&Style::ALL, Style::name, about_style))]
    pub style: Vec<Style>,
    /// Tokens of a sequence, or rows of `projections`; may be given more than once [default: 512, 1024, 2048, 4096; rows 1 to 8192]
    #[arg(long, value_name = "TOKENS", help_heading = SINGLE)]
    pub seq: Vec<u64>,
    /// Sequences [default: 1]
    #[arg(long, value_name = "SEQUENCES", help_heading = SINGLE)]
    pub batch: Option<u64>,
    /// Whether a token sees no later one, of `layer` and `attention` [default: in the style llama]
    #[arg(long, value_name = "BOOL", help_heading = SINGLE, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub causal: Option<bool>,
}

fn about_suite(suite: Suite) -> &'static str {
    match suite {
        Suite::Attention => "Prefill, decode, block-sparse",
        Suite::Mlp => "The fused MLP of Llama-2-7B, 1 to 8192 tokens",
        Suite::Layer => "A transformer layer as one graph, and its operations one by one: Llama-2-7B, 13B and 70B",
        Suite::Linear => "Matrix products: square, few rows, odd sizes",
        Suite::Projections => "The products of Llama-2's layers, 7B, 13B and 70B, from 1 row to 8192",
        Suite::Adapters => "Codebook GEMMs: 128 projections in a chain, several on one input, and in one launch",
        Suite::Prefix => "Attention over a prefix that sequences share: its keys and values in factors, and as plain tensors",
        Suite::Sparse => "Block-sparse attention of 204 to 122,305 blocks, 100 runs each",
        Suite::ForwardPass => "The adapters of 32 layers of four projections, a hundred resident: captured, launch by launch, held by the host",
        Suite::Align => "Products, products of one row and attention at sizes that rise one by one",
        Suite::Published => "Sizes that published suites measured and that no other list has: wide heads, products near 8192, a short K",
        Suite::Micro => "Copies, large products, launches and nodes of a graph",
    }
}

fn about_axis(axis: Axis) -> &'static str {
    match axis {
        Axis::M => "Rows of x",
        Axis::N => "Columns of y",
        Axis::K => "Columns of x",
        Axis::KPadded => "Columns of x where weights are packed at load",
        Axis::GemvN => "Columns of y where x has one row",
        Axis::GemvK => "Columns of x where x has one row",
        Axis::GemvKPadded => "The same where weights are packed at load",
        Axis::HeadDim => "Elements of a head",
    }
}

fn about_style(style: Style) -> &'static str {
    match style {
        Style::Reference => "LayerNorm, GELU, biases",
        Style::Llama => "RMSNorm, rotary positions, SwiGLU",
    }
}

/// Reads one of `all` by its name; the help lists them.
fn one_of<T: Copy + Send + Sync + 'static>(all: &'static [T], name: fn(T) -> &'static str, about: fn(T) -> &'static str) -> impl TypedValueParser<Value = T> {
    let values = all.iter().map(|&value| PossibleValue::new(name(value)).help(about(value)));
    PossibleValuesParser::new(values).try_map(move |text| all.iter().copied().find(|&value| name(value) == text).ok_or("it is not in the list"))
}

/// The result: the suite's report as it is, and as it is read again.
#[derive(Serialize)]
struct Bench {
    #[serde(flatten)]
    report: SuiteReport,
    #[serde(skip)]
    stored: Stored,
}

/// Measures, and prints a row a shape.
pub fn run(args: &Args, choice: &Choice, output: &Output) -> Result<Outcome> {
    if !(args.limit > 0.0 && args.limit.is_finite()) {
        return Err(Error::invalid("--limit", "seconds above 0", args.limit));
    }
    let suite: Suite = args.suite.ok_or_else(|| Error::invalid("SUITE", "one", "none"))?;
    let sweep = Sweep { axes: args.axis.clone(), from: args.from, to: args.to, step: args.step };
    if suite != Suite::Align && sweep != Sweep::default() {
        return Err(Error::invalid("--axis, --from, --to, --step", "the suite align", suite.name()));
    }
    if suite != Suite::ForwardPass && args.adapters.is_some() {
        return Err(Error::invalid("--adapters", "the suite forward-pass", suite.name()));
    }
    let Layers { model, style, seq, batch, causal } = &args.layers;
    // Of sizes of one's own it is an option of theirs, and else of a model's.
    let own_sizes = suite == Suite::Attention && !args.sizes.is_empty();
    let own = own::Choice { sizes: args.sizes.clone(), gated: args.gated, causal: own_sizes && *causal == Some(true) };
    if let Some(count) = args.regret {
        return regret::run(RegretOptions { suite, dtype: args.dtype, own, count, seed: args.seed }, choice, output);
    }
    let causal = causal.filter(|_| !own_sizes);
    let layers = LayerChoice { models: model.clone(), styles: style.clone(), tokens: seq.clone(), batch: *batch, causal };
    if suite != Suite::Layer && !known(suite) && layers != LayerChoice::default() {
        return Err(Error::invalid("--model, --style, --seq, --batch, --causal", "the suites attention, mlp, layer and projections", suite.name()));
    }
    let usual = suite.schedule();
    let options = Options {
        suite,
        dtype: args.dtype,
        quick: args.quick,
        shape: args.shape.clone(),
        variant: args.variant.clone(),
        schedule: Schedule { warmup: args.warmup.unwrap_or(usual.warmup), iterations: args.iterations.unwrap_or(usual.iterations), limit_seconds: args.limit },
        sweep,
        adapters: args.adapters,
        layers,
        own,
    };
    if args.list {
        return list::run(&options, choice, output);
    }
    prepare(args.markdown.as_deref(), args.pictures.as_deref())?;
    let interrupt = Interrupt::listen()?;
    let report = measured(choice, Work { options, output, interrupt: &interrupt })?;
    let report = Bench { stored: Stored::of(&report)?, report };
    output.report(&report)?;
    for path in write_all(std::slice::from_ref(&report.stored), &[], args.markdown.as_deref(), args.pictures.as_deref())? {
        output.note(format!("written: {}", path.display()));
    }
    let sound = report.report.results.iter().all(|entry| entry.outcome.sound());
    Ok(match (report.report.complete, sound) {
        (false, _) => Outcome::Interrupted,
        (true, true) => Outcome::Right,
        (true, false) => Outcome::Wrong,
    })
}

/// The work on one backend.
struct Work<'a> {
    options: Options,
    output: &'a Output,
    interrupt: &'a Interrupt,
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
            if self.interrupt.asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }
}

/// Columns that do not say themselves what they are.
const MEANINGS: [(&str, &str); 10] = [
    ("cold", "cold, warm: medians with other data in the caches, and with its own; all else is of the cold ones"),
    ("p50", "p50 to p99: with other data in the caches"),
    ("± 95 %", "± 95 %: half the interval that holds the median with 95 %, as a share of it"),
    ("parts, cold", "parts: its launches together, each timed by itself"),
    ("a projection", "a projection: p50 over the number of launches. device: what adapters take there; f16 LoRA: as many uncompressed"),
    ("executed", "executed: operations of blocks that are computed"),
    ("useful", "useful: those that the result depends on. dense-equivalent: with no mask and no sparsity, the rate of no device"),
    ("over aligned", "over aligned: the time over that of the neighbour, the next multiple of 8"),
    ("ceiling", "ceiling: the least time that the ceilings allow over the time"),
    ("error", "error: the greatest, as a share of what is allowed"),
];

impl Report for Bench {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let report = &self.stored;
        page.line(page.tone(Tone::Strong, format!("{} on {}", report.suite, report.backend)))?;
        page.line(heading(report))?;
        let (head, rows) = table(report);
        if !rows.is_empty() {
            let rows: Vec<Vec<String>> = rows.into_iter().zip(&report.results).map(|(row, entry)| coloured(page, row, entry)).collect();
            page.table(&head, &(2..head.len()).collect::<Vec<_>>(), rows)?;
            for (_, meaning) in MEANINGS.iter().filter(|(column, _)| head.contains(column)) {
                page.line(meaning)?;
            }
        }
        notes(report).into_iter().try_for_each(|note| page.line(format!("note: {note}")))
    }
}

/// A row with its verdict, or its first time, in the colour of its meaning.
fn coloured(page: &Page, mut row: Vec<String>, entry: &Entry) -> Vec<String> {
    let (column, tone) = match &entry.measured {
        Some(measured) if measured.flags.iter().any(|flag| flag == "launch_bound" || flag == "noisy") => (2, Tone::Warning),
        Some(_) => (2, Tone::Good),
        None if entry.status == "unsupported" => (1, Tone::Warning),
        None => (1, Tone::Bad),
    };
    if let Some(cell) = row.get_mut(column) {
        *cell = page.tone(tone, &cell);
    }
    row
}
