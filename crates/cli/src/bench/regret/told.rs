//! What the regret over many shapes is, in a few numbers.

use serde::Serialize;

use super::race::Raced;
use crate::bench::report::Environment;
use crate::bench::shape::{Point, Suite};
use trifuse::device::{Caps, Clock, Clocks};

/// The regret above which the choice is called a loss: what two runs of one kernel seldom differ by.
pub const LOSS: f64 = 1.03;
/// Shapes that are told by name.
const WORST: usize = 10;

/// Random shapes on one device: how much slower the choice is than the fastest that could compute them.
#[derive(Clone, Debug, Serialize)]
pub struct RegretReport {
    /// The suite whose operation it is.
    pub suite: Suite,
    /// The backend.
    pub backend: &'static str,
    /// The device.
    pub device: Caps,
    /// The program.
    pub environment: Environment,
    /// The device's clocks while it copied, before the first shape; nothing where its driver does not tell.
    pub clocks: Option<Clocks>,
    /// Whose clock.
    pub clock: Clock,
    /// What shapes were drawn from.
    pub seed: u64,
    /// Whether every shape was raced.
    pub complete: bool,
    /// Over all shapes that were.
    pub summary: Summary,
    /// The names of the shapes of the greatest regret, the greatest first.
    pub worst: Vec<Worst>,
    /// Every shape.
    pub shapes: Vec<Entry>,
}

/// One shape.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// The shape's name.
    pub name: String,
    /// The shape.
    #[serde(flatten)]
    pub point: Point,
    /// Times, where there are any.
    #[serde(flatten)]
    pub raced: Option<Raced>,
    /// Why there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether that is a fault: no shape has to be supported.
    #[serde(skip)]
    pub fault: bool,
}

/// Regrets of many shapes: the choice's time over the least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Shapes that were raced.
    pub raced: usize,
    /// The mean regret.
    pub mean_regret: f64,
    /// The greatest regret.
    pub max_regret: f64,
    /// The share of shapes whose regret is above [`LOSS`].
    pub losses: f64,
    /// The choice's times, all together, over the least ones: what a server that runs each shape as often loses.
    pub total_regret: f64,
    /// Answers that were wrong, and plans that failed.
    pub faults: usize,
}

/// A shape that lost much.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "as in the race")]
pub struct Worst {
    pub name: String,
    pub chosen: String,
    pub best: String,
    pub chosen_seconds: f64,
    pub best_seconds: f64,
    pub regret: f64,
}

impl Summary {
    pub(super) fn of(entries: &[Entry]) -> Self {
        let raced: Vec<&Raced> = entries.iter().filter_map(|entry| entry.raced.as_ref()).collect();
        let failed = raced.iter().flat_map(|raced| &raced.configs).filter(|tried| tried.why.is_some()).count();
        let faults = failed + entries.iter().filter(|entry| entry.fault).count();
        let count = raced.len() as f64;
        if raced.is_empty() {
            return Self { faults, ..Self::default() };
        }
        let sum = |of: fn(&Raced) -> f64| raced.iter().map(|raced| of(raced)).sum::<f64>();
        Self {
            raced: raced.len(),
            mean_regret: sum(|raced| raced.regret) / count,
            max_regret: raced.iter().map(|raced| raced.regret).fold(0.0, f64::max),
            losses: raced.iter().filter(|raced| raced.regret > LOSS).count() as f64 / count,
            total_regret: sum(|raced| raced.chosen_seconds) / sum(|raced| raced.best_seconds),
            faults,
        }
    }
}

/// The shapes of the greatest regret.
pub(super) fn worst(entries: &[Entry]) -> Vec<Worst> {
    let one = |entry: &Entry| {
        let Raced { chosen, best, chosen_seconds, best_seconds, regret, .. } = entry.raced.clone()?;
        Some(Worst { name: entry.name.clone(), chosen, best, chosen_seconds, best_seconds, regret })
    };
    let mut all: Vec<Worst> = entries.iter().filter_map(one).collect();
    all.sort_by(|a, b| b.regret.total_cmp(&a.regret));
    all.truncate(WORST);
    all
}

#[cfg(test)]
mod tests {
    use super::super::draw;
    use super::*;
    use trifuse::device::Kind;
    use trifuse::dtype::DType;

    fn entry(name: usize, times: Option<[f64; 2]>) -> Entry {
        let raced = times.map(|[chosen_seconds, best_seconds]| Raced {
            chosen: "a".into(),
            best: "b".into(),
            chosen_seconds,
            best_seconds,
            regret: chosen_seconds / best_seconds,
            configs: Vec::new(),
        });
        let point = draw::point(Suite::Linear, DType::F16, Kind::Cpu, 0, name as u64);
        Entry { name: name.to_string(), point, fault: raced.is_none(), raced, why: None }
    }

    #[test]
    fn regrets_are_counted_of_what_was_raced() {
        let entries = [entry(0, Some([1.0, 1.0])), entry(1, Some([3.0, 2.0])), entry(2, None), entry(3, Some([1.02, 1.0])), entry(4, Some([2.0, 1.0]))];
        let found = Summary::of(&entries);
        assert_eq!((found.raced, found.max_regret, found.losses, found.faults), (4, 2.0, 0.5, 1));
        assert!((found.mean_regret - 5.52 / 4.0).abs() < 1e-12 && (found.total_regret - 7.02 / 5.0).abs() < 1e-12, "{found:?}");
        assert_eq!(worst(&entries).iter().map(|worst| worst.name.as_str()).collect::<Vec<_>>(), ["4", "1", "3", "0"]);
        assert_eq!(Summary::of(&[]), Summary::default());
        assert_eq!(worst(&(0..30).map(|n| entry(n, Some([1.0 + n as f64, 1.0]))).collect::<Vec<_>>()).len(), WORST);
    }
}
