//! A study that runs itself: it draws shapes, measures ours and what that is held against, looks for the sizes at which a loss or a wrong
//! prediction ends, and keeps a ledger that the next run continues.

mod axes;
mod draw;
mod ledger;
mod options;
mod ours;
mod peer;
mod search;
mod told;

use std::time::Instant;

pub use axes::Axis;
pub use ledger::{Against, Drawn, FORMAT, Ledger, Line, Scope};
pub use options::Options;
pub use peer::{Answer, Peer, Who};
pub use told::{Edge, Fault, Hunted, Ill, OFF};

use super::rates::Ceilings;
use super::report::{Environment, Timing};
use super::timing::{Flush, Schedule};
use ours::Bench;
use told::{Books, Of};
use trifuse::backend::Backend;
use trifuse::error::{Error, Result, ensure};
use trifuse::session::Session;

/// How each shape is timed, by the peers too.
const SCHEDULE: Schedule = Schedule { warmup: 5, iterations: 30, limit_seconds: 2.0 };
/// How the ceilings are.
const CEILINGS: Schedule = Schedule { warmup: 2, iterations: 10, limit_seconds: 1.0 };
/// Shapes in a row on which the device may fail before it is given up.
const MOST_FAILED: usize = 3;

/// What a shape came to, besides a line.
enum Measured {
    Line(Box<Line>),
    /// The device failed; the line says how.
    Failed(Box<Line>, Error),
    /// It was stopped before there was an answer.
    Stopped,
}

/// Whether the hunt was asked to end, and who is told of each shape that begins.
type Told<'a> = (&'a dyn Fn() -> bool, &'a mut dyn FnMut(&str));

/// Hunts until the budget is spent or `asked` says so. `began` is told the name of each shape.
///
/// # Errors
/// A peer that ends, hangs or answers nonsense; a device that fails three times in a row; a ledger that cannot be written. What was measured
/// until then is in the ledger.
pub fn run<D: Backend>(session: &mut Session<D>, options: &Options, mut peer: Option<Peer>, ledger: &mut Ledger, (asked, began): Told<'_>) -> Result<Hunted> {
    let started = Instant::now();
    let all = options.suites.iter().all(|&suite| super::regret::draws(suite));
    ensure(all && !options.suites.is_empty(), "--suite", "linear, mlp, attention, sparse and adapters", format_args!("{:?}", options.suites))?;
    let over = || started.elapsed() >= options.budget;
    let stop = || asked() || over();
    let flush = Flush::new(session)?;
    let timing = Timing {
        schedule: SCHEDULE,
        clock: session.clock(),
        flush_bytes: flush.bytes(),
        flush_seconds: flush.seconds(),
        seed: "SHA-256 of the operand's name and type",
    };
    began("the peer");
    let who = peer.as_mut().map(|peer| peer.hello(timing, options.dtype, &stop)).transpose()?.flatten();
    began("ceilings");
    let ceilings = Ceilings::measure(session, &flush, CEILINGS, options.dtype)?;
    let clocks = flush.clocks(session)?;
    let mut bench = Bench::new(session, &flush, &ceilings, (SCHEDULE, options.dtype))?;
    let environment = Environment::here(session.device().backend());
    let scope = Scope {
        backend: session.device().backend().into(),
        device: session.caps().name.clone(),
        revision: environment.revision.clone(),
        against: if peer.is_some() { Against::Peers } else { Against::Configs },
    };
    let (before, mut failed) = (ledger.lines().len(), 0);
    while !stop() && options.shapes.is_none_or(|most| ((ledger.lines().len() - before) as u64) < most) {
        let books = Books::of(ledger.lines(), &scope, options.dtype);
        let next = books.next(options, ledger.lines().len() - before, session.caps().kind);
        let (point, drawn, near) = match next {
            Of::Drawn(number) => {
                let drawn = Drawn { seed: options.seed, number };
                (draw::point(session, &options.suites, options.dtype, options.seed, number)?, Some(drawn), None)
            }
            Of::Again(point, drawn) => (point, drawn, None),
            Of::Near(point, name) => (point, None, Some(name)),
        };
        let name = point.name();
        began(&name);
        let known = books.line(&name).cloned();
        let line = Line { drawn, near, ..Line::of(point, scope.clone()) };
        // Two draws may be of one shape, and the second is told as known.
        let measured = match known {
            Some(known) => Measured::Line(Box::new(Line { drawn, near: line.near, ..known })),
            None => measure(session, &mut bench, peer.as_mut(), line, (&mut *ledger, &stop))?,
        };
        match measured {
            Measured::Stopped => break,
            Measured::Line(line) => {
                failed = 0;
                ledger.add(*line)?;
            }
            Measured::Failed(line, error) => {
                failed += 1;
                ledger.add(*line)?;
                if failed == MOST_FAILED {
                    return Err(error);
                }
            }
        }
    }
    // It has its own way to end, and what is told does not wait for that.
    drop(peer);
    let books = Books::of(ledger.lines(), &scope, options.dtype);
    Ok(Hunted {
        suites: options.suites.clone(),
        dtype: options.dtype,
        backend: session.device().backend(),
        device: session.caps().clone(),
        environment,
        clocks,
        timing,
        launch_seconds: bench.launch_seconds(),
        ceilings,
        seed: options.seed,
        against: scope.against,
        peer: who,
        budget_seconds: options.budget.as_secs_f64(),
        seconds: started.elapsed().as_secs_f64(),
        complete: !asked(),
        measured: ledger.lines().len() - before,
        known: books.count(),
        of_others: books.of_others(),
        lost: books.lost(),
        worst: books.worst(),
        edges: books.edges(session.caps().kind),
        predictions: books.predictions(),
        faults: books.faults(),
    })
}

/// Measures ours, and what it is held against.
fn measure<D: Backend>(
    session: &mut Session<D>,
    bench: &mut Bench<'_, D>,
    peer: Option<&mut Peer>,
    mut line: Line,
    (ledger, stop): (&mut Ledger, &dyn Fn() -> bool),
) -> Result<Measured> {
    if let Err(error) = bench.fill(session, &mut line) {
        (line.why, line.fault) = (Some(error.to_string()), true);
        return Ok(Measured::Failed(Box::new(line), error));
    }
    let Some(ours) = line.ours else { return Ok(Measured::Line(Box::new(line))) };
    match peer {
        None => {
            if let Err(error) = bench.race(session, &mut line) {
                (line.why, line.fault) = (Some(error.to_string()), true);
                return Ok(Measured::Failed(Box::new(line), error));
            }
        }
        Some(peer) => match peer.measure(&line.name, &line.point, stop) {
            Ok(None) => return Ok(Measured::Stopped),
            Ok(Some(Answer::None(why))) => line.why = Some(why),
            Ok(Some(Answer::Fastest(name, seconds))) => (line.peer, line.theirs, line.ratio) = (Some(name), Some(seconds), Some(ours / seconds)),
            Err(error) => {
                // The next run goes on behind the shape that the peer did not survive.
                (line.why, line.fault) = (Some(error.to_string()), true);
                ledger.add(line)?;
                return Err(error);
            }
        },
    }
    Ok(Measured::Line(Box::new(line)))
}
