//! What a ledger says of one device and revision: which shape is next, and what was found.

use std::collections::BTreeMap;

use serde::Serialize;

use super::axes::Axis;
use super::ledger::{Against, Drawn, Line, Scope};
use super::options::Options;
use super::peer::Who;
use super::search::{Known, Step, narrow};
use crate::bench::rates::Ceilings;
use crate::bench::regret::LOSS;
use crate::bench::regret::draw::{Limits, work};
use crate::bench::report::{Environment, Timing};
use crate::bench::shape::{Point, Shape, Suite};
use trifuse::device::{Caps, Clocks, Kind};
use trifuse::dtype::DType;

/// The measured time over the predicted one, or that over the measured, above which a prediction is called wrong.
pub const OFF: f64 = 2.0;
/// Shapes that are told by name.
const WORST: usize = 10;

/// What a run found.
#[derive(Clone, Debug, Serialize)]
pub struct Hunted {
    /// The suites whose operations were measured.
    pub suites: Vec<Suite>,
    /// Element type of every operand.
    pub dtype: DType,
    /// The backend.
    pub backend: &'static str,
    /// The device.
    pub device: Caps,
    /// The program.
    pub environment: Environment,
    /// The device's clocks while it copied; nothing where its driver does not tell.
    pub clocks: Option<Clocks>,
    /// How shapes were timed.
    pub timing: Timing,
    /// Seconds of a launch that does next to nothing.
    pub launch_seconds: f64,
    /// What the device reaches: predictions are made of it.
    pub ceilings: Ceilings,
    /// What shapes were drawn from.
    pub seed: u64,
    /// What times are held against.
    pub against: Against,
    /// Who that is, where it is another program that answered.
    pub peer: Option<Who>,
    /// Seconds that it had.
    pub budget_seconds: f64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Whether nobody ended it before its time.
    pub complete: bool,
    /// Lines that this run added to the ledger.
    pub measured: usize,
    /// Shapes of this device, revision, type and peer that the ledger holds now.
    pub known: usize,
    /// Lines of others.
    pub of_others: usize,
    /// Shapes whose ratio is above that of a loss.
    pub lost: usize,
    /// The shapes of the greatest ratios.
    pub worst: Vec<Line>,
    /// Where losses and wrong predictions end.
    pub edges: Vec<Edge>,
    /// The shapes whose predictions are the furthest off.
    pub predictions: Vec<Line>,
    /// Wrong answers, and what failed.
    pub faults: Vec<Fault>,
}

/// Two sizes between which a loss or a wrong prediction ends.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Edge {
    /// The shape that has it.
    pub name: String,
    /// What is wrong there.
    pub of: Ill,
    /// How bad it is there: the ratio, or the measured time over the predicted one.
    pub times: f64,
    /// The size that was moved.
    pub axis: Axis,
    /// The last size that has it.
    pub ill: u64,
    /// The first that has not.
    pub well: u64,
}

/// What may be bad about a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ill {
    /// It is longer than that of what it is held against.
    Loss,
    /// It is not what the operation's cost foretells.
    Prediction,
}

impl Ill {
    /// How bad it is: the ratio, or how far a prediction is off, whichever way. Nothing where there is nothing to hold it against.
    fn times(self, line: &Line) -> Option<f64> {
        match self {
            Self::Loss => line.ratio,
            Self::Prediction => line.off().map(|off| off.max(1.0 / off)),
        }
    }

    /// Above which it is called so.
    const fn limit(self) -> f64 {
        match self {
            Self::Loss => LOSS,
            Self::Prediction => OFF,
        }
    }
}

/// A fault of a shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fault {
    /// The shape's name.
    pub name: String,
    /// What is wrong.
    pub why: String,
}

/// What is to be measured next.
#[derive(Clone, Debug, PartialEq)]
pub enum Of {
    /// A shape that is drawn.
    Drawn(u64),
    /// One that is known, or was asked for.
    Again(Point, Option<Drawn>),
    /// One near the shape of that name.
    Near(Point, String),
}

/// The lines of a ledger that may be compared.
pub struct Books<'a> {
    /// The last line of each shape of this revision.
    own: BTreeMap<&'a str, &'a Line>,
    /// The same of other revisions on this device.
    older: BTreeMap<&'a str, &'a Line>,
    of_others: usize,
    all: Vec<&'a Line>,
}

impl<'a> Books<'a> {
    /// Those of `lines` that are of `scope` and `dtype`.
    pub fn of(lines: &'a [Line], scope: &Scope, dtype: DType) -> Self {
        let mut books = Self { own: BTreeMap::new(), older: BTreeMap::new(), of_others: 0, all: Vec::new() };
        for line in lines {
            let older = Scope { revision: line.scope.revision.clone(), ..scope.clone() };
            if line.scope != older || line.point.dtype != dtype {
                books.of_others += 1;
                continue;
            }
            let of = if line.scope == *scope { &mut books.own } else { &mut books.older };
            // What edges were looked for near is told by the first line of a shape that was drawn.
            if !of.get(line.name.as_str()).is_some_and(|known| known.drawn.is_some() && line.drawn.is_none()) {
                of.insert(&line.name, line);
            }
            books.all.push(line);
        }
        books
    }

    /// The line of a shape, where there is one of this revision.
    pub fn line(&self, name: &str) -> Option<&'a Line> {
        self.own.get(name).copied()
    }

    pub fn count(&self) -> usize {
        self.own.len()
    }

    pub fn of_others(&self) -> usize {
        self.of_others
    }

    /// What comes next, as number `turn` of a run.
    pub fn next(&self, options: &Options, turn: usize, kind: Kind) -> Of {
        if let Some(point) = options.first.iter().find(|point| self.line(&point.name()).is_none()) {
            return Of::Again(point.clone(), None);
        }
        // Whether what was lost before is lost still.
        let lost = self.older.values().find(|line| loses(line) && line.near.is_none() && !self.own.contains_key(line.name.as_str()));
        if let Some(line) = lost {
            return Of::Again(line.point.clone(), line.drawn);
        }
        if turn % 2 == 1 {
            // Losses first; every fourth time a wrong prediction.
            let kinds = if turn % 8 == 7 { [Ill::Prediction, Ill::Loss] } else { [Ill::Loss, Ill::Prediction] };
            for (ill, line) in kinds.into_iter().flat_map(|ill| self.sick(ill).into_iter().map(move |line| (ill, line))) {
                for axis in Axis::ALL {
                    if let Step::Measure(shape) = self.step(line, axis, ill, kind) {
                        return Of::Near(Point { shape, ..line.point.clone() }, line.name.clone());
                    }
                }
            }
        }
        let drawn = self.all.iter().filter_map(|line| line.drawn).filter(|drawn| drawn.seed == options.seed);
        Of::Drawn(drawn.map(|drawn| drawn.number + 1).max().unwrap_or(0))
    }

    /// The shapes whose edges are looked for, the worst first: those that were drawn or asked for.
    fn sick(&self, ill: Ill) -> Vec<&'a Line> {
        let lines = self.own.values().filter(|line| line.near.is_none()).filter_map(|line| Some((ill.times(line)?, *line)));
        let mut lines: Vec<(f64, &Line)> = lines.filter(|(times, _)| *times > ill.limit()).collect();
        lines.sort_by(|a, b| b.0.total_cmp(&a.0));
        lines.into_iter().map(|(_, line)| line).collect()
    }

    fn step(&self, line: &Line, axis: Axis, ill: Ill, kind: Kind) -> Step {
        let limits = Limits::of(kind);
        let known = |shape: &Shape| match self.line(&Point { shape: shape.clone(), ..line.point.clone() }.name()).map(|line| ill.times(line)) {
            None => Known::Nothing,
            Some(Some(times)) if times <= ill.limit() => Known::Well,
            // What has no time is as little help as what has the fault.
            Some(_) => Known::Ill,
        };
        narrow(&line.point.shape, axis, &|shape| limits.hold(work(shape, line.point.dtype)), &known)
    }

    /// How many shapes are lost.
    pub fn lost(&self) -> usize {
        self.own.values().filter(|line| loses(line)).count()
    }

    /// The shapes of the greatest ratios, whether these are losses or not.
    pub fn worst(&self) -> Vec<Line> {
        self.greatest(|line| line.ratio)
    }

    /// The shapes whose predictions are the furthest off, of those that are wrong.
    pub fn predictions(&self) -> Vec<Line> {
        self.greatest(|line| Ill::Prediction.times(line).filter(|times| *times > OFF))
    }

    fn greatest(&self, of: impl Fn(&Line) -> Option<f64>) -> Vec<Line> {
        let mut lines: Vec<(f64, &Line)> = self.own.values().filter_map(|line| Some((of(line)?, *line))).collect();
        lines.sort_by(|a, b| b.0.total_cmp(&a.0));
        lines.into_iter().take(WORST).map(|(_, line)| line.clone()).collect()
    }

    /// Where losses and wrong predictions end, as far as was looked.
    pub fn edges(&self, kind: Kind) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (of, line) in [Ill::Loss, Ill::Prediction].into_iter().flat_map(|ill| self.sick(ill).into_iter().map(move |line| (ill, line))) {
            for axis in Axis::ALL {
                if let Step::Edge { ill, well } = self.step(line, axis, of, kind) {
                    edges.push(Edge { name: line.name.clone(), of, times: of.times(line).unwrap_or(1.0), axis, ill, well });
                }
            }
        }
        edges
    }

    /// What is wrong with shapes of this revision.
    pub fn faults(&self) -> Vec<Fault> {
        let faults = self.own.values().filter(|line| line.fault);
        faults.map(|line| Fault { name: line.name.clone(), why: line.why.clone().unwrap_or_default() }).collect()
    }
}

fn loses(line: &Line) -> bool {
    Ill::Loss.times(line).is_some_and(|times| times > LOSS)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::padding::Padding;

    fn scope(device: &str, revision: &str) -> Scope {
        Scope { backend: "cpu".into(), device: device.into(), revision: revision.into(), against: Against::Peers }
    }

    fn product(tokens: u64) -> Point {
        let shape = Shape::Linear { tokens, d_out: 64, d_in: 64, delta: None, padding: Padding::None, layers: 1 };
        Point { suite: Suite::Linear, dtype: DType::F32, captured: true, shape }
    }

    /// A shape that loses above a hundred rows, and whose prediction is right.
    fn line(point: Point, scope: &Scope, drawn: Option<u64>, near: Option<&str>) -> Line {
        let ratio = if Axis::Tokens.of(&point.shape).unwrap() > 100 { 1.5 } else { 0.9 };
        let drawn = drawn.map(|number| Drawn { seed: 0, number });
        let times = Line { ours: Some(ratio), theirs: Some(1.0), ratio: Some(ratio), predicted: Some(ratio), ..Line::of(point, scope.clone()) };
        Line { drawn, near: near.map(Into::into), ..times }
    }

    fn options(first: Vec<Point>) -> Options {
        Options { suites: vec![Suite::Linear], dtype: DType::F32, seed: 0, budget: Duration::from_secs(1), shapes: None, first }
    }

    #[test]
    fn a_loss_is_followed_to_its_edge_and_a_run_goes_on_where_one_was_cut() {
        let (own, options) = (scope("A", "1"), options(Vec::new()));
        let mut lines = vec![line(product(20), &own, Some(0), None), line(product(160), &own, Some(1), None)];
        let mut drawn = 2;
        for turn in 0..40 {
            // As good as new for each: what is next depends on the lines alone.
            match Books::of(&lines, &own, DType::F32).next(&options, turn, Kind::Discrete) {
                Of::Drawn(number) => {
                    assert_eq!(number, drawn, "in order, and none twice");
                    drawn += 1;
                    lines.push(line(product(1 + number % 90), &own, Some(number), None));
                }
                Of::Near(point, name) => {
                    assert_eq!(name, product(160).name());
                    assert!(lines.iter().all(|line| line.name != point.name()), "{}", point.name());
                    lines.push(line(point, &own, None, Some(&name)));
                }
                Of::Again(..) => panic!("nothing was asked for"),
            }
        }
        let books = Books::of(&lines, &own, DType::F32);
        let edges = books.edges(Kind::Discrete);
        let edge = edges.iter().find(|edge| edge.axis == Axis::Tokens).unwrap();
        assert!(edge.well <= 100 && edge.ill > 100 && edge.ill - edge.well <= 6 && edge.of == Ill::Loss && edge.times == 1.5, "{edge:?}");
        assert_eq!(books.worst()[0].ratio, Some(1.5));
        assert!(books.predictions().is_empty() && books.faults().is_empty());
    }

    #[test]
    fn what_is_of_another_device_type_or_peer_is_not_compared() {
        let own = scope("A", "1");
        let other = Scope { against: Against::Configs, ..own.clone() };
        let half = Point { dtype: DType::F16, ..product(160) };
        let lines = [line(product(160), &scope("B", "1"), Some(7), None), line(product(160), &other, Some(8), None), line(half, &own, Some(9), None)];
        let books = Books::of(&lines, &own, DType::F32);
        assert_eq!((books.count(), books.of_others(), books.lost()), (0, 3, 0));
        assert_eq!(books.next(&options(Vec::new()), 1, Kind::Discrete), Of::Drawn(0));
    }

    #[test]
    fn what_lost_at_another_revision_is_measured_again_first() {
        let (old, new) = (scope("A", "1"), scope("A", "2"));
        let mut lines = vec![line(product(160), &old, Some(0), None), line(product(20), &old, Some(1), None), line(product(130), &old, None, Some("m160"))];
        let wanted = options(vec![product(3)]);
        assert_eq!(Books::of(&lines, &new, DType::F32).next(&wanted, 0, Kind::Discrete), Of::Again(product(3), None), "what is asked for comes first");
        lines.push(line(product(3), &new, None, None));
        assert_eq!(Books::of(&lines, &new, DType::F32).next(&wanted, 0, Kind::Discrete), Of::Again(product(160), Some(Drawn { seed: 0, number: 0 })));
        lines.push(line(product(160), &new, Some(0), None));
        assert_eq!(Books::of(&lines, &new, DType::F32).next(&wanted, 0, Kind::Discrete), Of::Drawn(2));
    }

    #[test]
    fn predictions_are_wrong_both_ways_and_faults_are_told() {
        let own = scope("A", "1");
        let mut lines: Vec<Line> = (1..=4).map(|tokens| line(product(tokens), &own, Some(tokens), None)).collect();
        lines[0].predicted = Some(lines[0].ours.unwrap() * 5.0);
        lines[1].predicted = Some(lines[1].ours.unwrap() / 3.0);
        (lines[2].why, lines[2].fault) = (Some("wrong".into()), true);
        let books = Books::of(&lines, &own, DType::F32);
        assert_eq!(books.predictions().iter().map(|line| line.name.as_str()).collect::<Vec<_>>(), ["m1 n64 k64", "m2 n64 k64"]);
        assert_eq!(books.faults(), [Fault { name: "m3 n64 k64".into(), why: "wrong".into() }]);
    }
}
