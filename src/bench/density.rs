//! Block-sparse attention by the share of the blocks, against all of them by the dense kernel.

use serde_json::Value;

use super::layout::Layout;
use super::markdown::seconds;
use super::pattern::Blocks;
use super::shape::Shape;
use super::stored::{Entry, Measured, Stored};

/// Sizes of the sweeps over shares and layouts.
const HEADS: u64 = 8;
const HEAD_DIM: u64 = 128;
const LENGTH: u64 = 8192;

/// The dense shape, shares of random blocks, other layouts, smaller blocks, and longer sequences.
pub(super) fn shapes() -> Vec<Shape> {
    let shape =
        |length, blocks| Shape::Attention { batch: 1, heads: HEADS, kv_heads: HEADS, q_len: length, kv_len: length, head_dim: HEAD_DIM, causal: false, blocks };
    let listed = |size, percent, layout, length| shape(length, Some(Blocks { size, one_in: 1, count: None, percent: Some(percent), layout }));
    let random = [5, 10, 20, 35, 50, 70, 85, 100].map(|percent| listed(128, percent, Layout::Random, LENGTH));
    let others = [Layout::Banded, Layout::Clustered, Layout::PowerLaw].into_iter();
    let others = others.flat_map(|layout| [5, 20, 50].map(|percent| listed(128, percent, layout, LENGTH)));
    let small = [Layout::Random, Layout::Banded].into_iter().flat_map(|layout| [5, 20, 50].map(|percent| listed(64, percent, layout, LENGTH)));
    let lengths = [4096, 16_384, 32_768, 65_536, 131_072].map(|length| listed(128, 10, Layout::Random, length));
    std::iter::once(shape(LENGTH, None)).chain(random).chain(others).chain(small).chain(lengths).collect()
}

/// For each dense shape of a report, the share of the blocks from which the dense kernel is the faster one.
pub(super) fn break_even(report: &Stored) -> Vec<String> {
    let dense = report.results.iter().filter_map(|entry| entry.measured.as_ref().filter(|_| is_dense(entry)).map(|measured| (entry, measured)));
    dense.flat_map(|(entry, measured)| against(report, entry, measured)).collect()
}

fn is_dense(entry: &Entry) -> bool {
    entry.op == "attention" && entry.more.get("blocks").is_none_or(Value::is_null)
}

/// One line for each layout and size of blocks.
fn against(report: &Stored, dense: &Entry, by_dense: &Measured) -> Vec<String> {
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
    let limit = by_dense.cold.median;
    kinds.into_iter().map(|(kind, points)| format!("{}, {}: {kind} are as fast {}", dense.name, seconds(limit), crossing(points, limit))).collect()
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
        let mut names: Vec<String> = shapes().iter().map(Shape::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), shapes().len(), "{names:?}");
        assert!(names.contains(&"20 % power-law blocks of 128 b1 h8 d128 s8192".to_owned()), "{names:?}");
    }
}
