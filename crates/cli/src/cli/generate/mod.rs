//! `generate`: a prompt in, the text that follows out as it comes.

mod speak;

use std::collections::BTreeMap;
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use trifuse::backends::{AnyDevice, Choice};
use trifuse::device::Device;
use trifuse::llm::engine::{Engine, EngineOptions};
use trifuse::llm::sample::SamplingParams;
use trifuse::llm::{Files, Model, Structure, Structures};
use trifuse::read::read_file;
use trifuse::{DType, Error, Result};

use super::Outcome;
use super::adapters::Found;
use super::escape::escaped;
use super::interrupt::Interrupt;
use super::output::{Output, Page, Report};
use super::start::Starting;
use super::values;
use speak::How;
pub use speak::{Answer, Finish, Speaker};

/// The longest prompt, in bytes.
const MAX_PROMPT_BYTES: u64 = 16 << 20;

/// The longest JSON Schema, in bytes.
const MAX_SCHEMA_BYTES: u64 = 1 << 20;

/// Options of a model that writes.
#[derive(Debug, clap::Args)]
pub struct Writing {
    /// The model: a folder, a GGUF file, or organisation/name in the local cache of Hugging Face's libraries
    #[arg(long, value_name = "MODEL")]
    pub model: PathBuf,
    /// What the model computes in; by default f16 on cuda, f32 elsewhere
    #[arg(long, value_name = "DTYPE", value_parser = values::dtype())]
    dtype: Option<DType>,
    /// Tokens of an answer, at most
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// How freely tokens are drawn: 0 takes the most probable one, 1 draws as the model says
    #[arg(long, default_value_t = 0.0, value_name = "T", value_parser = temperature)]
    temperature: f32,
    /// Draw from the most probable tokens that have this share of the probability together
    #[arg(long, default_value_t = 1.0, value_name = "P", value_parser = share)]
    top_p: f32,
    /// Draw from this many tokens, at most; 0 for all
    #[arg(long, default_value_t = 0, value_name = "K")]
    top_k: u32,
    /// What the draw begins with: the same seed gives the same text
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    seed: u64,
    /// A bundle of adapters; or adapter folders, as `compress` takes them: [NAME=]DIR (may be given again)
    #[arg(long, value_name = "PATH")]
    adapters: Vec<PathBuf>,
    /// The adapter that answers, by its name; may be left out where there is one
    #[arg(long, value_name = "NAME", requires = "adapters")]
    adapter: Option<String>,
    /// A text that ends an answer, and is not shown (may be given again)
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Hold answers to the JSON Schema in this file
    #[arg(long, value_name = "FILE", group = "form")]
    schema: Option<PathBuf>,
    /// Hold answers to a regular expression, which matches the whole of them
    #[arg(long, value_name = "PATTERN", group = "form")]
    regex: Option<String>,
    /// Let an answer be one of these texts alone (may be given again)
    #[arg(long, value_name = "TEXT", group = "form")]
    choice: Vec<String>,
}

fn temperature(text: &str) -> Result<f32, String> {
    let may_be = |value: &f32| *value == 0.0 || (value.is_finite() && *value >= SamplingParams::LEAST_TEMPERATURE);
    text.parse::<f32>().ok().filter(may_be).ok_or_else(|| format!("expected 0, or a number of at least {}", SamplingParams::LEAST_TEMPERATURE))
}

fn share(text: &str) -> Result<f32, String> {
    text.parse::<f32>().ok().filter(|value| *value > 0.0 && *value <= 1.0).ok_or_else(|| "expected a number above 0, at most 1".into())
}

impl Writing {
    /// What the model computes in on this device.
    pub fn dtype(&self, device: &AnyDevice) -> DType {
        self.dtype.or(device.hints().dtype).unwrap_or(DType::F32)
    }

    /// A speaker with room for a text of `room` tokens. `starting` is what is known of the start until now.
    ///
    /// # Errors
    /// More room than the model was made for; a form that cannot be; adapters of another model, or none of that name; no device memory.
    pub fn speaker<'a>(&'a self, mut model: Model<AnyDevice>, files: &'a Files, room: usize, (starting, output): (Starting, &Output)) -> Result<Speaker<'a>> {
        let Self { temperature, top_k, top_p, seed, .. } = *self;
        let sampling = SamplingParams { temperature, top_k, top_p, seed, ..SamplingParams::default() };
        let grammar = match self.structure()? {
            Some(structure) => Some(Structures::new(&files.tokenizer, files.config.vocabulary, &files.ends)?.grammar(&structure)?),
            None => None,
        };
        let Found { source, refused, notes } = Found::at(&self.adapters, &self.model, &|path, shape| files.config.fits(path, shape))?;
        notes.into_iter().for_each(|note| output.note(note));
        let backend = model.session().device().backend();
        let engine = Engine::new(model, EngineOptions::default().with_seats(1).with_context(Some(room)), source)?;
        let adapter = self.named(engine.adapters().collect(), &refused)?;
        Ok(Speaker::new((engine, backend), files, How { sampling, grammar, adapter }, &self.stop, starting))
    }

    /// The adapter that answers, of those that are `known`.
    fn named(&self, known: Vec<&str>, refused: &BTreeMap<String, String>) -> Result<Option<String>> {
        let fault = |found: String| Error::invalid("--adapter", format!("one of {}", known.join(", ")), found);
        match (&self.adapter, known.as_slice()) {
            (None, []) if self.adapters.is_empty() => Ok(None),
            (None, [only]) => Ok(Some((*only).to_owned())),
            (Some(name), known) if known.contains(&name.as_str()) => Ok(Some(name.clone())),
            (Some(name), _) => Err(fault(refused.get(name).map_or_else(|| format!("{name:?}"), |why| format!("{name:?}, which cannot be used: {why}")))),
            (None, _) => Err(fault(refused.iter().next().map_or_else(|| "none".into(), |(name, why)| format!("{name:?}, which cannot be used: {why}")))),
        }
    }

    /// The form that answers are to have.
    fn structure(&self) -> Result<Option<Structure>> {
        Ok(match (&self.schema, &self.regex, self.choice.as_slice()) {
            (Some(path), ..) => {
                let bytes = read_file(path, MAX_SCHEMA_BYTES)?;
                Some(Structure::JsonSchema(serde_json::from_slice(&bytes).map_err(|error| Error::input(path, error.to_string()))?))
            }
            (None, Some(pattern), _) => Some(Structure::Regex(pattern.clone())),
            (None, None, []) => None,
            (None, None, texts) => Some(Structure::Choice(texts.to_vec())),
        })
    }
}

/// Shows a part of a text as it comes. A terminal acts on nothing in it.
///
/// # Errors
/// A standard output that cannot be written to; a reader that went away shows as [`ErrorKind::BrokenPipe`].
pub fn show(part: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let shown = if out.is_terminal() { escaped(part, false) } else { part.into() };
    out.write_all(shown.as_bytes()).and_then(|()| out.flush()).map_err(Error::io("standard output", "write"))
}

/// Whether a reader of standard output went away (`| head`), which is no fault.
pub fn went_away(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::BrokenPipe)
}

/// Arguments of `generate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The text that is gone on with, as it is; standard input where - is given
    #[arg(value_name = "PROMPT")]
    prompt: String,
    #[command(flatten)]
    writing: Writing,
}

/// Reads, and writes what follows.
pub fn run(args: &Args, backend: &Choice, output: &Output) -> Result<Outcome> {
    let mut starting = Starting::now();
    let interrupt = Interrupt::listen()?;
    let mut prompt = args.prompt.clone();
    if prompt == "-" {
        prompt.clear();
        let read = std::io::stdin().take(MAX_PROMPT_BYTES).read_to_string(&mut prompt).map_err(Error::io("standard input", "read"))?;
        if read as u64 == MAX_PROMPT_BYTES {
            return Err(Error::invalid("prompt", format!("fewer than {MAX_PROMPT_BYTES} bytes"), "more"));
        }
    }
    let files = Files::open(&args.writing.model)?;
    let device = starting.open(backend)?;
    Job { args, output, starting, interrupt, files: &files, prompt: &prompt }.on(device)
}

struct Job<'a> {
    args: &'a Args,
    output: &'a Output,
    starting: Starting,
    interrupt: Interrupt,
    files: &'a Files,
    prompt: &'a str,
}

impl Job<'_> {
    fn on(self, device: AnyDevice) -> Result<Outcome> {
        let Self { args, output, starting, interrupt, files, prompt } = self;
        let ids = files.tokenizer.encode(prompt, true)?;
        if ids.is_empty() {
            return Err(Error::invalid("prompt", "a text of at least one token", "none"));
        }
        let most = args.writing.max_tokens as usize;
        let room = (ids.len() + most).min(files.config.context);
        let dtype = args.writing.dtype(&device);
        let model = Model::open(Arc::new(device), files, dtype)?;
        let mut speaker = args.writing.speaker(model, files, room, (starting, output))?;
        let answer = speaker.answer(&ids, most, &interrupt, &mut |part| if output.is_json() { Ok(()) } else { show(part) });
        let answer = match answer {
            Err(error) if went_away(&error) => return Ok(Outcome::Right),
            other => other?,
        };
        if output.is_json() {
            output.report(&answer)?;
        } else {
            output.raw(b"\n")?;
            output.note(answer.sentence());
            if let Some(start) = &answer.start {
                output.note(start.sentence("the first token"));
            }
        }
        Ok(if answer.finish == Finish::Interrupted { Outcome::Interrupted } else { Outcome::Right })
    }
}

impl Report for Answer {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        page.line(&self.text)
    }
}
