//! `eval`: how well a language model foretells texts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use trifuse::backend::Backend;
use trifuse::backends::{Choice, Visit};
use trifuse::llm::perplexity::{Loss, mean, windows};
use trifuse::llm::{Files, Model};
use trifuse::read::read_file;
use trifuse::{DType, Error, Result};

use super::Outcome;
use super::interrupt::Interrupt;
use super::output::{Output, Page, Report};
use super::progress::Progress;
use super::values;

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

/// Arguments of `eval`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model: a folder, a GGUF file, or organisation/name in the local cache of Hugging Face's libraries
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,
    /// Texts, each scored by itself
    #[arg(required = true, value_name = "FILE")]
    texts: Vec<PathBuf>,
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
    let files = Files::open(&args.model)?;
    backend.open(Job { args, output, interrupt, files: &files })
}

struct Job<'a> {
    args: &'a Args,
    output: &'a Output,
    interrupt: Interrupt,
    files: &'a Files,
}

impl Visit for Job<'_> {
    type Out = Outcome;

    fn visit<B: Backend>(self, backend: B) -> Result<Outcome> {
        let Self { args, output, interrupt, files } = self;
        let dtype = args.dtype.or(backend.hints().dtype).unwrap_or(DType::F32);
        let length = args.window as usize;
        let mut model = Model::open(Arc::new(backend), files, dtype)?;
        let mut context = model.context(length)?;
        let mut report = Evaluated { model: &args.model, backend: B::NAME, dtype, documents: args.documents, window: length, ppl: Vec::new() };
        let mut stopped = false;
        for path in &args.texts {
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
        page.table(&["text", "perplexity", "95 %", "nats", "windows", "tokens", "seconds"], &[1, 2, 3, 4, 5, 6], rows)?;
        page.line(format_args!("{}, windows of {}, {} on {}", self.model.display(), self.window, self.dtype, self.backend))
    }
}
