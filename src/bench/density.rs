//! Block-sparse attention by the share of the blocks, against all of them by the dense kernel.

use serde_json::Value;

use super::layout::Layout;
use super::markdown::seconds;
use super::pattern::Blocks;
use super::shape::Shape;
use super::stored::{Entry, Stored};
use crate::device::Kind;

/// Heads, elements of a head and length of the sweeps over shares and layouts.
const SIZES: [u64; 3] = [8, 128, 8192];
/// The same on a processor.
const SMALL: [u64; 3] = [2, 64, 1024];
/// Every layout but the one that the sweep over shares has.
const OTHERS: [Layout; 3] = [Layout::Banded, Layout::Clustered, Layout::PowerLaw];

/// The dense shape, shares of random blocks, other layouts, smaller blocks, and longer sequences.
pub(super) fn shapes(kind: Kind) -> Vec<Shape> {
    let small = kind == Kind::Cpu;
    let [heads, head_dim, usual] = if small { SMALL } else { SIZES };
    let shape =
        |length, blocks| Shape::Attention { batch: 1, heads, kv_heads: heads, q_len: length, kv_len: length, head_dim, causal: false, blocks, layers: 1 };
    let listed = |size, percent, layout, length| shape(length, Some(Blocks { size, one_in: 1, count: None, percent: Some(percent), layout, map: false }));
    let dense = std::iter::once(shape(usual, None));
    if small {
        let random = [25, 50, 100].map(|percent| listed(128, percent, Layout::Random, usual));
        return dense.chain(random).chain(OTHERS.map(|layout| listed(128, 50, layout, usual))).collect();
    }
    let random = [5, 10, 20, 35, 50, 70, 85, 100].map(|percent| listed(128, percent, Layout::Random, usual));
    let others = OTHERS.into_iter().flat_map(|layout| [5, 20, 50].map(|percent| listed(128, percent, layout, usual)));
    let narrow = [Layout::Random, Layout::Banded].into_iter().flat_map(|layout| [5, 20, 50].map(|percent| listed(64, percent, layout, usual)));
    let lengths = [4096, 16_384, 32_768, 65_536, 131_072].map(|length| listed(128, 10, Layout::Random, length));
    dense.chain(random).chain(others).chain(narrow).chain(lengths).collect()
}

/// Shares of the blocks of one dense shape, and the times they took.
pub struct Shares<'a> {
    /// The shape with all of its blocks, by the dense kernel.
    pub dense: &'a Entry,
    /// What that took in the middle, cold.
    pub seconds: f64,
    /// By layout and size of blocks: shares and seconds, rising.
    pub kinds: Vec<(String, Vec<(f64, f64)>)>,
}

/// The shares that a report holds, for each dense shape.
pub fn shares(report: &Stored) -> Vec<Shares<'_>> {
    let dense = report.results.iter().filter_map(|entry| entry.measured.as_ref().filter(|_| is_dense(entry)).map(|measured| (entry, measured.cold.median)));
    let all = dense.map(|(entry, seconds)| Shares { dense: entry, seconds, kinds: kinds(report, entry) });
    all.filter(|shares| !shares.kinds.is_empty()).collect()
}

/// For each dense shape of a report, the share of the blocks from which the dense kernel is the faster one.
pub(super) fn break_even(report: &Stored) -> Vec<String> {
    let line = |name: &str, limit: f64, (kind, points): &(String, Vec<(f64, f64)>)| {
        format!("{name}, {}: {kind} are as fast {}", seconds(limit), crossing(points.clone(), limit))
    };
    shares(report).iter().flat_map(|shares| shares.kinds.iter().map(|kind| line(&shares.dense.name, shares.seconds, kind)).collect::<Vec<_>>()).collect()
}

fn is_dense(entry: &Entry) -> bool {
    entry.op == "attention" && entry.more.get("blocks").is_none_or(Value::is_null)
}

/// The sparse shapes of the sizes of a dense one, by layout and size of blocks.
fn kinds(report: &Stored, dense: &Entry) -> Vec<(String, Vec<(f64, f64)>)> {
    let sizes = |entry: &Entry| ["batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "causal"].map(|field| entry.more.get(field).cloned());
    let mut kinds: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for entry in report.results.iter().filter(|entry| sizes(entry) == sizes(dense)) {
        let (Some(measured), Some(blocks)) = (&entry.measured, entry.more.get("blocks").filter(|blocks| !blocks.is_null())) else { continue };
        let kind = format!("{} blocks of {}", blocks["layout"].as_str().unwrap_or_default(), blocks["size"]);
        let point = (measured.cost.executed_flops / measured.cost.dense_flops, measured.cold.median);
        match kinds.iter_mut().find(|(name, _)| *name == kind) {
            Some((_, points)) => points.push(point),
            None => kinds.push((kind, vec![point])),
        }
    }
    kinds.iter_mut().for_each(|(_, points)| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    kinds
}

/// At which share times reach `limit`, between two that were measured.
fn crossing(mut points: Vec<(f64, f64)>, limit: f64) -> String {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let between = points.windows(2).find(|pair| pair[0].1 <= limit && pair[1].1 > limit);
    match (between, points.first(), points.last()) {
        (Some(pair), ..) => format!("at {}", percent(pair[0].0 + (limit - pair[0].1) / (pair[1].1 - pair[0].1) * (pair[1].0 - pair[0].0))),
        (None, Some(first), _) if first.1 > limit => format!("below {}", percent(first.0)),
        (None, _, Some(last)) => format!("beyond {}", percent(last.0)),
        _ => "nowhere".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_found_between_two_that_were_measured() {
        let points = || vec![(0.5, 5.0), (0.1, 1.5), (1.0, 11.0)];
        assert_eq!(crossing(points(), 8.0), "at 75 %");
        assert_eq!(crossing(points(), 1.0), "below 10 %");
        assert_eq!(crossing(points(), 12.0), "beyond 100 %");
    }

    #[test]
    fn every_shape_of_the_sweep_has_a_name_of_its_own() {
        let mut names: Vec<String> = shapes(Kind::Discrete).iter().map(Shape::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), shapes(Kind::Discrete).len(), "{names:?}");
        assert!(names.contains(&"20 % power-law blocks of 128 b1 h8 d128 s8192".to_owned()), "{names:?}");
    }
}
