//! `compress`: PEFT folders in, one bundle out, with a certificate for every adapter and projection.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use trifuse::adapters::bundle::{Bundle, to_bytes};
use trifuse::adapters::encode::calibration::Calibration;
use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::peft::{LoraAdapter, adapter_files, open_all};
use trifuse::adapters::whole::{check_apart, check_file, is_special, write_file, write_new_file};
use trifuse::backends::Choice;
use trifuse::model::files;
use trifuse::ops::codes::CodeWidth;
use trifuse::{Error, Result};

use super::Outcome;
use super::calibrate::from_text;
use super::kept::Kept;
use super::output::{Output, Page, Report, Tone};
use super::progress::Progress;
use super::warnings::warnings;

/// Bytes of the file over bytes of the adapters, where nothing is asked.
const DEFAULT_RATIO: f64 = 0.2;

/// Arguments of `compress`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Adapter folders (adapter_config.json and adapter_model.safetensors), folders that hold such folders, or organisation/name in the local
    /// cache of Hugging Face's libraries; NAME=DIR names an adapter otherwise than its folder
    #[arg(required = true, value_name = "[NAME=]DIR")]
    adapters: Vec<PathBuf>,
    /// The bundle to write
    #[arg(long, short, value_name = "FILE.s2lc")]
    output: PathBuf,
    /// Replace a file that is already there
    #[arg(long)]
    force: bool,
    /// The published form: one input basis of 16 columns a projection, and codes of 4 bits
    #[arg(long, conflicts_with_all = ["rank", "energy", "max_ratio", "min_cosine", "max_output_error", "bits", "width"])]
    published: bool,
    /// Columns of every shared basis, and no other form
    #[arg(long, value_name = "R", conflicts_with = "energy")]
    rank: Option<usize>,
    /// In place of a rank: the smallest basis that keeps this share of ‖ΔW‖²
    #[arg(long, allow_negative_numbers = true, value_name = "SHARE")]
    energy: Option<f64>,
    /// Bytes of the file over bytes of the adapters, at most, which keep as much as they can; 0.125 and 8 both say eight times smaller
    /// [default: 5, where nothing else is asked]
    #[arg(long, allow_negative_numbers = true, value_name = "RATIO", value_parser = ratio)]
    max_ratio: Option<f64>,
    /// Least cosine between ΔW and what it decodes to, in every projection of every adapter; climbs the ladder to meet it
    #[arg(long, allow_negative_numbers = true, value_name = "COSINE")]
    min_cosine: Option<f64>,
    /// Greatest relative error of any projection's output, on held-out activations, or on Gaussian inputs where there are none
    #[arg(long, allow_negative_numbers = true, value_name = "SHARE")]
    max_output_error: Option<f64>,
    /// Bits an element of the codes, on average, shared out over the columns by their energy
    #[arg(long, allow_negative_numbers = true, value_name = "BITS", conflicts_with = "width")]
    bits: Option<f64>,
    /// In place of bits on average: one width for every column, 2, 3, 4 or 7 bits
    #[arg(long, value_name = "BITS", value_parser = width)]
    width: Option<CodeWidth>,
    /// Activations by module path (.safetensors, [rows, d_in]) to encode for; their last quarter is held out and measures the result
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Other activations to measure on, in place of that quarter
    #[arg(long, value_name = "FILE", requires = "calibration")]
    held_out: Option<PathBuf>,
    /// Text to encode for, one a line or JSON lines with `text`: the base model runs over it; its last quarter only measures
    #[arg(long, value_name = "FILE", requires = "model", conflicts_with = "calibration")]
    calibrate: Option<PathBuf>,
    /// The base model of --calibrate: a folder, or organisation/name in the local cache of Hugging Face's libraries
    #[arg(long, value_name = "MODEL", requires = "calibrate")]
    model: Option<PathBuf>,
    /// Tokens of the text that --calibrate keeps of every projection's inputs, spread evenly over it; at least 8
    #[arg(long, value_name = "N", default_value_t = trifuse::model::calibrate::DEFAULT_ROWS, requires = "calibrate")]
    calibrate_rows: usize,
    /// Seed of the clustering: the same seed gives the same file
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

fn width(text: &str) -> Result<CodeWidth, String> {
    let known = text.parse().ok().and_then(CodeWidth::from_bits).filter(|width| !matches!(width, CodeWidth::Zero | CodeWidth::Bytes));
    known.ok_or_else(|| "expected 2, 3, 4 or 7".into())
}

/// A part of the bytes, or how many times fewer.
fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio: &f64| *ratio > 0.0 && ratio.is_finite());
    let ratio = ratio.ok_or("expected a part of the bytes, as 0.125, or how many times smaller, as 8")?;
    Ok(if ratio > 1.0 { 1.0 / ratio } else { ratio })
}

/// The result.
#[derive(Debug, Serialize)]
struct Compressed<'a> {
    output: &'a Path,
    seconds: f64,
    #[serde(flatten)]
    kept: Kept,
    /// Projections that `--calibration` had no inputs for: encoded and measured without any.
    uncalibrated: Vec<String>,
    /// What a reader must know before using the file.
    warnings: Vec<String>,
}

/// Encodes and writes.
pub fn run(args: &Args, backend: &Choice, output: &Output) -> Result<Outcome> {
    check_place(&args.output, args.force)?;
    check_apart(&args.output, args.inputs())?;
    let options = args.options(backend, output)?;
    options.validate()?;
    let adapters = open_all(&args.adapters)?;
    let started = Instant::now();
    let bytes = encoded(&adapters, &options, output)?;
    // Encoding takes its time: the name may have been taken since it was looked for.
    if args.force { write_file(&args.output, |out| out.write_all(&bytes)) } else { write_new_file(&args.output, |out| out.write_all(&bytes)) }?;
    drop(bytes);
    // What is shown is what the file says of itself, not what the encoder meant.
    let kept = Kept::of(&Bundle::open(&args.output)?)?;
    let uncalibrated = if options.calibration.is_some() { kept.unmeasured() } else { vec![] };
    let warnings = warnings(&options, &adapters, &kept, &uncalibrated);
    output.report(&Compressed { output: &args.output, seconds: started.elapsed().as_secs_f64(), kept, uncalibrated, warnings })?;
    Ok(Outcome::Right)
}

impl Args {
    /// The files that are read.
    fn inputs(&self) -> impl Iterator<Item = PathBuf> {
        let given = [&self.calibration, &self.held_out, &self.calibrate].into_iter().flatten().cloned();
        given.chain(adapter_files(&self.adapters)).chain(self.model.iter().flat_map(|model| files(model)))
    }

    /// Whether a form, a size or a fidelity is asked for.
    fn asks(&self) -> bool {
        let numbers = [self.energy, self.max_ratio, self.min_cosine, self.max_output_error, self.bits];
        self.published || self.rank.is_some() || self.width.is_some() || numbers.iter().any(Option::is_some)
    }

    fn options(&self, backend: &Choice, output: &Output) -> Result<EncodeOptions> {
        let calibration = match (&self.calibration, &self.held_out) {
            _ if self.calibrate.is_some() => {
                self.calibrate.iter().zip(&self.model).map(|(text, model)| from_text(text, model, self.calibrate_rows, backend, output)).next().transpose()?
            }
            (Some(design), Some(held_out)) => Some(Calibration::load_pair(design, held_out)?),
            (Some(design), None) => Some(Calibration::load(design)?),
            (None, _) => None,
        };
        Ok(EncodeOptions {
            rank: self.rank,
            energy: self.energy,
            max_ratio: if self.asks() { self.max_ratio } else { Some(DEFAULT_RATIO) },
            min_cosine: self.min_cosine,
            max_output_error: self.max_output_error,
            bits: self.bits,
            width: self.width,
            rungs: None,
            seed: self.seed,
            calibration,
        })
    }
}

/// Refuses a place that cannot be written to before the work and not after it.
fn check_place(path: &Path, force: bool) -> Result<()> {
    let subject = || path.display().to_string();
    // What it says of itself is read from it afterwards.
    if is_special(path) {
        return Err(Error::invalid(subject(), "the name of a file", "a device or a pipe"));
    }
    check_file(path)?;
    if !force && path.symlink_metadata().is_ok() {
        return Err(Error::invalid(subject(), "a name that is not taken, or --force to replace the file", "one that is taken"));
    }
    Ok(())
}

/// The adapters as the encoder takes them.
pub fn sources(adapters: &[LoraAdapter]) -> Vec<Source<'_>> {
    adapters.iter().map(Source::from).collect()
}

/// The bytes of a bundle of `adapters` that meets `options`.
///
/// # Errors
/// The errors of [`encode`].
pub fn encoded(adapters: &[LoraAdapter], options: &EncodeOptions, output: &Output) -> Result<Vec<u8>> {
    check_shapes(adapters)?;
    let paths: BTreeSet<&String> = adapters.iter().flat_map(|adapter| adapter.modules.keys()).collect();
    let progress = Progress::new(output, "encoding", paths.len() as u64);
    to_bytes(&encode(&sources(adapters), options, &|_, _| progress.step())?)
}

/// Refuses adapters that give one module different shapes: they are for different models, and the folder of the second is at fault.
fn check_shapes(adapters: &[LoraAdapter]) -> Result<()> {
    let mut known: BTreeMap<&String, (&LoraAdapter, [usize; 2])> = BTreeMap::new();
    for adapter in adapters {
        for (path, lora) in &adapter.modules {
            let found = [lora.b.rows, lora.a.cols];
            let (first, expected) = *known.entry(path).or_insert((adapter, found));
            if expected != found {
                let problem = format!("expected [d_out, d_in] = {expected:?}, as adapter {:?} has it, found {found:?}: is it for another model?", first.name);
                return Err(Error::input_item(&adapter.folder, path, problem));
            }
        }
    }
    Ok(())
}

impl Report for Compressed<'_> {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        self.kept.table(page, None)?;
        let total = self.kept.total(page);
        page.line(format_args!("{}: {total}, in {:.1} s", self.output.display(), self.seconds))?;
        page.line("cos(ΔW): of the weights' change; output error: of what it adds to an output, on Gaussian inputs")?;
        for warning in &self.warnings {
            page.line(format_args!("{} {warning}", page.tone(Tone::Warning, "note:")))?;
        }
        Ok(())
    }
}
