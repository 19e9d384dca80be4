//! Reports of benchmarks, ours and of peers: what is taken is compared, written as a page, and drawn.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use serde_json::Value;
use trifuse_cli::bench::compare::compare;
use trifuse_cli::bench::markdown;
use trifuse_cli::bench::stored::{Peers, Stored};

use super::super::mutate::{Rng, json, one};
use super::{Answer, Subject, refused};

#[path = "../../crates/cli/src/cli/bench/pictures/mod.rs"]
#[allow(dead_code, unused_imports, reason = "its tests run with the command's")]
mod pictures;

pub const REPORT: Subject = Subject { name: "report", sound: |rng: &mut Rng| one(rng, &REPORTS).clone(), change: json, parse: parse_report };
pub const PEERS: Subject = Subject { name: "peers", sound: |_: &mut Rng| FIRST_PEERS.clone(), change: json, parse: parse_peers };

/// Stored reports of three suites, a few shapes of each.
static REPORTS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let texts = [
        include_str!("../../examples/reports/attention.json"),
        include_str!("../../examples/reports/align.json"),
        include_str!("../../examples/reports/forward-pass.json"),
    ];
    texts.into_iter().zip([SHAPES, 2, 2]).map(|(text, shapes)| few(text, shapes)).collect()
});
static FIRST_PEERS: LazyLock<Vec<u8>> = LazyLock::new(|| few(include_str!("../../examples/reports/attention.peers.json"), SHAPES));

/// Shapes of a report: as many as a line of a picture needs.
const SHAPES: usize = 3;

/// Peers that are remembered, by the hash of what was read.
const REMEMBERED: usize = 1 << 16;

/// What stands beside a changed report, and beside changed peers.
static SOUND: LazyLock<(Stored, Peers)> = LazyLock::new(|| {
    let report = Stored::from_bytes("first.json".as_ref(), &REPORTS[0]).expect("a sound report");
    (report, Peers::from_bytes("peers.json".as_ref(), &FIRST_PEERS).expect("sound peers"))
});

/// The report's first shapes, and few samples of each.
fn few(text: &str, shapes: usize) -> Vec<u8> {
    let mut report: Value = serde_json::from_str(text).expect("a stored report");
    let results = report["results"].as_array_mut().expect("its results");
    results.truncate(shapes);
    for times in
        results.iter_mut().filter_map(Value::as_object_mut).flat_map(|entry| entry.iter_mut().filter(|(key, _)| ["cold", "warm"].contains(&key.as_str())))
    {
        times.1["samples"].as_array_mut().map_or_else(|| (), |samples| samples.truncate(3));
    }
    report.to_string().into_bytes()
}

fn parse_report(text: &[u8]) -> Answer {
    let report = [Stored::from_bytes("fuzz.json".as_ref(), text).map_err(|error| refused(&error))?];
    let (other, peers) = &*SOUND;
    let peers = std::slice::from_ref(peers);
    let _ = markdown::page(&report[0], peers);
    for (before, after) in [(&report[0], &report[0]), (other, &report[0]), (&report[0], other)] {
        let _ = compare(before, after, 0.05, false);
    }
    for (_, picture) in pictures::all(&report, peers).unwrap_or_default() {
        assert!(!picture.contains('\u{1b}'), "a picture does nothing to a terminal");
    }
    Ok(())
}

fn parse_peers(text: &[u8]) -> Answer {
    let peers = [Peers::from_bytes("fuzz.json".as_ref(), text).map_err(|error| refused(&error))?];
    // Most changes are of what is not read.
    if again(&peers) {
        return Ok(());
    }
    let report = std::slice::from_ref(&SOUND.0);
    let _ = markdown::page(&report[0], &peers);
    // The other pictures of these reports show no peers: they would be the same again and again.
    let _ = pictures::length::picture(report, &peers);
    Ok(())
}

/// Whether the same was read from another input before, of those that are remembered.
fn again(read: &impl std::fmt::Debug) -> bool {
    thread_local!(static SEEN: RefCell<HashSet<u64>> = RefCell::default());
    let mut hasher = DefaultHasher::new();
    format!("{read:?}").hash(&mut hasher);
    SEEN.with_borrow_mut(|seen| {
        if seen.len() >= REMEMBERED {
            seen.clear();
        }
        !seen.insert(hasher.finish())
    })
}
