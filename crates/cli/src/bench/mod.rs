//! How fast the operations are, told so that it can be believed.
//!
//! Every answer is compared with the oracle before its time is taken, through the very launches that are timed. Times
//! are the device's own where it has a clock, with the caches emptied before each run ([`timing::Caches::Cold`]) and
//! with them full; a time that the device cannot have reached is refused. Work is counted three ways
//! ([`trifuse::ops::Cost`]): what is executed, what the result depends on, and what a dense operation would do. Rates are
//! held against ceilings that the same run measured. Operands are random: zeros can run faster than data.

mod adapters;
pub mod align;
pub mod ceiling;
#[cfg(all(test, feature = "cpu"))]
mod chained;
pub mod compare;
mod copy;
mod decode;
pub mod density;
mod extent;
pub mod hunt;
mod judge;
pub mod layer;
pub mod layout;
mod listed;
mod lora;
pub mod markdown;
mod micro;
mod mixture;
pub mod models;
mod neighbour;
pub mod operand;
pub mod own;
mod padding;
pub mod pattern;
pub mod pool;
mod population;
mod prefix;
mod projection;
mod published;
mod ragged;
pub mod ranks;
mod rates;
mod registered;
pub mod regret;
pub mod report;
pub mod sample;
mod schedule;
mod sequences;
pub mod shape;
mod shares;
pub mod shrunk;
mod stack;
pub mod statistics;
pub mod stored;
pub mod suite;
pub mod sweep;
pub mod timing;
mod units;
pub mod work;

use std::ops::ControlFlow;

use trifuse::backend::Backend;
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::session::Session;

use align::Sweep;
use judge::Judge;
use pool::Pool;
use rates::Ceilings;
use report::{Entry, Environment, Outcome, SuiteReport, Timing};
use shape::{Point, Shape, Suite};
use timing::{Flush, Schedule};
use work::with_pooled;

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The suite.
    pub suite: Suite,
    /// Element type of every operand.
    pub dtype: DType,
    /// Only a few shapes.
    pub quick: bool,
    /// Only shapes whose name holds this.
    pub shape: Option<String>,
    /// Only this variant, rather than the backend's choice.
    pub variant: Option<String>,
    /// How often.
    pub schedule: Schedule,
    /// Sizes for the suite that counts them up.
    pub sweep: Sweep,
    /// Adapters that the suite of registered populations registers, rather than the usual numbers.
    pub adapters: Option<u32>,
    /// Layers for the suite of layers; for attention, mlp and projections the layers whose sizes they take.
    pub layers: layer::Choice,
    /// Sizes of products, MLPs and attention that no list has.
    pub own: own::Choice,
}

/// Runs a suite. `began` is told each shape's name before it is measured, with how many there are; where it breaks, the
/// report holds what was measured until then.
///
/// # Errors
/// A shape or variant that there is not; a device on which not even a copy runs. What goes wrong with one shape is told
/// in its entry.
pub fn run<D: Backend>(session: &mut Session<D>, options: &Options, began: &mut dyn FnMut(&str, usize) -> ControlFlow<()>) -> Result<SuiteReport> {
    let points = chosen(options, session.caps().kind)?;
    let steps = points.len() + 1;
    let mut stopped = began("ceilings", steps).is_break();
    let flush = Flush::new(session)?;
    let ceilings = Ceilings::measure(session, &flush, options.schedule, options.dtype)?;
    let clocks = flush.clocks(session)?;
    let mut results = Vec::with_capacity(points.len());
    let mut pool = Pool::default();
    for point in points {
        let name = point.name();
        stopped |= began(&name, steps).is_break();
        if stopped {
            break;
        }
        let judge = Judge { flush: &flush, ceilings: &ceilings, schedule: options.schedule };
        let outcome = match measure(session, &mut pool, &point, options.variant.as_deref(), judge) {
            Ok(outcome) => outcome,
            // The caller's mistake, the same for every shape.
            Err(error @ Error::Invalid { .. }) => return Err(error),
            Err(error) => Outcome::Failed { why: error.to_string() },
        };
        results.push(Entry { name, pattern: point.shape.pattern()?, point, outcome, aligned: None });
    }
    neighbour::compare(&mut results);
    let timing = Timing {
        schedule: options.schedule,
        clock: session.clock(),
        flush_bytes: flush.bytes(),
        flush_seconds: flush.seconds(),
        seed: if Pool::<D>::shares(options.suite) { "SHA-256 of the operand's name and type" } else { "SHA-256 of the shape's name and type" },
    };
    let environment = Environment::here(session.device().backend());
    let device = session.caps().clone();
    Ok(SuiteReport {
        suite: options.suite,
        backend: session.device().backend(),
        device,
        environment,
        timing,
        clocks,
        ceilings,
        complete: !stopped,
        config: options.schedule.into(),
        results,
    })
}

/// The names of the shapes that [`run`] would measure on a device of that kind.
///
/// # Errors
/// A shape that there is not.
pub fn names(options: &Options, kind: trifuse::device::Kind) -> Result<Vec<String>> {
    Ok(chosen(options, kind)?.iter().map(Point::name).collect())
}

/// The points that the options leave.
fn chosen(options: &Options, kind: trifuse::device::Kind) -> Result<Vec<Point>> {
    let extent = extent::Extent { kind, quick: options.quick };
    let mut points = match options.suite {
        Suite::Align => align::points(&options.sweep, options.dtype, extent)?,
        Suite::Layer => layer::points(&options.layers, options.dtype, extent)?,
        suite if models::known(suite) && options.layers != layer::Choice::default() => models::points(suite, &options.layers, options.dtype, extent)?,
        suite => suite::points(suite, options.dtype, extent),
    };
    points = options.own.points(options.suite, options.dtype, points)?;
    if let Some(adapters) = options.adapters {
        points.retain(|point| !matches!(point.shape, Shape::Registered { .. }));
        points.extend(suite::registered(options.dtype, kind, Some(adapters)));
    }
    if let Some(text) = &options.shape {
        let names: Vec<String> = points.iter().map(Point::name).collect();
        points.retain(|point| point.name().contains(text));
        if points.is_empty() {
            return Err(Error::invalid("--shape", format!("a part of one of {names:?}"), format!("{text:?}")));
        }
    }
    Ok(points)
}

fn measure<D: Backend>(session: &mut Session<D>, pool: &mut Pool<D>, point: &Point, variant: Option<&str>, judge: Judge<'_, D>) -> Result<Outcome> {
    if let Shape::Copy { bytes } = point.shape {
        return copy::copy_point(session, bytes, &judge);
    }
    if let Shape::Layer { .. } = point.shape {
        return layer::measure(session, point, variant, &judge);
    }
    with_pooled(session, pool, point, variant, judge).map(Into::into)
}
