//! `shrink`: a language model in, a folder with factored projections out.

mod also;
mod calibrate;
mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use regex::Regex;
use serde_json::{Value, json};
use trifuse::backends::{AnyDevice, Choice};
use trifuse::llm::{Beside, Dense, Files, Model, WeightSource};
use trifuse::shrink::factor::Method;
use trifuse::shrink::kept::Kept;
use trifuse::shrink::moments::Moments;
use trifuse::shrink::plan::{Curve, Plan, Rule, by_cache, by_parameters};
use trifuse::shrink::profile::{Mix, Profile};
use trifuse::shrink::store::{Pairs, Shrunk, configuration, write};
use trifuse::shrink::weigh::{Chosen, Subject, Worth, curves, pairs, weigh};
use trifuse::{DType, Error, Result};

use super::Outcome;
use super::interrupt::Interrupt;
use super::output::Output;
use super::progress::Progress;
use super::values;
use also::{Also, Share};
use calibrate::{Calibration, Texts};
use report::{Facts, Measured, Several, Shrunken};

/// How directions are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Factoring {
    /// By the outputs that inputs make (SVD-LLM)
    Whiten,
    /// By outputs and their gradients, of --moments
    TwoSided,
    /// By the weights, columns scaled by the size of their inputs (ASVD)
    Asvd,
    /// By the weights alone
    Svd,
}

impl From<Factoring> for Method {
    fn from(factoring: Factoring) -> Self {
        match factoring {
            Factoring::Whiten => Self::Whiten,
            Factoring::TwoSided => Self::TwoSided,
            Factoring::Asvd => Self::Asvd,
            Factoring::Svd => Self::Svd,
        }
    }
}

/// What a budget is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Budget {
    /// Parameters of the projections
    Params,
    /// Measured time
    Time,
}

/// Arguments of `shrink`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model: a folder, a GGUF file, or organisation/name in the local cache of Hugging Face's libraries
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The folder to write; it must not hold anything yet
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    /// The share of the projections' parameters to keep
    #[arg(long, value_name = "SHARE")]
    keep: f64,
    /// What the share is of: parameters, or the time that the whole matrices take
    #[arg(long, value_enum, default_value_t = Budget::Params, value_name = "OF")]
    budget: Budget,
    /// Measured times of `profile`, for a budget of time
    #[arg(long, value_name = "FILE", required_if_eq("budget", "time"))]
    profile: Option<PathBuf>,
    /// Rows of products, and the share of its time that the model spends on each, for a budget of time
    #[arg(long, default_value = "decode1:.5,decode16:.3,prefill512:.2", value_name = "MIX", value_parser = |text: &str| text.parse::<Mix>())]
    mix: Mix,
    /// How the directions that a projection keeps are chosen
    #[arg(long, value_enum, default_value_t = Factoring::Whiten, value_name = "HOW")]
    factors: Factoring,
    /// Which ranks may be taken: free, align:N (multiples), knapsack (of 16), nearest:N (rounded afterwards) or uniform (one share everywhere)
    #[arg(long, default_value = "free", value_name = "RULE", value_parser = |text: &str| text.parse::<Rule>())]
    ranks: Rule,
    #[command(flatten)]
    calibration: Calibration,
    /// Second moments in a file, with gradients where a backward pass was run, in place of a calibration
    #[arg(long, value_name = "FILE")]
    moments: Option<PathBuf>,
    /// Another model of the same factors: its share, its rule of ranks and its folder, as 0.8:align:16=DIR; may be given again
    #[arg(long, value_name = "KEEP:RULE=DIR", value_parser = |text: &str| text.parse::<Also>())]
    also: Vec<Also>,
    /// Leave the projections whose path has a match of this regular expression
    #[arg(long, value_name = "REGEX")]
    leave: Option<String>,
    /// Factor k and v of every layer, and let pages hold what lies between the factors: --keep is the share of a token's keys and values in them
    #[arg(long, conflicts_with_all = ["profile", "leave", "dense"])]
    latent: bool,
    /// What the weights are written in
    #[arg(long, default_value = "f32", value_name = "DTYPE", value_parser = values::dtype())]
    dtype: DType,
    /// Write the products of the factors, a plain model that any library reads
    #[arg(long)]
    dense: bool,
}

/// Reads, factors and writes.
pub fn run(args: &Args, backend: &Choice, output: &Output) -> Result<Outcome> {
    let interrupt = Interrupt::listen()?;
    let files = Files::open(&args.model)?;
    let beside = Beside::of(&args.model)?;
    let leave = args.leave.as_deref().map(Regex::new).transpose().map_err(|error| Error::invalid("--leave", "a regular expression", error))?;
    if !files.config.ranks.is_empty() {
        return Err(Error::input(&args.model, "expected a model of whole matrices, found factored projections: give the model that they are of"));
    }
    let job = Job { args, output, interrupt: &interrupt, files: &files, beside: &beside, leave: leave.as_ref() };
    let done = backend.open_any().and_then(|device| job.on(device));
    if done.is_err() && interrupt.asked() {
        return Ok(Outcome::interrupted(output, &args.output));
    }
    done
}

struct Job<'a> {
    args: &'a Args,
    output: &'a Output,
    interrupt: &'a Interrupt,
    files: &'a Files,
    beside: &'a Beside,
    leave: Option<&'a Regex>,
}

impl Job<'_> {
    fn go_on(&self) -> Result<()> {
        if self.interrupt.asked() { Err(Error::io(&self.args.output, "write")(std::io::ErrorKind::Interrupted.into())) } else { Ok(()) }
    }

    /// What is known of what the projections read.
    fn moments(&self, model: &mut Model<AnyDevice>, texts: Option<&Texts>) -> Result<Moments> {
        if let Some(path) = &self.args.moments {
            return Moments::open(path, &self.files.config);
        }
        let Some(texts) = texts else { return Ok(Moments::default()) };
        let progress = Progress::new(self.output, "calibrating", texts.windows.len() as u64);
        Moments::collect(model, self.files.weights.as_ref(), &texts.windows, &mut || {
            progress.step();
            self.go_on()
        })
    }

    /// What each rank of each projection loses; where that is measured, at the share `keep`.
    fn curves(&self, model: &mut Model<AnyDevice>, subject: &Subject<'_>, chosen: &[Chosen], texts: Option<&Texts>, keep: f64) -> Result<Vec<Curve>> {
        let gradients = subject.moments.has_gradients();
        let progress = Progress::new(self.output, "factoring", chosen.len() as u64);
        match texts.map(|texts| &texts.probe).filter(|probe| !probe.is_empty() && !gradients) {
            Some(probe) => weigh(model, subject, chosen, probe, keep, &mut || {
                progress.step();
                self.go_on()
            }),
            None => curves(subject, chosen, if gradients { Worth::Nat } else { Worth::Share }, &mut |count| {
                (0..count).for_each(|_| progress.step());
                self.go_on()
            }),
        }
    }

    /// How the shrunk model differs from the model on held-out text: both are run, one after the other, in the same memory.
    fn measured(&self, model: &mut Model<AnyDevice>, pairs: &Pairs, texts: Option<&Texts>) -> Result<Option<Measured>> {
        let Some(windows) = texts.map(|texts| &texts.held_out).filter(|windows| !windows.is_empty()) else { return Ok(None) };
        let shrunk = Shrunk::new(self.files.weights.as_ref(), pairs);
        let progress = Progress::new(self.output, "measuring", 2 * windows.len() as u64);
        let mut context = model.context(windows.iter().map(Vec::len).max().unwrap_or(1))?;
        let mut before = Vec::new();
        for window in windows {
            before.push(model.forecasts(&mut context, window)?);
            progress.step();
            self.go_on()?;
        }
        let dense = Dense(&shrunk);
        for path in pairs.keys() {
            let shape = self.files.config.projection(path).unwrap_or([1, 1]);
            model.replace(path, &dense.values(&format!("{path}.weight"), &shape)?)?;
        }
        let mut measured = Measured::default();
        for (window, before) in windows.iter().zip(&before) {
            let after = model.forecasts(&mut context, window)?;
            measured.add(window, before, &after)?;
            progress.step();
            self.go_on()?;
        }
        // Who comes after finds the model as it was.
        for path in pairs.keys().filter(|_| !self.args.also.is_empty()) {
            let shape = self.files.config.projection(path).unwrap_or([1, 1]);
            model.replace(path, &self.files.weights.values(&format!("{path}.weight"), &shape)?)?;
        }
        Ok(Some(measured.means()))
    }
}

impl Job<'_> {
    fn on(self, device: AnyDevice) -> Result<Outcome> {
        let Self { args, files, .. } = &self;
        let mut model = Model::open(Arc::new(device), files, DType::F32)?;
        let texts = args.calibration.texts(files)?;
        let moments = self.moments(&mut model, texts.as_ref())?;
        let subject = Subject { config: &files.config, source: files.weights.as_ref(), moments: &moments, method: args.factors.into(), kept: Kept::default() };
        let wanted = |path: &str| !args.latent || path.ends_with(".k_proj") || path.ends_with(".v_proj");
        let chosen = subject.chosen(&|path| wanted(path) && self.leave.is_none_or(|leave| !leave.is_match(path)));
        let shares = Share::all(args.keep, args.ranks, &args.output, &args.also);
        let mut of = self.curves(&mut model, &subject, &chosen, texts.as_ref(), args.keep)?;
        let (mut measured_at, mut all) = (args.keep, Vec::new());
        let nats = moments.has_gradients() || texts.as_ref().is_some_and(|texts| !texts.probe.is_empty());
        for share in &shares {
            // What is measured at a share holds for that share alone.
            if nats && !moments.has_gradients() && share.keep != measured_at {
                of = self.curves(&mut model, &subject, &chosen, texts.as_ref(), share.keep)?;
                measured_at = share.keep;
            }
            all.push(self.share(&mut model, &subject, &chosen, (&of, share), texts.as_ref(), nats)?);
        }
        match <[Shrunken; 1]>::try_from(all) {
            Ok([only]) => self.output.report(&only)?,
            Err(models) => self.output.report(&Several { models })?,
        }
        Ok(Outcome::Right)
    }

    /// Chooses the ranks of a share, and writes its model.
    fn share(
        &self,
        model: &mut Model<AnyDevice>,
        subject: &Subject<'_>,
        chosen: &[Chosen],
        (curves, share): (&[Curve], &Share<'_>),
        texts: Option<&Texts>,
        nats: bool,
    ) -> Result<Shrunken> {
        let Self { args, files, .. } = self;
        let plan = match (&args.profile, args.budget) {
            (Some(path), Budget::Time) => Profile::open(path)?.plan(curves, share.ranks, share.keep, &args.mix)?,
            _ if args.latent => by_cache(curves, share.ranks, share.keep)?,
            _ => by_parameters(curves, share.ranks, share.keep)?,
        };
        let progress = Progress::new(self.output, "truncating", plan.ranks.len() as u64);
        let pairs = pairs(subject, chosen, &plan.ranks, &mut |count| {
            (0..count).for_each(|_| progress.step());
            self.go_on()
        })?;
        drop(progress);
        let measured = self.measured(model, &pairs, texts)?;
        let low_rank = certificate(args, share, &plan, (subject.moments, nats), texts, measured.as_ref());
        let shrunk = Shrunk::new(files.weights.as_ref(), &pairs);
        let dense = Dense(&shrunk);
        let (source, told): (&dyn WeightSource, _) = if args.dense { (&dense, None) } else { (&shrunk, Some(low_rank)) };
        let progress = Progress::new(self.output, "writing", source.names().len() as u64);
        let config = configuration(self.beside, told, args.dtype);
        let bytes = write(share.output, (&config, &self.beside.files), source, args.dtype, &mut |_| {
            progress.step();
            self.go_on()
        })?;
        drop(progress);
        let facts = Facts { model: &args.model, output: share.output, nats, tokens: subject.moments.tokens(), bytes, measured };
        Ok(Shrunken::new(facts, curves, plan))
    }
}

/// What `config.json` says of the factors and how they came about.
fn certificate(args: &Args, share: &Share<'_>, plan: &Plan, (moments, nats): (&Moments, bool), texts: Option<&Texts>, measured: Option<&Measured>) -> Value {
    let calibration = texts.map(|texts| json!({"texts": texts.names, "sha256": texts.sha256, "tokens": moments.tokens(), "window": args.calibration.window}));
    let moments = args.moments.as_deref().map(Path::display).map(|path| path.to_string());
    let of = match args.budget {
        _ if args.latent => "cache",
        Budget::Time => "time",
        Budget::Params => "parameters",
    };
    json!({
        "method": Method::from(args.factors).name(),
        "rule": share.ranks.to_string(),
        "latent": args.latent,
        "budget": {"keep": share.keep, "of": of, "most": plan.budget, "taken": plan.cost},
        "parameters": plan.parameters,
        "ranks": plan.ranks,
        "stored": plan.ranks,
        "calibration": calibration,
        "moments": moments,
        "predicted_nats": Some(plan.nats).filter(|_| nats),
        "measured": measured,
    })
}
