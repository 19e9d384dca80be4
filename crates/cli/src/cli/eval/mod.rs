//! `eval`: how well a language model foretells texts, and how fast it is.

mod adapted;
mod drawn;
mod launches;
mod load;
mod ppl;
mod sources;
mod speed;
mod variant;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use trifuse::backends::{AnyDevice, Choice};
use trifuse::device::{Caps, Device};
use trifuse::llm::perplexity::windows;
use trifuse::llm::{Config, Drawn, Files, Model, WeightSource};
use trifuse::{DType, Error, Result};
use trifuse_cli::bench::report::Environment;

use super::Outcome;
use super::interrupt::Interrupt;
use super::output::{Output, Page, Report};
use super::progress::Progress;
use super::start::{Start, Starting};
use super::texts::{Documents, end, tokens};
use super::values;
use adapted::Adapted;
use launches::Timed;
use load::Load;
use ppl::{Text, score};
use sources::{ModelSource, RankCounts, Source, files, hashed};
use speed::Speed;
use variant::{Kind, Variant};

/// What the fields of the report are.
const FORMAT: &str = "trifuse.llm-eval/1";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    /// The perplexity of texts
    Ppl,
    /// How fast prompts are read and answers written
    #[value(alias = "infer_sweep")]
    Speed,
    /// Both
    All,
}

/// Arguments of `eval`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model: a folder, a GGUF file, or organisation/name in the local cache of Hugging Face's libraries; may be given again, for one table
    #[arg(long, value_name = "MODEL", required_unless_present_any = ["drawn", "baseline_model"])]
    model: Vec<PathBuf>,
    /// The model whose forecasts the others' are compared with; alone it is measured itself
    #[arg(long, value_name = "MODEL", alias = "baseline-model-id", conflicts_with = "drawn")]
    baseline_model: Option<PathBuf>,
    /// What an earlier study calls the model of a run
    #[arg(long, value_enum, value_name = "KIND", hide = true)]
    variant: Option<Kind>,
    /// A config.json instead of a model: its weights are drawn, for the suite speed
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    drawn: Option<PathBuf>,
    /// Texts, each scored by itself
    #[arg(value_name = "FILE")]
    texts: Vec<PathBuf>,
    /// What is measured
    #[arg(long, value_enum, default_value_t = Suite::Ppl, value_name = "SUITE")]
    suite: Suite,
    /// How a file is cut into documents
    #[arg(long, value_enum, default_value_t = Documents::Whole, value_name = "HOW")]
    documents: Documents,
    /// Tokens of a window
    #[arg(long, default_value_t = 2048, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    window: u32,
    /// Windows of a text that are scored, from its start, at most; by default all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    windows: Option<u32>,
    /// What the model computes in; by default f16 on cuda, f32 elsewhere
    #[arg(long, value_name = "DTYPE", value_parser = values::dtype())]
    dtype: Option<DType>,
    #[command(flatten)]
    adapted: Adapted,
    #[command(flatten)]
    load: Load,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Evaluated<'a> {
    format: &'static str,
    /// The first model.
    model: &'a Path,
    baseline: Option<&'a Path>,
    backend: &'static str,
    device: Caps,
    /// Known at the end: it may take the loading of a compiler, which no time is to hold.
    environment: Option<Environment>,
    dtype: DType,
    documents: Documents,
    /// Tokens of a window.
    window: usize,
    ppl: Vec<Text<'a>>,
    /// From the start of the command to the first token of the first model whose speed was measured.
    start_seconds: Option<f64>,
    /// The parts of that time.
    start: Option<Start>,
    speed: Vec<Speed>,
    /// The steps whose launches were timed, and those, the slowest of each step first.
    steps: Vec<launches::Step>,
    launches: Vec<launches::Launch>,
    /// What was measured, by the content of its files; empty where the run was interrupted.
    models: Vec<ModelSource>,
    texts: Vec<Source>,
}

/// Reads the texts and scores each.
pub fn run(args: &Args, backend: &Choice, output: &Output) -> Result<Outcome> {
    let mut starting = Starting::now();
    let interrupt = Interrupt::listen()?;
    let alone = args.variant == Some(Kind::Baseline) || args.model.is_empty();
    let named = if alone { args.baseline_model.as_slice() } else { &args.model };
    if named.is_empty() && args.drawn.is_none() {
        return Err(Error::invalid("eval", "--model, --baseline-model or --drawn", "none of them"));
    }
    let repaired = args.variant == Some(Kind::PaluRepair);
    let variants = named.iter().map(|name| Variant::open(name, repaired)).collect::<Result<Vec<_>>>()?;
    let baseline = args.baseline_model.as_deref().filter(|_| !alone).map(|name| Variant::open(name, false)).transpose()?;
    let name = named.first().or(args.drawn.as_ref()).map_or(Path::new(""), PathBuf::as_path);
    let device = starting.open(backend)?;
    Job { args, output, starting, interrupt, name, variants, baseline }.on(device)
}

struct Job<'a> {
    args: &'a Args,
    output: &'a Output,
    starting: Starting,
    interrupt: Interrupt,
    name: &'a Path,
    variants: Vec<Variant>,
    baseline: Option<Variant>,
}

impl<'a> Job<'a> {
    /// The windows of a text.
    fn windows(&self, files: &Files, path: &Path) -> Result<Vec<Vec<u32>>> {
        let length = self.args.window as usize;
        let mut cut = windows(&tokens(files, path, self.args.documents)?, end(files), length);
        cut.truncate(self.args.windows.map_or(usize::MAX, |most| most as usize));
        if cut.is_empty() {
            return Err(Error::input(path, format!("expected a text of at least {length} tokens, one window, found fewer")));
        }
        Ok(cut)
    }

    /// The texts' scores of one model.
    fn texts(&self, variant: &Variant, model: &mut Model<AnyDevice>, mut baseline: Option<&mut Model<AnyDevice>>) -> Result<Vec<Text<'a>>> {
        let files = self.baseline.as_ref().map_or(&variant.files, |baseline| &baseline.files);
        let mut scored = Vec::new();
        for path in &self.args.texts {
            let cut = self.windows(files, path)?;
            let progress = Progress::new(self.output, "windows", cut.len() as u64);
            scored.extend(score((&variant.name, &mut *model), baseline.as_deref_mut(), (path, &cut), (&progress, &self.interrupt))?);
        }
        Ok(scored)
    }

    /// The texts' scores of one model with each of its adapters.
    fn adapted(&self, variant: &Variant, device: Arc<AnyDevice>, dtype: DType) -> Result<Vec<Text<'a>>> {
        let mut ready = self.args.adapted.ready(variant, device, dtype, self.args.window as usize, self.output)?;
        let mut scored = Vec::new();
        for path in &self.args.texts {
            scored.extend(ready.score(&variant.name, (path, &self.windows(&variant.files, path)?), self.output, &self.interrupt)?);
        }
        Ok(scored)
    }
}

impl Job<'_> {
    fn on(self, device: AnyDevice) -> Result<Outcome> {
        let (args, interrupt) = (self.args, &self.interrupt);
        let dtype = args.dtype.or(device.hints().dtype).unwrap_or(DType::F32);
        let device = Arc::new(device);
        let (ppl, speed) = (args.suite != Suite::Speed, args.suite != Suite::Ppl);
        if ppl && args.texts.is_empty() {
            return Err(Error::invalid("eval", "at least one text for its perplexity, or --suite speed", "none"));
        }
        if args.adapted.any() && args.suite != Suite::Ppl {
            return Err(Error::invalid("eval", "--suite ppl with --adapters", "another suite"));
        }
        if ppl && args.drawn.is_some() {
            return Err(Error::invalid("eval", "a model whose weights are not drawn, for the perplexity of texts", "--drawn"));
        }
        let mut report = Evaluated {
            format: FORMAT,
            model: self.name,
            baseline: args.baseline_model.as_deref(),
            backend: device.backend(),
            device: device.caps().clone(),
            environment: None,
            dtype,
            documents: args.documents,
            window: args.window as usize,
            ppl: Vec::new(),
            start_seconds: None,
            start: None,
            speed: Vec::new(),
            steps: Vec::new(),
            launches: Vec::new(),
            models: Vec::new(),
            texts: Vec::new(),
        };
        let (mut starting, mut timed, mut sources) = (self.starting, Timed::default(), Vec::new());
        if let Some(path) = &args.drawn {
            let (config, weights) = Drawn::open(path)?;
            let name = path.display().to_string();
            sources.push(source(&name, &config, &weights)?);
            let model = Model::new(Arc::clone(&device), config, &weights, dtype)?;
            report.speed = speed::measure(&name, model, &args.load, (&mut starting, &mut timed), interrupt)?;
        }
        let mut baseline = self.baseline.as_ref().filter(|_| ppl).map(|baseline| baseline.model(Arc::clone(&device), dtype)).transpose()?;
        for variant in self.variants.iter().chain(&self.baseline) {
            sources.push(source(&variant.name, &variant.config()?, variant.files.weights.as_ref())?);
        }
        for variant in &self.variants {
            if args.adapted.any() {
                report.ppl.extend(self.adapted(variant, Arc::clone(&device), dtype)?);
                if interrupt.asked() {
                    break;
                }
                continue;
            }
            let mut model = variant.model(Arc::clone(&device), dtype)?;
            if ppl {
                report.ppl.extend(self.texts(variant, &mut model, baseline.as_mut())?);
            }
            if speed && !interrupt.asked() {
                report.speed.extend(speed::measure(&variant.name, model, &args.load, (&mut starting, &mut timed), interrupt)?);
            }
            if interrupt.asked() {
                break;
            }
        }
        report.start = starting.told();
        report.start_seconds = report.start.map(|start| start.seconds);
        (report.steps, report.launches) = (timed.steps, timed.launches);
        // Files are hashed last, when no time is taken.
        if !interrupt.asked() {
            let hash = |(model, ranks, files): (String, _, Vec<PathBuf>)| Ok(ModelSource { model, files: hashed(&files)?, ranks });
            report.models = sources.into_iter().map(hash).collect::<Result<_>>()?;
            report.texts = hashed(&args.texts)?;
        }
        report.environment = Some(Environment::here(device.backend()));
        self.output.report(&report)?;
        Ok(if interrupt.asked() { Outcome::Interrupted } else { Outcome::Right })
    }
}

/// The name of a model, its ranks and its files.
fn source(name: &str, config: &Config, weights: &dyn WeightSource) -> Result<(String, Option<RankCounts>, Vec<PathBuf>)> {
    Ok((name.to_owned(), RankCounts::of(config), files(weights)?))
}

impl Report for Evaluated<'_> {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let adapted = self.ppl.iter().any(|text| text.adapter.is_some());
        let rows = self.ppl.iter().map(|text| {
            let [low, high] = text.perplexity_ci95;
            let mut row = vec![text.model.clone()];
            if adapted {
                row.push(text.adapter.clone().unwrap_or_else(|| "none".to_owned()));
            }
            row.extend([text.text.display().to_string(), format!("{:.4}", text.perplexity), format!("{low:.2} to {high:.2}")]);
            row.push(format!("{:.4}", text.nll));
            if let Some(against) = &text.against {
                let [low, high] = against.nats_more_ci95;
                row.extend([format!("{:+.4}", against.nats_more), format!("{low:+.3} to {high:+.3}")]);
                row.extend([format!("{:.4}", against.kl_mean), format!("{:.2}", against.kl_p99), format!("{:.1} %", 100.0 * against.top1)]);
            }
            row.extend([text.windows.to_string(), text.tokens.to_string(), format!("{:.1}", text.seconds)]);
            row
        });
        if !self.ppl.is_empty() {
            let mut head = vec!["model"];
            if adapted {
                head.push("adapter");
            }
            head.extend(["text", "perplexity", "95 %", "nats"]);
            if self.ppl.iter().any(|text| text.against.is_some()) {
                head.extend(["more", "95 %", "KL", "p99", "same first"]);
            }
            head.extend(["windows", "tokens", "seconds"]);
            page.table(&head, &(2 + usize::from(adapted)..head.len()).collect::<Vec<_>>(), rows)?;
            page.line(format_args!("windows of {}, {} on {}", self.window, self.dtype, self.backend))?;
        }
        if !self.speed.is_empty() {
            let rows = self.speed.iter().map(|speed| {
                let counts = [speed.model.clone(), speed.batch.to_string(), speed.adapters.to_string(), format!("{} + {}", speed.prompt, speed.answer)];
                let read = [format!("{:.0}", 1e3 * speed.prefill_seconds), format!("{:.0}", speed.prefill_tokens_per_second)];
                let written = [format!("{:.2}", speed.step_ms_p50), format!("{:.2}", speed.step_ms_p95), format!("{:.0}", speed.decode_tokens_per_second)];
                counts.into_iter().chain(read).chain(written).collect()
            });
            let names = ["model", "at once", "adapters", "tokens each", "read, ms", "tokens/s", "step, ms", "95 %", "tokens/s"];
            page.table(&names, &[1, 2, 3, 4, 5, 6, 7, 8], rows)?;
            page.line(format_args!("{} on {}", self.dtype, self.backend))?;
            if let Some(start) = &self.start {
                page.line(start.sentence("the first token"))?;
            }
        }
        launches::page(&self.steps, &self.launches, page)
    }
}
