//! `eval`: how well a language model foretells texts, and how fast it is.

mod speed;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use trifuse::backend::Backend;
use trifuse::backends::{Choice, Visit};
use trifuse::llm::perplexity::{Loss, mean, windows};
use trifuse::llm::{Drawn, Files, Model};
use trifuse::read::read_file;
use trifuse::{DType, Error, Result};

use super::Outcome;
use super::interrupt::Interrupt;
use super::output::{Output, Page, Report};
use super::progress::Progress;
use super::values;
use speed::{Load, Speed};

/// The longest text, in bytes.
const MAX_TEXT_BYTES: u64 = 1 << 30;

/// How a file is cut into documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Documents {
    /// The file is one document
    Whole,
    /// Each line is one
    Lines,
    /// Each `<doc ...>` block is one, as WikiExtractor writes them
    Doc,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    /// The perplexity of texts
    Ppl,
    /// How fast prompts are read and answers written
    Speed,
    /// Both
    All,
}

/// Arguments of `eval`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model: a folder, a GGUF file, or organisation/name in the local cache of Hugging Face's libraries
    #[arg(long, value_name = "MODEL", required_unless_present = "drawn")]
    model: Option<PathBuf>,
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
    load: Load,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Evaluated<'a> {
    model: &'a Path,
    backend: &'static str,
    dtype: DType,
    documents: Documents,
    /// Tokens of a window.
    window: usize,
    ppl: Vec<Text<'a>>,
    speed: Vec<Speed>,
}

/// What a text cost.
#[derive(Debug, Serialize)]
struct Text<'a> {
    text: &'a Path,
    windows: usize,
    tokens: usize,
    /// Nats a token.
    nll: f64,
    /// The interval of 95 % of that mean.
    nll_ci95: [f64; 2],
    perplexity: f64,
    perplexity_ci95: [f64; 2],
    seconds: f64,
}

/// Reads the texts and scores each.
pub fn run(args: &Args, backend: &Choice, output: &Output) -> Result<Outcome> {
    let interrupt = Interrupt::listen()?;
    let files = args.model.as_deref().map(Files::open).transpose()?;
    backend.open(Job { args, output, interrupt, files: files.as_ref() })
}

struct Job<'a> {
    args: &'a Args,
    output: &'a Output,
    interrupt: Interrupt,
    files: Option<&'a Files>,
}

impl Visit for Job<'_> {
    type Out = Outcome;

    fn visit<B: Backend>(self, backend: B) -> Result<Outcome> {
        let Self { args, output, interrupt, files } = self;
        let dtype = args.dtype.or(backend.hints().dtype).unwrap_or(DType::F32);
        let length = args.window as usize;
        let name = args.model.as_deref().or(args.drawn.as_deref()).unwrap_or(Path::new(""));
        let mut model = match (files, &args.drawn) {
            (Some(files), _) => Model::open(Arc::new(backend), files, dtype)?,
            (None, Some(path)) => {
                let (config, weights) = Drawn::open(path)?;
                Model::new(Arc::new(backend), config, &weights, dtype)?
            }
            (None, None) => return Err(Error::invalid("eval", "--model or --drawn", "neither")),
        };
        let mut report = Evaluated { model: name, backend: B::NAME, dtype, documents: args.documents, window: length, ppl: Vec::new(), speed: Vec::new() };
        let mut stopped = false;
        let texts = if args.suite == Suite::Speed { &[][..] } else { &args.texts };
        if args.suite != Suite::Speed && texts.is_empty() {
            return Err(Error::invalid("eval", "at least one text for its perplexity, or --suite speed", "none"));
        }
        for path in texts {
            let files = files.ok_or_else(|| Error::invalid("eval", "a model whose weights are not drawn, for the perplexity of texts", "--drawn"))?;
            let mut context = model.context(length)?;
            let started = Instant::now();
            let mut cut = windows(&tokens(files, path, args.documents)?, end(files), length);
            cut.truncate(args.windows.map_or(usize::MAX, |most| most as usize));
            if cut.is_empty() {
                return Err(Error::input(path, format!("expected a text of at least {length} tokens, one window, found fewer")));
            }
            let progress = Progress::new(output, "windows", cut.len() as u64);
            let mut losses: Vec<Loss> = Vec::new();
            for window in &cut {
                stopped |= interrupt.asked();
                if stopped {
                    break;
                }
                losses.push(model.loss(&mut context, window)?);
                progress.step();
            }
            if !losses.is_empty() {
                let found = mean(&losses)?;
                report.ppl.push(Text {
                    text: path,
                    windows: losses.len(),
                    tokens: losses.iter().map(|loss| loss.tokens).sum(),
                    nll: found.nats,
                    nll_ci95: found.interval,
                    perplexity: found.nats.exp(),
                    perplexity_ci95: found.interval.map(f64::exp),
                    seconds: started.elapsed().as_secs_f64(),
                });
            }
        }
        if args.suite != Suite::Ppl && !stopped {
            report.speed = speed::measure(model, &args.load, &interrupt)?;
            stopped |= interrupt.asked();
        }
        output.report(&report)?;
        Ok(if stopped { Outcome::Interrupted } else { Outcome::Right })
    }
}

/// The token that ends a text: the one of that name where there is one, else the first that the model names.
fn end(files: &Files) -> u32 {
    files.tokenizer.id_of("<|endoftext|>").or(files.ends.first().copied()).unwrap_or(0)
}

/// The tokens of each document of a file.
fn tokens(files: &Files, path: &Path, how: Documents) -> Result<Vec<Vec<u32>>> {
    let text = String::from_utf8(read_file(path, MAX_TEXT_BYTES)?).map_err(|error| Error::input(path, format!("expected UTF-8: {error}")))?;
    let parts: Vec<&str> = match how {
        Documents::Whole => vec![text.as_str()],
        Documents::Lines => text.lines().collect(),
        Documents::Doc => text.split("</doc>").filter_map(|block| block.split_once("<doc ")?.1.split_once('>').map(|(_, body)| body)).collect(),
    };
    let parts = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| files.tokenizer.encode(part, false)).collect()
}

impl Report for Evaluated<'_> {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let rows = self.ppl.iter().map(|text| {
            let [low, high] = text.perplexity_ci95;
            let numbers = [format!("{:.4}", text.perplexity), format!("{low:.2} to {high:.2}"), format!("{:.4}", text.nll)];
            let counts = [text.windows.to_string(), text.tokens.to_string(), format!("{:.1}", text.seconds)];
            [text.text.display().to_string()].into_iter().chain(numbers).chain(counts).collect()
        });
        if !self.ppl.is_empty() {
            page.table(&["text", "perplexity", "95 %", "nats", "windows", "tokens", "seconds"], &[1, 2, 3, 4, 5, 6], rows)?;
            page.line(format_args!("{}, windows of {}, {} on {}", self.model.display(), self.window, self.dtype, self.backend))?;
        }
        if !self.speed.is_empty() {
            let rows = self.speed.iter().map(|speed| {
                let counts = [speed.batch.to_string(), format!("{} + {}", speed.prompt, speed.answer)];
                let read = [format!("{:.0}", 1e3 * speed.prefill_seconds), format!("{:.0}", speed.prefill_tokens_per_second)];
                let written = [format!("{:.2}", speed.step_ms_p50), format!("{:.2}", speed.step_ms_p95), format!("{:.0}", speed.decode_tokens_per_second)];
                counts.into_iter().chain(read).chain(written).collect()
            });
            let names = ["at once", "tokens each", "read, ms", "tokens/s", "step, ms", "95 %", "tokens/s"];
            page.table(&names, &[0, 1, 2, 3, 4, 5, 6], rows)?;
            page.line(format_args!("{}, {} on {}", self.model.display(), self.dtype, self.backend))?;
        }
        Ok(())
    }
}
