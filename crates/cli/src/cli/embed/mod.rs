//! `embed`: texts in, a vector a line out, any mix of adapters.

mod input;
mod rows;
mod write;

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use trifuse::adapters::peft::adapter_files;
use trifuse::adapters::whole::{check_apart, check_file, write_file};
use trifuse::backends::{AnyDevice, Choice};
use trifuse::device::Device;
use trifuse::model::{Encoder, EncoderOptions, Text, files, find};
use trifuse::{DType, Error, Result};

use super::Outcome;
use super::adapters::Adapters;
use super::interrupt::Interrupt;
use super::output::{Output, Page, Report};
use super::progress::Progress;
use super::values;
use input::Lines;
use rows::Worker;
use write::{Format, Sink};

/// Arguments of `embed`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A text on each line, or JSON lines: `{"text": ..., "adapter": ...}`, the adapter optional; standard input where nothing or - is given
    #[arg(default_value = "-", value_name = "FILE")]
    input: PathBuf,
    /// The model: a folder, or organisation/name in the local cache of Hugging Face's libraries
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,
    /// A bundle of adapters; or adapter folders, as `compress` takes them: [NAME=]DIR (may be given again)
    #[arg(long, value_name = "PATH")]
    adapters: Vec<PathBuf>,
    /// The adapter of lines that name none; without it they use the base model
    #[arg(long, value_name = "NAME", requires = "adapters")]
    adapter: Option<String>,
    /// Where to write; standard output where nothing or - is given
    #[arg(long, short, default_value = "-", value_name = "FILE")]
    output: PathBuf,
    /// What to write; by default what the name of the output ends in, else JSON lines
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// What the model computes in; by default f16 on cuda, f32 elsewhere
    #[arg(long, value_name = "DTYPE", value_parser = values::dtype())]
    dtype: Option<DType>,
    /// Leave out the end of a text that is longer than the model allows; without this such a line is refused
    #[arg(long)]
    truncate: bool,
    /// Lines that are read, sorted by length and written together
    #[arg(long, default_value_t = 8192, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    window: u32,
    /// Tokens of a batch, at most; by default 131072 on cuda, 8192 elsewhere
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch_tokens: Option<u32>,
}

/// What came of a run.
#[derive(Debug, Serialize)]
struct Embedded<'a> {
    output: &'a Path,
    model: PathBuf,
    backend: &'static str,
    dtype: DType,
    /// Lines of the input.
    lines: usize,
    /// Lines that have no embedding; each says why where it is written.
    refused: usize,
    dimensions: u64,
    tokens: usize,
    seconds: f64,
    sentences_per_second: f64,
}

/// Reads, embeds and writes.
pub fn run(args: &Args, backend: &Choice, output: &Output) -> Result<Outcome> {
    if args.writes_standard() && output.is_json() {
        return Err(Error::invalid("--json", "an output file (-o), as standard output is to hold one JSON object", "none"));
    }
    // What went to standard output has gone; a file that is not whole has to go. A line that a person types is waited for behind a signal too.
    let typed = args.reads_standard() && std::io::stdin().is_terminal();
    let interrupt = if args.writes_standard() || typed { None } else { Some(Interrupt::listen()?) };
    if !args.writes_standard() {
        check_file(&args.output)?;
        check_apart(&args.output, args.inputs())?;
    }
    Job { args, output, interrupt }.on(backend.open_any()?)
}

impl Args {
    /// The files that are read and that could be taken for the output.
    fn inputs(&self) -> impl Iterator<Item = PathBuf> {
        let text = if self.reads_standard() { Path::new("/dev/stdin") } else { &self.input };
        let given = std::iter::once(text.into()).chain(self.adapters.iter().cloned());
        given.chain(adapter_files(&self.adapters)).chain(files(&self.model))
    }

    fn reads_standard(&self) -> bool {
        self.input == Path::new("-")
    }

    fn writes_standard(&self) -> bool {
        self.output == Path::new("-")
    }

    fn reader(&self) -> Result<Box<dyn BufRead>> {
        if self.reads_standard() {
            return Ok(Box::new(BufReader::new(std::io::stdin())));
        }
        Ok(Box::new(BufReader::new(std::fs::File::open(&self.input).map_err(Error::io(&self.input, "open"))?)))
    }

    /// Lets `work` write to where the embeddings are to go; it is given the place's name in errors.
    fn write(&self, work: impl FnOnce(&mut dyn Write, &Path) -> Result<()>) -> Result<()> {
        if self.writes_standard() {
            return match work(&mut std::io::stdout().lock(), Path::new("standard output")) {
                // A reader that went away (`| head`) is no fault.
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
                other => other,
            };
        }
        let mut fault = None;
        let written = write_file(&self.output, |out| {
            work(out, &self.output).map_err(|error| {
                let cause = std::io::Error::other(error.to_string());
                fault = Some(error);
                cause
            })
        });
        fault.map_or(written, Err)
    }
}

struct Job<'a> {
    args: &'a Args,
    output: &'a Output,
    /// The handler of an interrupt, where the embeddings go to a file.
    interrupt: Option<Interrupt>,
}

impl Job<'_> {
    fn on(self, device: AnyDevice) -> Result<Outcome> {
        let Self { args, output, interrupt } = self;
        let asked = || interrupt.as_ref().is_some_and(Interrupt::asked);
        let (backend, hints) = (device.backend(), device.hints());
        let dtype = args.dtype.or(hints.dtype).unwrap_or(DType::F32);
        let folder = find(&args.model)?;
        let mut encoder = Encoder::open(Arc::new(device), &folder, EncoderOptions { dtype, ..EncoderOptions::default() })?;
        let text = Text::open(&folder, encoder.config())?;
        let adapters = Adapters::attach(&mut encoder, &args.model, &args.adapters, false)?;
        adapters.notes().iter().for_each(|note| output.note(note));
        for (name, reason) in adapters.refused() {
            output.note(format_args!("adapter {name} is left out: {reason}"));
        }
        let hidden = encoder.config().hidden;
        let batch_tokens = args.batch_tokens.or(hints.batch_tokens).unwrap_or(8192) as usize;
        let mut worker = Worker { encoder, text, adapters, default: args.adapter.as_deref(), truncate: args.truncate, batch_tokens };
        let reader = args.reader()?;
        let format = args.format.unwrap_or_else(|| Format::of(&args.output));
        let started = Instant::now();
        let mut counts = Counts::default();
        let written = args.write(|out, place| {
            let mut sink = Sink::new(format, out, place, hidden as usize);
            let go_on = || if asked() { Err(Error::io(place, "write")(std::io::ErrorKind::Interrupted.into())) } else { Ok(()) };
            embed_all(&mut worker, Lines::new(reader, &args.input), args.window as usize, &mut sink, output, &mut counts, &go_on)?;
            sink.finish(&folder)
        });
        if written.is_err() && asked() {
            return Ok(Outcome::interrupted(output, &args.output));
        }
        written?;
        counts.refusals.iter().for_each(|refusal| output.note(refusal));
        let seconds = started.elapsed().as_secs_f64();
        let report = Embedded {
            output: &args.output,
            model: folder,
            backend,
            dtype,
            lines: counts.lines,
            refused: counts.refused,
            dimensions: hidden,
            tokens: counts.tokens,
            seconds,
            sentences_per_second: (counts.lines - counts.refused) as f64 / seconds,
        };
        if args.writes_standard() {
            output.note(report.sentence())
        } else {
            output.report(&report)?
        }
        Ok(if counts.refused > 0 { Outcome::BadInput } else { Outcome::Right })
    }
}

/// What was seen so far.
#[derive(Debug, Default)]
struct Counts {
    lines: usize,
    refused: usize,
    tokens: usize,
    /// The first lines that were refused, and why.
    refusals: Vec<String>,
}

/// Refusals that are told by themselves: arrays have no place for the reason.
const TOLD: usize = 10;

/// Embeds all lines. `go_on` is asked behind each batch, and ends the work by an error.
fn embed_all(
    worker: &mut Worker<'_>,
    mut lines: Lines,
    window: usize,
    sink: &mut Sink<'_>,
    output: &Output,
    counts: &mut Counts,
    go_on: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let progress = Progress::new(output, "embedding", 0);
    let started = Instant::now();
    loop {
        let batch = lines.take(window)?;
        go_on()?;
        if batch.is_empty() {
            return Ok(());
        }
        let before = counts.lines;
        let rows = worker.rows(&batch, &mut |sentences| {
            let done = before + sentences;
            progress.now(format!("{done} sentences, {:.0} a second", done as f64 / started.elapsed().as_secs_f64()));
            go_on()
        })?;
        for row in &rows {
            counts.lines += 1;
            if let Err(why) = &row.result {
                counts.refused += 1;
                if counts.refusals.len() < TOLD {
                    counts.refusals.push(format!("line {} is refused: {why}", counts.lines));
                }
            }
            counts.tokens += row.tokens;
            sink.put(row)?;
        }
    }
}

impl Embedded<'_> {
    fn sentence(&self) -> String {
        let refused = if self.refused > 0 { format!(", {} refused", self.refused) } else { String::new() };
        format!(
            "{} lines{refused}, {} dimensions, {} tokens; {} on {}: {:.0} sentences a second",
            self.lines, self.dimensions, self.tokens, self.dtype, self.backend, self.sentences_per_second
        )
    }
}

impl Report for Embedded<'_> {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        page.line(format_args!("{}: {}", self.output.display(), self.sentence()))
    }
}
