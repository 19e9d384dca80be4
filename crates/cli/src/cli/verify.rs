//! `verify`: the table of every case on every backend and the six tests of the method; or case files from outside.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use trifuse::backend::Backend;
use trifuse::backends::{Choice, NAMES, Visit};
use trifuse::session::Session;
use trifuse::{Error, Result};
use trifuse_cli::verify::{Check, NAMES as TESTS, Relaunch, Samples, Verdict, launch, run as run_test};
use trifuse_testkit::casefile;
use trifuse_testkit::cases::all;
use trifuse_testkit::conformance::{Mode, Outcome as Ran, Subject, run_case};

use super::output::{Output, Page, Report, Tone};
use super::progress::Progress;
use super::{Outcome, samples};

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
    /// Run one case of test 3, `VARIANT/CASE`, and nothing else: what that test starts under a profiler
    #[arg(long, value_name = "CASE", hide = true, conflicts_with_all = ["vectors", "case", "only"])]
    pub launch: Option<String>,
}

/// The result.
#[derive(Debug, Serialize)]
struct Verification {
    /// The backends that were run, in the order of each case's results.
    backends: Vec<Ground>,
    /// Backends that are not here, and why.
    absent: Vec<Absent>,
    cases: Vec<CaseRow>,
    totals: Totals,
}

#[derive(Debug, Serialize)]
struct Ground {
    backend: &'static str,
    device: String,
    /// The six tests; empty where only cases were asked for.
    tests: Vec<Check>,
}

#[derive(Debug, Serialize)]
struct Absent {
    backend: &'static str,
    reason: String,
}

#[derive(Debug, Serialize)]
struct CaseRow {
    case: String,
    results: Vec<Cell>,
}

/// What came of one case on one backend.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "status")]
enum Cell {
    Passed {
        /// The greatest error of any output, as a share of what is allowed.
        error_of_allowed: f64,
        relative_l2: f64,
    },
    Failed {
        why: String,
    },
    Unsupported {
        reason: String,
    },
}

#[derive(Debug, Default, Serialize)]
struct Totals {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// Runs, compares and prints a row a case.
pub fn run(args: &Args, choice: &Choice, output: &Output) -> Result<Outcome> {
    if let Some(what) = &args.launch {
        choice.open(Launch(what))?;
        return Ok(Outcome::Right);
    }
    let subjects = subjects(args)?;
    let numbers = match (&args.only[..], &args.vectors, &args.case) {
        ([], None, None) => (1..=TESTS.len() as u8).collect(),
        (only, ..) => only.to_vec(),
    };
    let samples = if !numbers.is_empty() {
        let adapters = [samples::population("A")?, samples::population("B")?.into_iter().map(renamed).collect()].concat();
        Some(Samples { adapters, prefix: samples::prefix()? })
    } else {
        None
    };
    let (mut backends, mut absent, mut columns) = (Vec::new(), Vec::new(), Vec::new());
    for choice in choices(choice, args)? {
        let progress = Progress::new(output, "verify", (subjects.len() + numbers.len()) as u64);
        let relaunch = relaunch(&choice)?;
        match choice.open(Work { subjects: &subjects, samples: samples.as_ref(), numbers: &numbers, relaunch: relaunch.as_ref(), progress: &progress }) {
            Ok((ground, cells)) => {
                backends.push(ground);
                columns.push(cells);
            }
            Err(Error::NoBackend { reason, .. }) => {
                if let Choice::Named(backend, _) = choice {
                    absent.push(Absent { backend, reason });
                }
            }
            Err(error) => return Err(error),
        }
    }
    if backends.is_empty() {
        let reason = |absent: &Absent| format!("{}: {}", absent.backend, absent.reason);
        return Err(match &absent[..] {
            [one] => Error::NoBackend { name: one.backend.into(), reason: one.reason.clone() },
            all => Error::NoBackend { name: "asked for".into(), reason: all.iter().map(reason).collect::<Vec<_>>().join("; ") },
        });
    }
    let cases = subjects
        .iter()
        .enumerate()
        .map(|(row, subject)| CaseRow { case: subject.name().into(), results: columns.iter().map(|column| column[row].clone()).collect() });
    let mut report = Verification { backends, absent, cases: cases.collect(), totals: Totals::default() };
    report.count();
    output.report(&report)?;
    Ok(if report.totals.failed == 0 { Outcome::Right } else { Outcome::Wrong })
}

/// The adapters of B bear names that A has too.
fn renamed(adapter: trifuse::adapters::peft::LoraAdapter) -> trifuse::adapters::peft::LoraAdapter {
    trifuse::adapters::peft::LoraAdapter { name: format!("b_{}", adapter.name), ..adapter }
}

/// The cases, from this crate or from files.
fn subjects(args: &Args) -> Result<Vec<Subject>> {
    if !args.only.is_empty() {
        return Ok(Vec::new());
    }
    let Some(folder) = &args.vectors else {
        let wanted = |name: &str| args.case.as_ref().is_none_or(|text| name.contains(text));
        let subjects: Vec<Subject> = all().into_iter().filter(|case| wanted(case.name())).map(Subject::from).collect();
        return match (&args.case, subjects.is_empty()) {
            (Some(text), true) => Err(Error::invalid("--case", "a part of a case's name", format!("{text:?}"))),
            _ => Ok(subjects),
        };
    };
    casefile::list(folder)?.iter().map(|path| casefile::read(path).map(Subject::from)).collect()
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

/// One case of test 3.
struct Launch<'a>(&'a str);

impl Visit for Launch<'_> {
    type Out = ();

    fn visit<B: Backend>(self, backend: B) -> Result<()> {
        launch(&mut Session::new(Arc::new(backend))?, self.0)
    }
}

/// The work on one backend.
struct Work<'a> {
    subjects: &'a [Subject],
    samples: Option<&'a Samples>,
    /// The tests to run.
    numbers: &'a [u8],
    relaunch: Option<&'a Relaunch>,
    progress: &'a Progress,
}

impl Visit for Work<'_> {
    type Out = (Ground, Vec<Cell>);

    fn visit<B: Backend>(self, backend: B) -> Result<Self::Out> {
        let mut session = Session::new(Arc::new(backend))?;
        let mut cells = Vec::with_capacity(self.subjects.len());
        for subject in self.subjects {
            self.progress.now(format!("{} {}", B::NAME, subject.name()));
            cells.push(cell(run_case(&mut session, subject, None, Mode::Direct)));
            self.progress.step();
        }
        let mut tests = Vec::new();
        if let Some(samples) = self.samples {
            for &number in self.numbers {
                let name = TESTS[usize::from(number) - 1];
                self.progress.now(format!("{} {name}", B::NAME));
                let failed = |error: Error| Check { number, name, verdict: Verdict::Failed(error.to_string()), figures: Vec::new() };
                tests.push(run_test(number, &mut session, samples, self.relaunch).unwrap_or_else(failed));
                self.progress.step();
            }
        }
        Ok((Ground { backend: B::NAME, device: session.caps().name.clone(), tests }, cells))
    }
}

fn cell(ran: Result<Ran>) -> Cell {
    match ran {
        Ok(Ran::Passed(outputs)) => {
            let worst = |value: &dyn Fn(&trifuse_testkit::tolerance::Metrics) -> f64| outputs.iter().map(|(_, metrics)| value(metrics)).fold(0.0, f64::max);
            let share = |metrics: &trifuse_testkit::tolerance::Metrics| if metrics.max_abs == 0.0 { 0.0 } else { metrics.max_abs / metrics.tolerance.max_abs };
            Cell::Passed { error_of_allowed: worst(&share), relative_l2: worst(&|metrics| metrics.relative_l2) }
        }
        Ok(Ran::Failed { why }) => Cell::Failed { why },
        Ok(Ran::Unsupported { reason }) => Cell::Unsupported { reason },
        Err(error) => Cell::Failed { why: error.to_string() },
    }
}

impl Verification {
    fn count(&mut self) {
        let verdicts = self.backends.iter().flat_map(|ground| &ground.tests).map(|test| match test.verdict {
            Verdict::Passed => (1, 0, 0),
            Verdict::Failed(_) => (0, 1, 0),
            Verdict::Skipped(_) => (0, 0, 1),
        });
        let cells = self.cases.iter().flat_map(|row| &row.results).map(|cell| match cell {
            Cell::Passed { .. } => (1, 0, 0),
            Cell::Failed { .. } => (0, 1, 0),
            Cell::Unsupported { .. } => (0, 0, 1),
        });
        let (passed, failed, skipped) = verdicts.chain(cells).fold((0, 0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2));
        self.totals = Totals { passed, failed, skipped };
    }
}

impl Report for Verification {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let mut head = vec!["case"];
        head.extend(self.backends.iter().map(|ground| ground.backend));
        let rows = self.cases.iter().map(|row| {
            let mut cells = vec![row.case.clone()];
            cells.extend(row.results.iter().map(|cell| match cell {
                Cell::Passed { error_of_allowed, .. } => page.tone(Tone::Good, format!("ok {error_of_allowed:.2}")),
                Cell::Failed { .. } => page.tone(Tone::Bad, "FAILED"),
                Cell::Unsupported { .. } => page.tone(Tone::Warning, "skipped"),
            }));
            cells
        });
        let rows: Vec<Vec<String>> = rows.collect();
        if !rows.is_empty() {
            page.table(&head, &[], rows)?;
            page.line("ok: the greatest error as a share of what is allowed")?;
        }
        for row in &self.cases {
            for (cell, ground) in row.results.iter().zip(&self.backends) {
                match cell {
                    Cell::Failed { why } => page.line(format!("FAILED {} on {}: {why}", row.case, ground.backend))?,
                    Cell::Unsupported { reason } => page.line(format!("skipped {} on {}: {reason}", row.case, ground.backend))?,
                    Cell::Passed { .. } => {}
                }
            }
        }
        for ground in &self.backends {
            if !ground.tests.is_empty() {
                page.line("")?;
                page.line(format!("The six tests on {} ({})", ground.backend, ground.device))?;
            }
            for test in &ground.tests {
                let verdict = match &test.verdict {
                    Verdict::Passed => page.tone(Tone::Good, "passed"),
                    Verdict::Failed(why) => format!("{}: {why}", page.tone(Tone::Bad, "FAILED")),
                    Verdict::Skipped(why) => format!("{}: {why}", page.tone(Tone::Warning, "skipped")),
                };
                page.line(format!("  {} {}: {verdict}", test.number, test.name))?;
                for figure in &test.figures {
                    let bound = figure.bound.as_deref().map(|bound| format!("  ({bound})")).unwrap_or_default();
                    page.line(format!("      {:<72} {:>12.6}{bound}", figure.name, figure.value))?;
                }
            }
        }
        page.line("")?;
        for absent in &self.absent {
            page.line(format!("skipped backend {}: {}", absent.backend, absent.reason))?;
        }
        let Totals { passed, failed, skipped } = self.totals;
        page.line(format!("{passed} passed, {failed} failed, {skipped} skipped"))
    }
}
