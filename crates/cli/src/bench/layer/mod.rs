//! A whole transformer layer as one captured graph, beside its operations one by one.
//!
//! Each launch is checked on rows drawn from all over its output, against the oracle on what the device itself left for it to
//! read; so an error in one is not lost in the next. The graph, which is what is timed, must then give the same bits as these
//! launches. That the composition is right, tests hold at small sizes against an oracle of the whole.

mod check;
mod operands;
mod points;

use operands::Operands;
pub use points::Choice;
pub(super) use points::{LENGTHS, points, small};

use super::judge::Judge;
use super::rates::Rates;
use super::report::{Outcome, Part, Parts};
use super::sample::{Checked, poison};
use super::shape::{Point, Shape};
use super::timing::Caches;
use super::work::Made;
use trifuse::backend::Backend;
use trifuse::device::{Device, Slice};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::layer::{Step, TransformerLayer};
use trifuse::ops::Cost;
use trifuse::ops::layer::Layer;
use trifuse::session::{Graph, Session};
use trifuse_testkit::cases::Draw;

/// A layer that was checked, as one graph and as the launches that it is made of.
pub struct Ready<'a, D: Backend> {
    /// The whole.
    pub graph: Graph<D>,
    /// Work of the whole layer.
    pub cost: Cost,
    steps: Vec<Step<'a, D>>,
    checked: Checked,
}

/// Makes the layer of a point ready, checks it, and hands it to `measure`.
///
/// # Errors
/// What the device reports; a point that is no layer. A wrong answer is no error but [`Made::Wrong`].
pub fn with_layer<D: Backend, T>(
    session: &mut Session<D>,
    point: &Point,
    measure: impl FnOnce(&mut Session<D>, &Ready<'_, D>) -> Result<T>,
) -> Result<Made<T>> {
    let Shape::Layer { batch, tokens, sizes, style, causal, .. } = point.shape else {
        return Err(Error::invalid("layer", "a layer's sizes", format!("{:?}", point.shape)));
    };
    let layer = Layer::new(point.dtype, [batch, tokens], sizes, style, causal);
    let planned = match TransformerLayer::new(session, layer.clone()) {
        Err(Error::Unsupported { reason, .. }) => return Ok(Made::Unsupported(reason)),
        planned => planned?,
    };
    let operands = Operands::draw(&layer, &mut Draw::seeded(&format!("{} {}", point.shape.name(), point.dtype)));
    let (weights, states) = operands.upload(&layer, session)?;
    let steps = planned.steps(&weights, &states)?;
    let checked = match check::steps(session, &layer, &operands, &steps)? {
        Ok(checked) => checked,
        Err(why) => return Ok(Made::Wrong(why)),
    };
    let expected = session.read(&states.y)?;
    let graph = planned.capture(session, &weights, &states)?;
    poison(session, &states.y)?;
    session.replay(&graph)?;
    if let Some(why) = difference(session, point.dtype, &states.y, &expected)? {
        return Ok(Made::Wrong(why));
    }
    measure(session, &Ready { graph, cost: layer.cost()?, steps, checked }).map(Made::Measured)
}

/// Checks and measures the layer of a point.
///
/// # Errors
/// What the device reports; a point that is no layer.
pub(super) fn measure<D: Backend>(session: &mut Session<D>, point: &Point, variant: Option<&str>, judge: &Judge<'_, D>) -> Result<Outcome> {
    if variant.is_some() {
        return Err(Error::invalid("--variant", "none: a layer is several operations, each by the backend's choice", format!("{variant:?}")));
    }
    let made = with_layer(session, point, |session, ready| {
        let facts = (ready.checked, ready.cost, None);
        let outcome = judge.times(session, ("layer", None, ready.steps.len()), facts, |session| session.replay(&ready.graph))?;
        let Outcome::Measured(mut measured) = outcome else { return Ok(outcome) };
        match parts(session, &ready.steps, judge)? {
            Ok(parts) => measured.parts = Some(parts),
            Err(why) => return Ok(Outcome::Refused { why }),
        }
        Ok(Outcome::Measured(measured))
    })?;
    Ok(made.into())
}

/// What the graph computed otherwise than the launches that it is made of.
fn difference<D: Device>(session: &mut Session<D>, dtype: DType, y: &Slice<D>, expected: &[u8]) -> Result<Option<String>> {
    let found = session.read(y)?;
    let place = found.iter().zip(expected).position(|(found, expected)| found != expected);
    Ok(place.map(|at| format!("element {} of the graph's output differs from that of its launches one by one", at as u64 / dtype.size())))
}

/// Each launch by itself; the inner error is a time that cannot be true. Rotary positions turn again what they turned before.
fn parts<D: Backend>(session: &mut Session<D>, steps: &[Step<'_, D>], judge: &Judge<'_, D>) -> Result<Result<Parts, String>> {
    let mut each = Vec::with_capacity(steps.len());
    for Step { name, launch } in steps {
        let mut median = |caches| judge.flush.time(session, judge.schedule, caches, &mut |session| launch.run(session)).map(|times| times.seconds.median);
        let [cold_seconds, warm_seconds] = [median(Caches::Cold)?, median(Caches::Warm)?];
        let (op, variant, config, cost) = launch.facts();
        if let Some(why) = judge.ceilings.impossible(cost, cold_seconds.min(warm_seconds), judge.flush.bytes()) {
            return Ok(Err(format!("{name}: {why}")));
        }
        let rates = Rates::of(cost, cold_seconds, judge.ceilings);
        each.push(Part { name: (*name).into(), op: op.into(), variant: variant.into(), config, cold_seconds, warm_seconds, cost, rates });
    }
    let sum = |of: fn(&Part) -> f64| each.iter().map(of).sum();
    Ok(Ok(Parts { cold_seconds: sum(|part| part.cold_seconds), warm_seconds: sum(|part| part.warm_seconds), each }))
}
