//! How much slower what a backend chooses is than the fastest that can compute the same, over random shapes of an operation: each of them is
//! run in every configuration, and times of all are told, so that the rules of choice can be fitted to them.

pub(super) mod draw;
pub(super) mod race;
mod told;

use std::ops::ControlFlow;

pub use draw::draws;
pub use race::{Care, Raced, Tried};
pub use told::{Entry, LOSS, RegretReport, Summary, Worst};

use super::own;
use super::pool::Pool;
use super::report::Environment;
use super::shape::{Point, Suite};
use super::timing::Flush;
use super::work::{Made, pose};
use trifuse::backend::Backend;
use trifuse::dtype::DType;
use trifuse::error::{Error, Result, ensure};
use trifuse::session::Session;

/// What to race.
#[derive(Clone, Debug)]
pub struct Options {
    /// The suite whose operation it is.
    pub suite: Suite,
    /// Element type of every operand.
    pub dtype: DType,
    /// Shapes of one's own, which are raced first.
    pub own: own::Choice,
    /// How many random shapes.
    pub count: u64,
    /// What they are drawn from.
    pub seed: u64,
}

/// Races shapes of one's own and random ones. `began` is told each shape's name before it is raced, with how many there are; where it breaks, the report holds what was
/// raced until then.
///
/// # Errors
/// A suite whose shapes are not drawn, or that has none of such sizes; no shapes; a device on which not even a copy runs. What goes wrong with one shape is told in its entry.
pub fn run<D: Backend>(session: &mut Session<D>, options: &Options, began: &mut dyn FnMut(&str, usize) -> ControlFlow<()>) -> Result<RegretReport> {
    let Options { suite, dtype, ref own, count, seed } = *options;
    ensure(draws(suite), "--regret", "the suites linear, mlp, attention, sparse and adapters", suite.name())?;
    let kind = session.caps().kind;
    let points = own.points(suite, dtype, Vec::new())?.into_iter().map(|point| Point { captured: true, ..point });
    let points: Vec<Point> = points.chain((0..count).map(|number| draw::point(suite, dtype, kind, seed, number))).collect();
    ensure(!points.is_empty(), "--regret", "at least one shape, or --sizes", count)?;
    let flush = Flush::new(session)?;
    let clocks = flush.clocks(session)?;
    let (mut pool, mut shapes, mut stopped) = (Pool::sharing(), Vec::new(), false);
    let all = points.len();
    for point in points {
        let name = point.name();
        stopped |= began(&name, all).is_break();
        if stopped {
            break;
        }
        let made = pose(session, &mut pool, &point, race::Race { flush: &flush, dtype });
        let (raced, why, fault) = match made {
            Ok(Made::Measured(raced)) => (Some(raced), None, false),
            Ok(Made::Unsupported(why)) => (None, Some(why), false),
            Ok(Made::Wrong(why)) => (None, Some(why), true),
            Err(Error::OutOfMemory { .. }) => (None, Some("the device has no room".into()), false),
            Err(error) => (None, Some(error.to_string()), true),
        };
        shapes.push(Entry { name, point, raced, why, fault });
    }
    Ok(RegretReport {
        suite,
        backend: session.device().backend(),
        device: session.caps().clone(),
        environment: Environment::here(session.device().backend()),
        clocks,
        clock: session.clock(),
        seed,
        complete: !stopped,
        summary: Summary::of(&shapes),
        worst: told::worst(&shapes),
        shapes,
    })
}

#[cfg(all(test, feature = "cpu"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use trifuse::backends::cpu::Cpu;
    use trifuse::device::Open;

    #[test]
    fn two_shapes_of_every_operation_are_raced_on_a_processor() {
        let mut session = Session::new(std::sync::Arc::new(Cpu::open(0).unwrap())).unwrap();
        for suite in [Suite::Linear, Suite::Mlp, Suite::Attention, Suite::Sparse, Suite::Adapters] {
            // One of one's own is raced before those that are drawn.
            let sizes = match suite {
                Suite::Linear | Suite::Mlp => vec!["3x16x24".parse().unwrap()],
                _ => Vec::new(),
            };
            let own = own::Choice { sizes, ..own::Choice::default() };
            let options = Options { suite, dtype: DType::F32, own, count: 2, seed: 1 };
            let report = run(&mut session, &options, &mut |_, _| ControlFlow::Continue(())).unwrap();
            let raced = 2 + options.own.sizes.len();
            assert!(report.complete && report.summary.raced == raced && report.summary.faults == 0, "{suite:?}: {:?}", report.shapes);
            let first = report.shapes.first().map(|entry| entry.name.as_str());
            assert!(suite != Suite::Linear || first.is_some_and(|name| name.starts_with("m3 n16 k24")), "{first:?}");
            assert!(report.shapes.iter().flat_map(|entry| &entry.raced).all(|raced| raced.regret >= 1.0 && !raced.configs.is_empty()));
        }
        let options = Options { suite: Suite::Micro, dtype: DType::F32, own: own::Choice::default(), count: 2, seed: 1 };
        assert!(run(&mut session, &options, &mut |_, _| ControlFlow::Continue(())).is_err());
        let none = Options { suite: Suite::Linear, count: 0, ..options.clone() };
        assert!(run(&mut session, &none, &mut |_, _| ControlFlow::Continue(())).is_err());
        let options = Options { suite: Suite::Linear, ..options };
        let stopped = run(&mut session, &options, &mut |_, _| ControlFlow::Break(())).unwrap();
        assert!(!stopped.complete && stopped.shapes.is_empty());
    }
}
