//! Every case, drawn or from a file, on every variant of every backend of this build, in every configuration that can compute it. A backend
//! that is not there, and a case that a variant does not support, show as ignored tests with the reason; nothing is skipped in silence.
//!
//! What is run can be changed by the environment, for machines with a GPU (`scripts/gpu.sh`):
//! - `TRIFUSE_BACKEND=cuda`: that backend alone;
//! - `TRIFUSE_REPEATS=100`: besides, every case that often on every variant, each run the same bits as the first;
//! - `TRIFUSE_CONFIGS=chosen`: of a variant the chosen configuration alone, for tools that take long to compile a kernel or to run it;
//! - `TRIFUSE_MOST_FLOPS=1e8`: no case with more work than that, for tools that slow a kernel down a hundredfold;
//! - `TRIFUSE_MATCH="linear/ (sm90"`: trials whose names hold every one of these words, or all of those behind a `|`; with a word that names a configuration,
//!   as `(sm90:128x192,`, there are trials of that one beside those of its variant;
//! - `TRIFUSE_SHARD=3/48`: the third of so many parts, each with as few kernels as can be;
//! - `TRIFUSE_SAMPLE=16`: of the drawn cases every sixteenth on a software driver, from number `TRIFUSE_TURN` on; files, and backends that
//!   are fast, have all of theirs. The processor's backend has every case as it is, and every fourth, at most, with its operands aligned as well.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Conclusion, Failed, Trial};
use trifuse::Result;
use trifuse::backend::Backend;
use trifuse::backends::{Choice, NAMES, Visit};
use trifuse::session::Session;
use trifuse_testkit::casefile::{self, CaseFile};
use trifuse_testkit::cases::{OpKind, Posed, Problem, Work, all};
use trifuse_testkit::conformance::{Mode, Outcome, Subject, run_case, run_configs, variants};
use trifuse_testkit::oracle::Define;

pub fn run(arguments: &Arguments) -> Conclusion {
    let mut subjects: Vec<Arc<Subject>> = all().into_iter().map(|case| Arc::new(Subject::from(case))).collect();
    match vectors() {
        Ok(vectors) => subjects.extend(vectors),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
    let mut trials = Vec::new();
    let only: Option<String> = setting("TRIFUSE_BACKEND").filter(|name| name != "auto");
    for name in NAMES {
        if only.as_ref().is_some_and(|only| only != name) {
            let name = format!("not asked for: {name}");
            trials.push(Trial::test(name, || Ok(())).with_ignored_flag(true));
            continue;
        }
        match Choice::Named(name, 0).open(Collect(&subjects)) {
            Ok(found) => trials.extend(found),
            Err(error) => {
                trials
                    .push(Trial::test(format!("not available: {error}"), || Err("this backend is not there".into())).with_kind(*name).with_ignored_flag(true));
            }
        }
    }
    if let Some(words) = setting::<String>("TRIFUSE_MATCH") {
        let holds = |name: &str, words: &str| words.split_whitespace().all(|word| name.contains(word));
        trials.retain(|trial| words.split('|').any(|words| holds(trial.name(), words)));
    }
    if let Some(shard) = setting::<String>("TRIFUSE_SHARD") {
        trials = part_of(trials, &shard);
    }
    libtest_mimic::run(arguments, trials)
}

/// What the environment sets, where it does.
fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    let Ok(value) = text.parse() else {
        eprintln!("{name}: expected a value of another kind, found {text:?}");
        std::process::exit(2);
    };
    Some(value)
}

/// Part `number/count` of the trials: those of one operation and variant lie together, for a kernel is loaded by every
/// process that uses it.
fn part_of(mut trials: Vec<Trial>, shard: &str) -> Vec<Trial> {
    let parsed = shard.split_once('/').and_then(|(number, count)| Some((number.parse::<usize>().ok()?, count.parse::<usize>().ok()?)));
    let Some((number, count)) = parsed.filter(|(number, count)| (1..=*count).contains(number)) else {
        eprintln!("TRIFUSE_SHARD: expected NUMBER/COUNT, NUMBER from 1, found {shard:?}");
        std::process::exit(2);
    };
    let key = |trial: &Trial| {
        let name = trial.name();
        let variant = name.rsplit_once('(').map_or("", |(_, end)| end.split([',', ')']).next().unwrap_or_default());
        let case = name.strip_prefix("vectors/").unwrap_or(name);
        (case.split(['/', '_']).next().unwrap_or_default().to_owned(), variant.to_owned())
    };
    trials.sort_by_cached_key(key);
    let (from, to) = (trials.len() * (number - 1) / count, trials.len() * number / count);
    trials.drain(from..to).collect()
}

/// The work of a case.
struct Flops;

impl Work for Flops {
    type Out = f64;

    fn on<O: Define>(self, posed: &Posed<O>) -> f64 {
        posed.op.cost().executed_flops
    }
}

/// Why a case is too much work, where it is.
fn too_much(subject: &Subject) -> Result<Option<String>> {
    let Some(most) = setting::<f64>("TRIFUSE_MOST_FLOPS") else { return Ok(None) };
    let problem: Problem = subject.problem()?;
    let flops = problem.with(Flops);
    Ok((flops > most).then(|| format!("{flops:.1e} operations, more than TRIFUSE_MOST_FLOPS={most:.1e}")))
}

/// The cases of `tests/vectors`, whose answers NumPy computed.
fn vectors() -> Result<Vec<Arc<Subject>>> {
    let built = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors"));
    // A copy of the tree on another machine lies elsewhere than where this was built.
    let folder = if built.is_dir() { built } else { Path::new("tests/vectors") };
    let named = |case: CaseFile| CaseFile { name: format!("vectors/{}", case.name), ..case };
    casefile::list(folder)?.iter().map(|path| Ok(Arc::new(Subject::from(named(casefile::read(path)?))))).collect()
}

/// Of how many cases the processor's backend has one with its operands aligned as well, at most: it reads element by element, from wherever they lie.
const ALIGNED: usize = 4;

/// The configurations that `TRIFUSE_MATCH` names, as `variant:config`, each with all the words that stand with it.
fn configs() -> Vec<(String, Vec<String>)> {
    let words: String = setting("TRIFUSE_MATCH").unwrap_or_default();
    let named = |words: &str| {
        let config = words.split_whitespace().filter_map(|word| word.strip_prefix('(')).find(|word| word.contains(':'))?;
        Some((config.trim_end_matches(',').to_owned(), words.split_whitespace().map(str::to_owned).collect()))
    };
    words.split('|').filter_map(named).collect()
}

/// Makes the trials of one backend.
struct Collect<'a>(&'a [Arc<Subject>]);

impl Visit for Collect<'_> {
    type Out = Vec<Trial>;

    fn visit<B: Backend>(self, backend: B) -> Result<Vec<Trial>> {
        let device = Arc::new(backend);
        // Never dropped: the last trial's worker could still be at it when the process exits and the driver goes.
        std::mem::forget(device.clone());
        let mut trials = Vec::new();
        let mut met = BTreeSet::new();
        // A driver that computes on the processor takes most of the time of all checks.
        let slow = B::NAME == "wgpu" && device.caps().kind == trifuse::device::Kind::Cpu;
        let (sample, turn) = (setting("TRIFUSE_SAMPLE").unwrap_or(1).max(1), setting("TRIFUSE_TURN").unwrap_or(0usize));
        let taken = |number: usize, subject: &Subject| !slow || subject.name().starts_with("vectors/") || (number + turn).is_multiple_of(sample);
        let left = self.0.iter().enumerate().filter(|(number, subject)| !taken(*number, subject)).count();
        if left > 0 {
            let name = format!("{left} of {} cases (skipped: of the drawn ones this revision has every {sample}th here; ./check full has all)", self.0.len());
            trials.push(Trial::test(name, || Ok(())).with_kind(B::NAME).with_ignored_flag(true));
        }
        let asked = configs();
        let share = if B::NAME == "cpu" { sample.min(ALIGNED) } else { 1 };
        let mut unaligned = 0;
        for (number, subject) in self.0.iter().enumerate().filter(|(number, subject)| taken(*number, subject)) {
            let variants = variants(&*device, subject.kind());
            for (config, words) in asked.iter().filter(|(config, _)| config.split_once(':').is_some_and(|(variant, _)| variants.contains(&variant))) {
                let both = [Mode::Direct, Mode::Aligned].map(|mode| trial(&device, subject, config, mode));
                trials.extend(both.into_iter().filter(|trial| words.iter().all(|word| trial.name().contains(word))));
            }
            for &variant in variants {
                trials.push(trial(&device, subject, variant, Mode::Direct));
                // The first of each operation and variant is always among them.
                let first = met.insert((subject.kind().name(), variant));
                if first || (number + turn).is_multiple_of(share) {
                    trials.push(trial(&device, subject, variant, Mode::Aligned));
                } else {
                    unaligned += 1;
                }
                if let Some(repeats) = setting("TRIFUSE_REPEATS") {
                    trials.push(trial(&device, subject, variant, Mode::Repeated(repeats)));
                }
                // Capture does not depend on sizes: one case of each operation and variant shows it.
                if first {
                    trials.push(trial(&device, subject, variant, Mode::Captured));
                }
            }
        }
        if unaligned > 0 {
            let name = format!("{unaligned} trials with aligned operands (skipped: this revision has every {share}th here; ./check full has all)");
            trials.push(Trial::test(name, || Ok(())).with_kind(B::NAME).with_ignored_flag(true));
        }
        for kind in OpKind::ALL {
            if variants(&*device, kind).is_empty() {
                trials.push(Trial::test(format!("{} has no variant", kind.name()), || Ok(())).with_kind(B::NAME).with_ignored_flag(true));
            }
        }
        Ok(trials)
    }
}

fn trial<B: Backend>(device: &Arc<B>, subject: &Arc<Subject>, variant: &str, mode: Mode) -> Trial {
    let suffix = match mode {
        Mode::Direct => String::new(),
        Mode::Aligned => ", aligned".into(),
        Mode::Captured => ", captured".into(),
        Mode::Repeated(runs) => format!(", {runs} runs"),
    };
    let name = format!("{} ({variant}{suffix})", subject.name());
    let (device, subject, variant) = (device.clone(), subject.clone(), variant.to_owned());
    Trial::ignorable_test(name, move || {
        if let Some(reason) = too_much(&subject)? {
            return Ok(Completion::ignored_with(reason));
        }
        let mut session = Session::new(device)?;
        let all = setting::<String>("TRIFUSE_CONFIGS").is_none_or(|which| which != "chosen");
        let ran = match mode {
            // Where operands do not start on 16 bytes most configurations leave the work to the same kernels: both are run.
            Mode::Direct | Mode::Aligned if all => run_configs(&mut session, &subject, &variant, mode),
            _ => run_case(&mut session, &subject, Some(&variant), mode),
        };
        match ran? {
            Outcome::Passed(_) => Ok(Completion::Completed),
            Outcome::Failed { why } => Err(Failed::from(why)),
            Outcome::Unsupported { reason } => Ok(Completion::ignored_with(reason)),
        }
    })
    .with_kind(B::NAME)
}
