//! Our side of a shape: the choice, its answer checked, its time and the time that its cost foretells.

use super::ledger::Line;
use crate::bench::pool::Pool;
use crate::bench::rates::Ceilings;
use crate::bench::regret::race::{Race, named};
use crate::bench::sample::Checked;
use crate::bench::shape::{Point, Shape, Suite};
use crate::bench::timing::{Caches, Flush, Schedule};
use crate::bench::work::{Made, Measure, Work, pose, with_pooled};
use trifuse::backend::{Backend, Kernel};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::{Cost, Op};
use trifuse::session::Session;

/// All that a measurement needs.
pub struct Bench<'a, D: Backend> {
    flush: &'a Flush<D>,
    ceilings: &'a Ceilings,
    schedule: Schedule,
    pool: Pool<D>,
    launch_seconds: f64,
}

impl<'a, D: Backend> Bench<'a, D> {
    /// Measures what a launch takes that does next to nothing.
    ///
    /// # Errors
    /// What the device reports.
    pub fn new(session: &mut Session<D>, flush: &'a Flush<D>, ceilings: &'a Ceilings, (schedule, dtype): (Schedule, DType)) -> Result<Self> {
        let mut bench = Self { flush, ceilings, schedule, pool: Pool::sharing(), launch_seconds: 0.0 };
        let point = Point { suite: Suite::Micro, dtype, captured: true, shape: Shape::Launches { count: 1 } };
        if let Made::Measured(Ok(ours)) = with_pooled(session, &mut bench.pool, &point, None, Timed(flush, schedule, ceilings))? {
            bench.launch_seconds = ours.seconds;
        }
        Ok(bench)
    }

    /// Seconds of a launch that does next to nothing.
    pub fn launch_seconds(&self) -> f64 {
        self.launch_seconds
    }

    /// Checks and times the choice.
    ///
    /// # Errors
    /// A device that fails. What it does not do, or has no room for, is told in the line, and so is a wrong answer.
    pub fn fill(&mut self, session: &mut Session<D>, line: &mut Line) -> Result<()> {
        let timed = Timed(self.flush, self.schedule, self.ceilings);
        match with_pooled(session, &mut self.pool, &line.point, None, timed) {
            Ok(Made::Measured(Ok(ours))) => {
                let floor = self.ceilings.floor(ours.cost).0;
                line.predicted = Some(floor + self.launch_seconds * ours.launches as f64).filter(|seconds| *seconds > 0.0);
                (line.ours, line.variant) = (Some(ours.seconds), Some(ours.variant));
            }
            Ok(Made::Measured(Err(why)) | Made::Wrong(why)) => (line.why, line.fault) = (Some(why), true),
            Ok(Made::Unsupported(why)) => line.why = Some(why),
            Err(Error::OutOfMemory { .. }) => line.why = Some("the device has no room".into()),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Holds the choice against every configuration.
    ///
    /// # Errors
    /// A device that fails.
    pub fn race(&mut self, session: &mut Session<D>, line: &mut Line) -> Result<()> {
        match pose(session, &mut self.pool, &line.point, Race { flush: self.flush, dtype: line.point.dtype }) {
            Ok(Made::Measured(raced)) => {
                (line.ours, line.theirs, line.ratio) = (Some(raced.chosen_seconds), Some(raced.best_seconds), Some(raced.regret));
                let wrong: Vec<String> = raced.configs.iter().filter_map(|tried| Some(format!("{}: {}", tried.name, tried.why.as_ref()?))).collect();
                line.peer = Some(raced.best);
                if !wrong.is_empty() {
                    (line.why, line.fault) = (Some(wrong.join("; ")), true);
                }
            }
            Ok(Made::Wrong(why)) => (line.why, line.fault) = (Some(why), true),
            Ok(Made::Unsupported(why)) => line.why = Some(why),
            Err(Error::OutOfMemory { .. }) => line.why = Some("the device has no room".into()),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Times a plan that is ready.
struct Timed<'a, D: Backend>(&'a Flush<D>, Schedule, &'a Ceilings);

/// What the choice took.
struct Ours {
    seconds: f64,
    variant: String,
    cost: Cost,
    launches: usize,
}

impl<D: Backend> Measure<D> for Timed<'_, D> {
    /// Why the time cannot be true, where it cannot.
    type Out = Result<Ours, String>;

    fn on<O: Op>(self, session: &mut Session<D>, work: &Work<O, D>, _: Checked) -> Result<Self::Out>
    where
        D: Kernel<O>,
    {
        let Self(flush, schedule, ceilings) = self;
        let seconds = flush.time(session, schedule, Caches::Cold, &mut |session| work.enqueue(session))?.seconds.median;
        if let Some(why) = ceilings.impossible(work.cost(), seconds, flush.bytes()) {
            return Ok(Err(why));
        }
        Ok(Ok(Ours { seconds, variant: named(work.variant(), work.config()), cost: work.cost(), launches: work.launches() }))
    }
}
