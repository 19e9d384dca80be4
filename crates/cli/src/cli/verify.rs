//! `verify`: every case on every backend and the six tests of the method; or case files from outside.

mod ground;
mod report;
mod sample;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use trifuse::backends::{Choice, NAMES};
use trifuse::{Error, Result};
use trifuse_cli::verify::{NAMES as TESTS, Relaunch, Samples};
use trifuse_testkit::casefile;
use trifuse_testkit::cases::Problem;
use trifuse_testkit::conformance::{Subject, ahead};

use super::output::Output;
use super::progress::Progress;
use super::{Outcome, samples};
use ground::{Ground, Planner};
use report::{Absent, Backend, CaseRow, Cell, LeftOut, Verification};

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run the case files of this folder instead, on the chosen backend
    #[arg(long, value_name = "DIR")]
    pub vectors: Option<PathBuf>,
    /// Only the cases whose name holds this, without the six tests
    #[arg(long, value_name = "TEXT", conflicts_with = "vectors")]
    pub case: Option<String>,
    /// Only these of the six tests, by number, and no case
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=TESTS.len() as i64), conflicts_with_all = ["vectors", "case"])]
    pub only: Vec<u8>,
    /// A sample of the cases and the quick ones of the six tests, in seconds; says what it leaves out
    #[arg(long, conflicts_with_all = ["vectors", "case", "only"])]
    pub quick: bool,
    /// A line for each case, and the figures of each test
    #[arg(long, short)]
    pub verbose: bool,
    /// Run one case of test 3, `VARIANT/CASE`, and nothing else: what that test starts under a profiler
    #[arg(long, value_name = "CASE", hide = true, conflicts_with_all = ["vectors", "case", "only", "quick"])]
    pub launch: Option<String>,
}

/// Runs, compares and prints a line for each operation and test.
pub fn run(args: &Args, choice: &Choice, output: &Output) -> Result<Outcome> {
    if let Some(what) = &args.launch {
        Ground::open(choice)?.launch(what)?;
        return Ok(Outcome::Right);
    }
    let mut left_out = Vec::new();
    let (subjects, total, refused) = subjects(args, &mut left_out)?;
    let numbers = numbers(args, &mut left_out);
    let (mut grounds, absent) = grounds(choice, args)?;
    let progress = Progress::new(output, "verify", (total + numbers.len() * grounds.len()) as u64);

    let mut cases = BTreeMap::new();
    let began = Instant::now();
    let in_time = |_: &Subject| !args.quick || began.elapsed() < sample::LIMIT;
    let planners: Vec<Planner> = grounds.iter().filter_map(|(ground, _)| ground.planner()).collect();
    let plan = |problem: &Problem| planners.iter().for_each(|planner| planner(problem));
    ahead(subjects.take_while(in_time), plan, |number, subject, problem| {
        progress.now(subject.name());
        // A case without an answer fails wherever it is run, and tells why.
        let results = grounds.iter_mut().map(|(ground, _)| ground.case(subject, problem.as_ref())).collect();
        cases.insert(number, CaseRow::new(subject.name(), subject.kind().name(), results));
        progress.step();
    });
    let mut cases: Vec<CaseRow> = cases.into_values().collect();
    for (name, error) in refused.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let cell = Cell::Refused { why: error.to_string() };
        cases.push(CaseRow::new(&name, "no case", vec![cell; grounds.len()]));
    }
    let count = total.saturating_sub(cases.len());
    if count > 0 {
        left_out.push(LeftOut { what: format!("{count} more cases"), count, reason: format!("their time, {} s, was over", sample::LIMIT.as_secs()) });
    }

    let samples = if numbers.is_empty() { None } else { Some(samples()?) };
    let mut backends = Vec::new();
    for (ground, relaunch) in &mut grounds {
        let mut tests = Vec::new();
        for &number in &numbers {
            progress.now(format!("{} {}", ground.backend(), TESTS[usize::from(number) - 1]));
            tests.extend(samples.as_ref().map(|samples| ground.test(number, samples, relaunch.as_ref())));
            progress.step();
        }
        backends.push(Backend { backend: ground.backend(), device: ground.device(), tests });
    }
    drop(progress);

    let report = Verification::new(backends, absent, cases, left_out, args.verbose);
    output.report(&report)?;
    Ok(report.outcome())
}

/// Files that are no cases, by name, and why.
type Refused = Arc<Mutex<Vec<(String, Error)>>>;

/// The cases, from this crate or from files, and how many there are. A file is read when its turn comes; one that is no case is told of and
/// does not keep the others from being run.
fn subjects(args: &Args, left_out: &mut Vec<LeftOut>) -> Result<(Box<dyn Iterator<Item = Subject> + Send>, usize, Refused)> {
    let refused = Refused::default();
    let Some(folder) = &args.vectors else {
        let subjects = own_cases(args, left_out)?;
        let total = subjects.len();
        return Ok((Box::new(subjects.into_iter()), total, refused));
    };
    let paths = casefile::list(folder)?;
    let (total, told) = (paths.len(), Arc::clone(&refused));
    let read = paths.into_iter().filter_map(move |path| match casefile::read(&path) {
        Ok(case) => Some(Subject::from(case)),
        Err(error) => {
            let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            told.lock().unwrap_or_else(PoisonError::into_inner).push((name, error));
            None
        }
    });
    Ok((Box::new(read), total, refused))
}

/// The cases of this crate that are asked for.
fn own_cases(args: &Args, left_out: &mut Vec<LeftOut>) -> Result<Vec<Subject>> {
    if !args.only.is_empty() {
        return Ok(Vec::new());
    }
    if args.quick {
        return Ok(sample::cases(left_out));
    }
    let wanted = |name: &str| args.case.as_ref().is_none_or(|text| name.contains(text));
    let subjects: Vec<Subject> = trifuse_testkit::cases::all().into_iter().filter(|case| wanted(case.name())).map(Subject::from).collect();
    match (&args.case, subjects.is_empty()) {
        (Some(text), true) => Err(Error::invalid("--case", "a part of a case's name", format!("{text:?}"))),
        _ => Ok(subjects),
    }
}

/// Which of the six tests are run.
fn numbers(args: &Args, left_out: &mut Vec<LeftOut>) -> Vec<u8> {
    match (&args.only[..], &args.vectors, &args.case) {
        ([], None, None) if args.quick => sample::tests(left_out),
        ([], None, None) => (1..=TESTS.len() as u8).collect(),
        (only, ..) => only.to_vec(),
    }
}

/// What the six tests run on.
fn samples() -> Result<Samples> {
    // The adapters of B bear names that A has too.
    let renamed = |adapter: trifuse::adapters::peft::LoraAdapter| trifuse::adapters::peft::LoraAdapter { name: format!("b_{}", adapter.name), ..adapter };
    let adapters = [samples::population("A")?, samples::population("B")?.into_iter().map(renamed).collect()].concat();
    Ok(Samples { adapters, prefix: samples::prefix()? })
}

/// A backend that is here, and how to start this program again on it.
type Here = (Ground, Option<Relaunch>);

/// The backends that are to be run, and those that are not here.
fn grounds(choice: &Choice, args: &Args) -> Result<(Vec<Here>, Vec<Absent>)> {
    let (mut here, mut absent) = (Vec::new(), Vec::new());
    for choice in choices(choice, args)? {
        match (Ground::open(&choice), &choice) {
            (Ok(ground), choice) => here.push((ground, relaunch(choice)?)),
            (Err(Error::NoBackend { reason, .. }), Choice::Named(backend, _)) => absent.push(Absent { backend, reason }),
            (Err(error), _) => return Err(error),
        }
    }
    if !here.is_empty() {
        return Ok((here, absent));
    }
    let reason = |absent: &Absent| format!("{}: {}", absent.backend, absent.reason);
    Err(match &absent[..] {
        [one] => Error::NoBackend { name: one.backend.into(), reason: one.reason.clone() },
        all => Error::NoBackend { name: "asked for".into(), reason: all.iter().map(reason).collect::<Vec<_>>().join("; ") },
    })
}

/// Every backend where none is named; case files run on one.
fn choices(choice: &Choice, args: &Args) -> Result<Vec<Choice>> {
    match (choice, &args.vectors) {
        (Choice::Auto, None) => Ok(NAMES.iter().map(|name| Choice::Named(name, 0)).collect()),
        (Choice::Auto, Some(_)) => choice.resolve().map(|(name, index, _)| vec![Choice::Named(name, index)]),
        (named, _) => Ok(vec![named.clone()]),
    }
}

/// This program again, on the same device, to run one case of test 3.
fn relaunch(choice: &Choice) -> Result<Option<Relaunch>> {
    let Choice::Named(backend, index) = choice else { return Ok(None) };
    let program = std::env::current_exe().map_err(Error::io("this program", "find"))?;
    let arguments = ["verify".into(), "--backend".into(), format!("{backend}:{index}").into(), "--launch".into()];
    Ok(Some(Relaunch { program, arguments: arguments.into() }))
}
