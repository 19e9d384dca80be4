//! The tolerance of every case accepts the honest low-precision run, and refuses wrong answers: zeros, a missing tile,
//! an operand in the wrong order, outputs left as they were.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use trifuse::Result;
use trifuse_testkit::cases::{Case, Posed, Work, all};
use trifuse_testkit::oracle::{Define, Exact};
use trifuse_testkit::tolerance::{Expected, Metrics, expect, plain};

/// Outputs as a backend would give them, `None` for what it left alone.
type Outputs = Vec<Vec<Option<f64>>>;

/// How an output compares, as a backend would store it.
fn compared(expected: &Expected, found: &[Option<f64>]) -> Metrics {
    let stored = |value: f64| if expected.integers { value } else { expected.dtype.round(value) };
    let found: Vec<f64> = found.iter().map(|value| value.map_or(f64::NAN, stored)).collect();
    expected.tolerance.compare(&expected.elements, &found).unwrap()
}

/// Whether every output is within tolerance.
fn accepted(expected: &[Expected], found: &Outputs) -> bool {
    expected.iter().zip(found).all(|(expected, found)| compared(expected, found).accepted())
}

/// `expected` with the values that `change` gives, by output and element.
fn changed(expected: &[Expected], change: impl Fn(usize, usize, f64) -> f64) -> Outputs {
    let output = |(n, expected): (usize, &Expected)| expected.elements.iter().enumerate().map(|(i, value)| value.map(|value| change(n, i, value))).collect();
    expected.iter().enumerate().map(output).collect()
}

/// The answers with an operand in the wrong order, by the operand's name.
struct Disordered;

impl Work for Disordered {
    type Out = Result<Vec<(&'static str, Outputs)>>;

    fn on<O: Define>(self, Posed { op, host }: &Posed<O>) -> Self::Out {
        let run = |(name, host): (&'static str, O::Host)| Ok((name, op.evaluate(&host, Exact)?.into_iter().map(|output| output.elements).collect()));
        op.disordered(host).into_iter().map(run).collect()
    }
}

/// What is wrong with a case's tolerance, in words.
fn faults(case: &Case) -> Vec<String> {
    let mut faults = Vec::new();
    let problem = case.problem().unwrap();
    let expected = expect(&problem).unwrap();
    let (exact, honest) = (changed(&expected, |_, _, value| value), plain(&problem).unwrap());
    let honest: Outputs = honest.into_iter().map(|output| output.elements).collect();
    for (name, found) in [("the reference itself", &exact), ("the step by step run", &honest)] {
        if !accepted(&expected, found) {
            let metrics = expected.iter().zip(found).map(|(expected, found)| format!("{}: {}", expected.name, compared(expected, found)));
            faults.push(format!("refuses {name}: {}", metrics.collect::<Vec<_>>().join("; ")));
        }
    }
    let written = expected.iter().flat_map(|expected| &expected.elements).any(Option::is_some);
    if written && accepted(&expected, &changed(&expected, |_, _, _| f64::NAN)) {
        faults.push("accepts NaN".into());
    }

    let zero_in = |n: usize| accepted(&expected, &changed(&expected, |m, _, value| if m == n { 0.0 } else { value }));
    if zero_in(0) != case.zero_reason().is_some() {
        faults.push(format!("zeros: accepted {}, stated reason {:?}", zero_in(0), case.zero_reason()));
    }
    if case.zero_reason().is_some() {
        return faults;
    }
    // Each output by itself: a wrong one must not hide behind a right one.
    for (n, output) in expected.iter().enumerate() {
        if zero_in(n) {
            faults.push(format!("accepts zeros in {}", output.name));
        }
        let length = output.elements.len();
        let tile = (length / 16).max(16).min(length);
        for start in [0, (length - tile) / 2, length - tile] {
            let inside = |m: usize, i: usize| m == n && (start..start + tile).contains(&i);
            let something = output.elements[start..start + tile].iter().flatten().any(|&value| value != 0.0);
            if something && accepted(&expected, &changed(&expected, |m, i, value| if inside(m, i) { 0.0 } else { value })) {
                faults.push(format!("accepts zeros in elements {start}..{} of {length} of {}", start + tile, output.name));
            }
        }
    }
    let disordered = problem.with(Disordered).unwrap();
    for (name, found) in &disordered {
        if accepted(&expected, found) {
            faults.push(format!("accepts disorder: {name}"));
        }
    }
    if disordered.is_empty() != case.orderless_reason().is_some() {
        faults.push(format!("operands in the wrong order: {}, stated reason for none: {:?}", disordered.len(), case.orderless_reason()));
    }
    faults
}

/// A number that the environment sets.
fn setting(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

/// Every case; of all, every `TRIFUSE_SAMPLE`th from number `TRIFUSE_TURN` on, where that is set: `./check full` has all.
#[test]
fn every_case_accepts_the_honest_run_and_refuses_wrong_answers() {
    let (sample, turn) = (setting("TRIFUSE_SAMPLE").unwrap_or(1).max(1), setting("TRIFUSE_TURN").unwrap_or(0));
    let cases: Vec<_> = all().into_iter().enumerate().filter(|(number, _)| (number + turn).is_multiple_of(sample)).map(|(_, case)| case).collect();
    let (next, report) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |count| count.get()) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    report.lock().unwrap().extend(faults(case).into_iter().map(|fault| format!("{}: {fault}", case.name())));
                }
            });
        }
    });
    let report = report.into_inner().unwrap();
    assert!(!cases.is_empty() && report.is_empty(), "{} faults in {} cases:\n{}", report.len(), cases.len(), report.join("\n"));
}
