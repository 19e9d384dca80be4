//! Comparisons of reports that are made up here.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use trifuse_testkit::cases::Draw;

fn times(samples: &[f64]) -> Value {
    let median = {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    json!({
        "mean": median, "std": 0.0, "min": median, "max": median, "median": median, "p95": median, "p99": median,
        "median_interval95": [median, median], "samples": samples,
    })
}

fn entry(name: &str, samples: &[f64]) -> Value {
    json!({
        "name": name, "op": "linear", "dtype": "f16", "status": "measured", "tokens": 16, "variant": "tile", "launches": 1,
        "launch_seconds": 1e-3, "launch_host_seconds": 1e-6,
        "checked": { "elements": 1, "of": 1, "error_of_allowed": 0.5, "relative_l2": 1e-4 },
        "cost": { "executed_flops": 1.0, "useful_flops": 1.0, "dense_flops": 1.0, "bytes": 1.0 },
        "cold": times(samples), "warm": times(&[1.0; 50]),
        "rates": { "executed_flops": 1.0, "useful_flops": 1.0, "dense_equivalent_flops": 1.0, "bytes": 1.0, "share_of_ceiling": 1.0, "bound": "memory" },
        "flags": [],
    })
}

fn report(results: Vec<Value>) -> Value {
    json!({
        "suite": "linear", "backend": "cuda",
        "device": { "name": "H200", "driver": "CUDA 13.0", "kind": "discrete", "units": 132, "clock_hz": 1_980_000_000u64 },
        "environment": { "version": "0.1.0", "revision": "abc", "optimised": true, "platform": "linux x86_64", "nvrtc": "13.0" },
        "timing": { "warmup": 10, "iterations": 50, "limit_seconds": 10.0, "clock": "device", "flush_bytes": 1 },
        "ceilings": { "copy_bytes_per_second": 4e12 },
        "results": results,
    })
}

fn stored(value: Value) -> Stored {
    Stored::from_value(value).unwrap()
}

/// Times about `middle` with a spread of 2 %, and a few far above.
fn runs(middle: f64, count: usize, seed: &str) -> Vec<f64> {
    let mut draw = Draw::seeded(seed);
    (0..count).map(|number| middle * (1.0 + 0.02 * draw.gaussian()) * if number % 20 == 7 { 3.0 } else { 1.0 }).collect()
}

fn verdict(before: f64, after: f64, count: usize) -> Verdict {
    let [first, second] = [(before, "first"), (after, "second")].map(|(middle, seed)| stored(report(vec![entry("m16", &runs(middle, count, seed))])));
    compare(&first, &second, 0.05, false).unwrap().shapes[0].verdict
}

#[test]
fn a_verdict_needs_a_difference_and_runs_enough() {
    assert_eq!(verdict(1e-3, 1.2e-3, 50), Verdict::Regression);
    assert_eq!(verdict(1e-3, 1.04e-3, 50), Verdict::Slower);
    assert_eq!(verdict(1e-3, 1e-3, 50), Verdict::Same);
    assert_eq!(verdict(1e-3, 0.9e-3, 50), Verdict::Faster);
    assert_eq!(verdict(1e-3, 2e-3, 5), Verdict::Undecided);
    // Runs so far apart that neither can be excluded.
    let spread: Vec<f64> = (0..50).map(|run| 1e-3 * (1.0 + f64::from(run) / 25.0)).collect();
    let [first, second] = [(); 2].map(|()| stored(report(vec![entry("wide", &spread)])));
    assert_eq!(compare(&first, &second, 0.05, false).unwrap().shapes[0].verdict, Verdict::Undecided);
    assert_eq!(compare(&first, &second, 1.0, false).unwrap().shapes[0].verdict, Verdict::Same);
}

#[test]
fn chance_names_no_regression() {
    // A thousand reports in which nothing changed: at 95 % with no threshold, at most fifty may differ; the interval is
    // wider than it has to be, so far fewer do.
    let differ = (0..1000).filter(|trial| {
        let [before, after] = ["a", "b"].map(|side| runs(1e-3, 50, &format!("{side}{trial}")));
        let intervals = [before, after].map(|samples| median_interval(&samples, 0.025).unwrap());
        intervals[1][0] > intervals[0][1] || intervals[1][1] < intervals[0][0]
    });
    assert!(differ.count() <= 20);
}

#[test]
fn the_interval_is_that_of_the_tables() {
    let samples: Vec<f64> = (1..=100).map(f64::from).collect();
    // Conover, Practical Nonparametric Statistics: 40 and 61 for n = 100 at 95 %.
    assert_eq!(median_interval(&samples, 0.05), Some([40.0, 61.0]));
    assert_eq!(median_interval(&samples[..6], 0.05), Some([1.0, 6.0]), "2 · 2⁻⁶ = 0.031");
    assert_eq!(median_interval(&samples[..5], 0.05), None, "2 · 2⁻⁵ = 0.063");
    assert_eq!(median_interval(&[], 0.05), None);
}

#[test]
fn times_with_the_hosts_part_are_marked() {
    let with = |flag: &str| {
        let mut entry = entry("m16", &[1.0; 50]);
        entry["flags"] = json!([flag]);
        let report = stored(report(vec![entry]));
        compare(&report, &report, 0.05, false).unwrap().shapes[0].host
    };
    assert!(with("host_clock") && with("launch_bound") && !with("noisy"));
}

#[test]
fn another_clock_is_told() {
    let at = |megahertz: u64| {
        let mut told = report(vec![entry("m16", &[1.0; 50])]);
        told["clocks"] = json!({ "multiprocessors_hz": megahertz * 1_000_000, "memory_hz": 3_201_000_000u64 });
        stored(told)
    };
    let warnings = |second: u64| compare(&at(1980), &at(second), 0.05, false).unwrap().warnings;
    assert_eq!(warnings(1965), Vec::<String>::new());
    assert!(warnings(1500).iter().any(|warning| warning.contains("0.76 of their clock")), "{:?}", warnings(1500));
}

#[test]
fn what_went_and_what_broke_is_named() {
    let first = stored(report(vec![entry("kept", &[1.0; 50]), entry("gone", &[1.0; 50]), entry("broken", &[1.0; 50])]));
    let wrong = json!({ "name": "broken", "op": "linear", "dtype": "f16", "status": "wrong", "why": "element 3" });
    let second = stored(report(vec![entry("kept", &[1.0; 50]), wrong, entry("new", &[1.0; 50])]));
    let compared = compare(&first, &second, 0.05, false).unwrap();
    let verdicts: Vec<Verdict> = compared.shapes.iter().map(|row| row.verdict).collect();
    assert_eq!(verdicts, [Verdict::Same, Verdict::Missing, Verdict::Broken, Verdict::New]);
    assert_eq!(compared.regressions, ["broken f16"]);
}

#[test]
fn reports_that_do_not_compare_are_refused_and_differences_told() {
    let own = || report(vec![entry("m16", &[1.0; 50])]);
    let with = |pointer: &str, value: Value| {
        let mut other = own();
        *other.pointer_mut(pointer).unwrap() = value;
        compare(&stored(own()), &stored(other), 0.05, false)
    };
    for (pointer, value) in [("/suite", json!("mlp")), ("/backend", json!("wgpu")), ("/device/name", json!("A100")), ("/environment/optimised", json!(false))] {
        assert!(with(pointer, value).is_err(), "{pointer}");
    }
    for (pointer, value, told) in [
        ("/device/driver", json!("CUDA 12.8"), "driver: CUDA 13.0, then CUDA 12.8"),
        ("/environment/nvrtc", json!(null), "NVRTC: 13.0, then none"),
        ("/ceilings/copy_bytes_per_second", json!(3e12), "0.75"),
    ] {
        let warnings = with(pointer, value).unwrap().warnings;
        assert!(warnings.len() == 1 && warnings[0].contains(told), "{warnings:?}");
    }
    assert!(with("/environment/revision", json!("def")).unwrap().warnings.is_empty());
}

#[test]
fn times_that_a_report_lacks_are_missed() {
    let mut lacking = entry("m16", &[1.0; 50]);
    lacking["cold"].as_object_mut().unwrap().remove("samples");
    assert!(Stored::from_value(report(vec![lacking])).is_err());
}
