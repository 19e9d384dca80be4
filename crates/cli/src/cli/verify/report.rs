//! What `verify` tells: a line for each operation, what failed and what was skipped in full; a line for each case on demand.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use trifuse_cli::verify::{Check, Figure, Verdict};
use trifuse_testkit::tolerance::Metrics;

use crate::cli::Outcome;
use crate::cli::output::{Page, Report, Tone};

/// The result.
#[derive(Debug, Serialize)]
pub struct Verification {
    /// The backends that were run, in the order of each case's results.
    backends: Vec<Backend>,
    /// Backends that are not here, and why.
    absent: Vec<Absent>,
    cases: Vec<CaseRow>,
    /// What was not run because a sample was asked for.
    left_out: Vec<LeftOut>,
    totals: Totals,
    #[serde(skip)]
    verbose: bool,
}

#[derive(Debug, Serialize)]
pub struct Backend {
    pub backend: &'static str,
    pub device: String,
    /// The six tests; empty where only cases were asked for.
    pub tests: Vec<Check>,
}

#[derive(Debug, Serialize)]
pub struct Absent {
    pub backend: &'static str,
    pub reason: String,
}

#[derive(Debug, Serialize)]
pub struct LeftOut {
    pub what: String,
    /// How many cases or tests that is.
    pub count: usize,
    pub reason: String,
}

#[derive(Debug, Serialize)]
pub struct CaseRow {
    case: String,
    operation: &'static str,
    pub results: Vec<Cell>,
}

/// What came of one case on one backend.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum Cell {
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
    /// The file is no case.
    Refused {
        why: String,
    },
}

#[derive(Debug, Default, Serialize)]
struct Totals {
    passed: usize,
    failed: usize,
    skipped: usize,
    refused: usize,
    left_out: usize,
}

impl CaseRow {
    /// A case with its results, one a backend.
    pub fn new(case: &str, operation: &'static str, results: Vec<Cell>) -> Self {
        Self { case: case.into(), operation, results }
    }

    /// The case's name without its operation's.
    fn short(&self) -> &str {
        self.case.strip_prefix(self.operation).map_or(&self.case, |rest| rest.trim_start_matches('/'))
    }
}

impl Cell {
    /// A case that is right, with how near its outputs came.
    pub fn passed<'a>(outputs: impl Iterator<Item = &'a Metrics>) -> Self {
        let share = |metrics: &Metrics| if metrics.max_abs == 0.0 { 0.0 } else { metrics.max_abs / metrics.tolerance.max_abs };
        let worst = |most: (f64, f64), metrics: &Metrics| (most.0.max(share(metrics)), most.1.max(metrics.relative_l2));
        let (error_of_allowed, relative_l2) = outputs.fold((0.0, 0.0), worst);
        Self::Passed { error_of_allowed, relative_l2 }
    }

    fn word(&self, page: &Page) -> String {
        match self {
            Self::Passed { error_of_allowed, .. } => page.tone(Tone::Good, format!("ok {error_of_allowed:.2}")),
            Self::Failed { .. } => page.tone(Tone::Bad, "FAILED"),
            Self::Unsupported { .. } => page.tone(Tone::Warning, "skipped"),
            Self::Refused { .. } => page.tone(Tone::Bad, "refused"),
        }
    }
}

/// The cases of one operation on one backend.
#[derive(Default)]
struct Summary<'a> {
    passed: usize,
    failed: usize,
    skipped: usize,
    refused: usize,
    /// The greatest share of what is allowed, and its case.
    worst: Option<(f64, &'a str)>,
}

impl<'a> Summary<'a> {
    fn add(&mut self, case: &'a str, cell: &Cell) {
        match cell {
            Cell::Passed { error_of_allowed, .. } => {
                self.passed += 1;
                if self.worst.is_none_or(|(most, _)| *error_of_allowed > most) {
                    self.worst = Some((*error_of_allowed, case));
                }
            }
            Cell::Failed { .. } => self.failed += 1,
            Cell::Unsupported { .. } => self.skipped += 1,
            Cell::Refused { .. } => self.refused += 1,
        }
    }

    fn words(&self, page: &Page) -> String {
        let skipped = if self.skipped > 0 { format!(", {} skipped", self.skipped) } else { String::new() };
        match (self.failed, self.worst) {
            _ if self.refused > 0 => page.tone(Tone::Bad, format!("{} refused", self.refused)),
            (0, Some((most, case))) => page.tone(Tone::Good, format!("{} ok, worst {most:.2} ({case}){skipped}", self.passed)),
            (0, None) => page.tone(Tone::Warning, format!("{} skipped", self.skipped)),
            (failed, _) => page.tone(Tone::Bad, format!("{failed} FAILED, {} ok{skipped}", self.passed)),
        }
    }
}

impl Verification {
    pub fn new(backends: Vec<Backend>, absent: Vec<Absent>, cases: Vec<CaseRow>, left_out: Vec<LeftOut>, verbose: bool) -> Self {
        let mut totals = Totals { left_out: left_out.iter().map(|left| left.count).sum(), ..Totals::default() };
        for test in backends.iter().flat_map(|backend| &backend.tests) {
            match test.verdict {
                Verdict::Passed => totals.passed += 1,
                Verdict::Failed(_) => totals.failed += 1,
                Verdict::Skipped(_) => totals.skipped += 1,
            }
        }
        for cell in cases.iter().flat_map(|row| &row.results) {
            match cell {
                Cell::Passed { .. } => totals.passed += 1,
                Cell::Failed { .. } => totals.failed += 1,
                Cell::Unsupported { .. } => totals.skipped += 1,
                Cell::Refused { .. } => totals.refused += 1,
            }
        }
        Self { backends, absent, cases, left_out, totals, verbose }
    }

    /// How the command ends: a failure outweighs a file that is no case.
    pub fn outcome(&self) -> Outcome {
        match self.totals {
            Totals { failed: 1.., .. } => Outcome::Wrong,
            Totals { refused: 1.., .. } => Outcome::BadInput,
            _ => Outcome::Right,
        }
    }

    /// The results with the case and the backend of each.
    fn cells(&self) -> impl Iterator<Item = (&CaseRow, &'static str, &Cell)> {
        self.cases.iter().flat_map(|row| row.results.iter().zip(&self.backends).map(move |(cell, backend)| (row, backend.backend, cell)))
    }

    /// A line for each operation, in the order in which they come.
    fn operations(&self, page: &mut Page) -> fmt::Result {
        let mut operations: Vec<&str> = Vec::new();
        let mut summaries: BTreeMap<(&str, &str), Summary<'_>> = BTreeMap::new();
        for (row, backend, cell) in self.cells() {
            if !operations.contains(&row.operation) {
                operations.push(row.operation);
            }
            summaries.entry((row.operation, backend)).or_default().add(row.short(), cell);
        }
        let line = |operation: &&str| {
            let words = |backend: &Backend| summaries.get(&(operation, backend.backend)).map(|summary| summary.words(page)).unwrap_or_default();
            std::iter::once(operation.to_string()).chain(self.backends.iter().map(words)).collect::<Vec<_>>()
        };
        let lines: Vec<Vec<String>> = operations.iter().map(line).collect();
        self.table("operation", lines, page)
    }

    /// A line for each case.
    fn each_case(&self, page: &mut Page) -> fmt::Result {
        let line = |row: &CaseRow| std::iter::once(row.case.clone()).chain(row.results.iter().map(|cell| cell.word(page))).collect::<Vec<_>>();
        let lines: Vec<Vec<String>> = self.cases.iter().map(line).collect();
        self.table("case", lines, page)
    }

    fn table(&self, first: &str, lines: Vec<Vec<String>>, page: &mut Page) -> fmt::Result {
        let head: Vec<&str> = std::iter::once(first).chain(self.backends.iter().map(|backend| backend.backend)).collect();
        page.table(&head, &[], lines)?;
        page.line("beside ok: the greatest error as a share of what is allowed")
    }

    /// Failures in full; skipped cases by their reasons, or each.
    fn remarks(&self, page: &mut Page) -> fmt::Result {
        let mut skipped: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for (row, backend, cell) in self.cells() {
            match cell {
                Cell::Failed { why } => page.line(format!("{} {} on {backend}: {why}", page.tone(Tone::Bad, "FAILED"), row.case))?,
                Cell::Refused { why } => page.line(format!("{} {why}", page.tone(Tone::Bad, "refused:")))?,
                Cell::Unsupported { reason } => skipped.entry((backend, reason)).or_default().push(&row.case),
                Cell::Passed { .. } => {}
            }
        }
        for ((backend, reason), cases) in skipped {
            let which = match &cases[..] {
                [] => continue,
                all if self.verbose => all.join(", "),
                [one] => (*one).into(),
                [first, others @ ..] => format!("{first} and {} more", others.len()),
            };
            page.line(format!("{} {which} on {backend}: {reason}", page.tone(Tone::Warning, "skipped")))?;
        }
        Ok(())
    }

    /// A line for each test, and its figures on demand.
    fn tests(&self, backend: &Backend, page: &mut Page) -> fmt::Result {
        page.line("")?;
        page.line(format!("Tests of encoding and serving real adapters on {} ({})", backend.backend, backend.device))?;
        for test in &backend.tests {
            let verdict = match &test.verdict {
                Verdict::Passed => page.tone(Tone::Good, "passed"),
                Verdict::Failed(why) => format!("{}: {why}", page.tone(Tone::Bad, "FAILED")),
                Verdict::Skipped(why) => format!("{}: {why}", page.tone(Tone::Warning, "skipped")),
            };
            page.line(format!("  {} {}: {verdict}", test.number, test.name))?;
            for Figure { name, value, bound } in test.figures.iter().filter(|_| self.verbose) {
                let bound = bound.as_deref().map(|bound| format!("  ({bound})")).unwrap_or_default();
                page.line(format!("      {name:<72} {:>12}{bound}", number(*value)))?;
            }
        }
        Ok(())
    }
}

/// Counts without decimals, what is far from one by its exponent.
fn number(value: f64) -> String {
    match value.abs() {
        size if value.fract() == 0.0 && size < 1e15 => format!("{value}"),
        size if (1e-3..1e6).contains(&size) => format!("{value:.6}"),
        _ => format!("{value:.4e}"),
    }
}

impl Report for Verification {
    fn page(&self, page: &mut Page) -> fmt::Result {
        if !self.cases.is_empty() {
            if self.verbose {
                self.each_case(page)?
            } else {
                self.operations(page)?
            }
            self.remarks(page)?;
        }
        for backend in self.backends.iter().filter(|backend| !backend.tests.is_empty()) {
            self.tests(backend, page)?;
        }
        page.line("")?;
        for Absent { backend, reason } in &self.absent {
            page.line(format!("skipped backend {backend}: {reason}"))?;
        }
        for LeftOut { what, reason, .. } in &self.left_out {
            page.line(format!("left out {what}: {reason}"))?;
        }
        let Totals { passed, failed, skipped, refused, left_out } = self.totals;
        let mut rest = if refused > 0 { format!(", {refused} refused") } else { String::new() };
        if left_out > 0 {
            rest += &format!(", {left_out} left out");
        }
        page.line(format!("{passed} passed, {failed} failed, {skipped} skipped{rest}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, operation: &'static str, cell: Cell) -> CaseRow {
        CaseRow { case: case.into(), operation, results: vec![cell] }
    }

    fn page(cases: Vec<CaseRow>, verbose: bool) -> String {
        let backends = vec![Backend { backend: "cpu", device: "a processor".into(), tests: Vec::new() }];
        let left_out = vec![LeftOut { what: "3 of 9 cases".into(), count: 3, reason: "asked".into() }];
        let report = Verification::new(backends, Vec::new(), cases, left_out, verbose);
        let mut page = Page::default();
        assert_eq!(report.page(&mut page), Ok(()));
        page.text().to_owned()
    }

    #[test]
    fn an_operation_has_one_line_with_its_worst_case() {
        let ok = |error_of_allowed| Cell::Passed { error_of_allowed, relative_l2: 0.0 };
        let skip = || Cell::Unsupported { reason: "too wide".into() };
        let cases = vec![
            row("linear/a", "linear", ok(0.25)),
            row("linear/b", "linear", ok(0.5)),
            row("linear/c", "linear", skip()),
            row("linear/d", "linear", skip()),
            row("attention/e", "attention", Cell::Failed { why: "element 3".into() }),
        ];
        let text = page(cases, false);
        assert!(text.contains("2 ok, worst 0.50 (b), 2 skipped"), "{text}");
        assert!(text.contains("1 FAILED, 0 ok") && text.contains("FAILED attention/e on cpu: element 3"), "{text}");
        assert!(text.contains("skipped linear/c and 1 more on cpu: too wide"), "{text}");
        assert!(text.contains("left out 3 of 9 cases: asked") && text.ends_with("2 passed, 1 failed, 2 skipped, 3 left out\n"), "{text}");
        assert!(!text.contains("0.25"), "{text}");
    }

    #[test]
    fn verbose_has_a_line_for_each_case() {
        let ok = |error_of_allowed| Cell::Passed { error_of_allowed, relative_l2: 0.0 };
        let text = page(vec![row("linear/a", "linear", ok(0.25)), row("linear/b", "linear", ok(0.5))], true);
        assert!(text.contains("linear/a") && text.contains("ok 0.25") && text.contains("linear/b"), "{text}");
    }

    #[test]
    fn figures_read_well() {
        assert_eq!([24.0, 0.995, 3.2e-7, 1.5e9].map(number), ["24", "0.995000", "3.2000e-7", "1500000000"]);
    }
}
