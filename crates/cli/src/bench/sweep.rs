//! What a sweep of a thousand sizes says, in a few lines and for a picture.

use std::collections::BTreeMap;

use super::stored::{Entry, Measured, Peers, Stored};
use super::units::seconds;

/// Fields that are swept, of products and of attention, and what they are called.
const FIELDS: [(&str, &str); 4] = [("tokens", "M"), ("d_out", "N"), ("d_in", "K"), ("head_dim", "head")];
/// Names of [`class`]es.
pub const CLASSES: [&str; 3] = ["multiple of 8", "even", "odd"];
/// Columns of [`summary`].
pub const HEAD: [&str; 10] = ["sweep", "class", "sizes", "cold", "over aligned", "greatest", "best peer", "peer, cold", "ratio", "least"];

/// The sizes of one axis, the others staying as they are.
pub struct Panel<'a> {
    /// The sizes that stay, in words.
    pub title: String,
    /// What the size that rises is called.
    pub axis: &'static str,
    /// Rising.
    pub points: Vec<Swept<'a>>,
}

/// A size that was measured.
#[derive(Clone, Copy)]
pub struct Swept<'a> {
    /// The size.
    pub size: u64,
    /// Shape of that size.
    pub entry: &'a Entry,
    /// Times of that size.
    pub measured: &'a Measured,
}

/// 0 for a multiple of 8, 1 for another even size, 2 for an odd one.
pub fn class(size: u64) -> usize {
    match size % 8 {
        0 => 0,
        2 | 4 | 6 => 1,
        _ => 2,
    }
}

/// The sweeps of a report: axes of which at least three sizes were measured.
pub fn panels(report: &Stored) -> Vec<Panel<'_>> {
    let mut panels: BTreeMap<(usize, String), Vec<Swept<'_>>> = BTreeMap::new();
    for (entry, measured) in report.results.iter().filter_map(|entry| Some((entry, entry.measured.as_ref()?))) {
        for (number, (field, _)) in FIELDS.into_iter().enumerate() {
            // A product of one row is of the sweeps of one row.
            if let Some(size) = entry.size(field).filter(|size| (field, *size) != ("tokens", 1)) {
                panels.entry((number, title(entry, field))).or_default().push(Swept { size, entry, measured });
            }
        }
    }
    // A shape that another size's sweep went through stands alone here.
    let panels = panels.into_iter().map(|((number, title), points)| Panel { title, axis: FIELDS[number].1, points });
    let mut panels: Vec<Panel<'_>> = panels.filter(|panel| panel.points.len() >= 3).collect();
    panels.iter_mut().for_each(|panel| panel.points.sort_by_key(|point| point.size));
    panels
}

fn title(entry: &Entry, swept: &str) -> String {
    if entry.op == "attention" {
        let size = |field| entry.size(field).unwrap_or_default();
        return format!("attention b{} h{} s{}", size("batch"), size("heads"), size("kv_len"));
    }
    let others = FIELDS.iter().filter(|(field, _)| *field != swept).filter_map(|(field, letter)| Some(format!("{letter} {}", entry.size(field)?)));
    // A packed size that is aligned stands for both forms; it is in the sweep of the one that names none.
    let form = if entry.more.contains_key("padding") { ", w padded" } else { "" };
    format!("product, {}{form}", others.collect::<Vec<_>>().join(", "))
}

/// The peer that took least on a shape, and its time.
pub fn best_peer<'a>(report: &Stored, peers: &'a [Peers], entry: &Entry) -> Option<(&'a str, f64)> {
    let told = peers.iter().flat_map(|peers| peers.of(report, entry)).filter_map(|peer| Some((peer.peer.as_str(), peer.cold.as_ref()?.median)));
    told.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// A row for each sweep and class of sizes: how many; the median of their cold times; their times over that of the next multiple
/// of 8, in the middle and the greatest; and, of the sizes that peers were measured on, the best peer's time and its ratio to ours.
pub fn summary(report: &Stored, peers: &[Peers]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for panel in panels(report) {
        for (number, name) in CLASSES.into_iter().enumerate() {
            let points: Vec<&Swept<'_>> = panel.points.iter().filter(|point| class(point.size) == number).collect();
            let over = points.iter().filter_map(|point| Some((point.entry.aligned.as_ref()?.slowdown, point.size)));
            let over: Vec<(f64, u64)> = over.collect();
            let beside: Vec<(&str, f64, f64, u64)> = points
                .iter()
                .filter_map(|point| best_peer(report, peers, point.entry).map(|(name, time)| (name, time, time / point.measured.cold.median, point.size)))
                .collect();
            let most = over.iter().max_by(|a, b| a.0.total_cmp(&b.0));
            let least = beside.iter().min_by(|a, b| a.2.total_cmp(&b.2));
            let none = || "–".to_owned();
            let times = |value: Option<f64>| value.map_or_else(none, |value| format!("{value:.2}"));
            let at = |value: f64, size: u64| format!("{value:.2} at {size}");
            if let Some(cold) = middle(points.iter().map(|point| point.measured.cold.median)) {
                rows.push(vec![
                    format!("{}: {}", panel.title, panel.axis),
                    name.into(),
                    points.len().to_string(),
                    seconds(cold),
                    times(middle(over.iter().map(|one| one.0))),
                    most.map_or_else(none, |&(value, size)| at(value, size)),
                    most_named(beside.iter().map(|one| one.0)).map_or_else(none, str::to_owned),
                    middle(beside.iter().map(|one| one.1)).map_or_else(none, seconds),
                    times(middle(beside.iter().map(|one| one.2))),
                    least.map_or_else(none, |&(_, _, value, size)| at(value, size)),
                ]);
            }
        }
    }
    rows
}

/// The upper one of the two in the middle, where there are two.
fn middle(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

fn most_named<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_classes() {
        assert_eq!([4096, 4098, 4100, 4102, 4097, 4103].map(class), [0, 1, 1, 1, 2, 2]);
        assert_eq!(middle([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(middle(std::iter::empty()), None);
        assert_eq!(most_named(["a", "b", "b"].into_iter()), Some("b"));
    }
}
