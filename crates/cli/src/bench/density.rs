//! Block-sparse attention by the share of the blocks, against all of them by the dense kernel.

use serde_json::Value;

use super::stored::{Entry, Stored};
use super::units::seconds;

/// Shares of the blocks of one dense shape, and the times they took.
pub struct Shares<'a> {
    /// The shape with all of its blocks, by the dense kernel.
    pub dense: &'a Entry,
    /// What that took in the middle, cold.
    pub seconds: f64,
    /// Shares and seconds, rising, by layout and size of blocks.
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
}
