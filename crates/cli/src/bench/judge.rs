//! Timing what is ready, and judging the times.

use super::rates::{Ceilings, DISTURBED, Rates};
use super::report::{Flag, Measured, Milliseconds, Outcome};
use super::sample::{Checked, Memory};
use super::timing::{Caches, Flush, LEAST, Schedule, Times};
use super::work::{Made, Measure, Work};
use trifuse::backend::{Backend, Kernel};
use trifuse::device::Clock;
use trifuse::error::Result;
use trifuse::ops::{Cost, Op};
use trifuse::session::Session;

/// Times what is ready, and judges the times.
pub struct Judge<'a, D: Backend> {
    pub flush: &'a Flush<D>,
    pub ceilings: &'a Ceilings,
    pub schedule: Schedule,
}

impl<D: Backend> Judge<'_, D> {
    /// Times what `enqueue` puts into the queue: `launches` of `variant` in a configuration, checked, of that cost.
    pub fn times(
        &self,
        session: &mut Session<D>,
        (variant, config, launches): (&'static str, Option<String>, usize),
        (checked, cost, memory): (Checked, Cost, Option<Memory>),
        mut enqueue: impl FnMut(&mut Session<D>) -> Result<()>,
    ) -> Result<Outcome> {
        let mut time = |caches| self.flush.time(session, self.schedule, caches, &mut enqueue);
        let (cold, warm) = (time(Caches::Cold)?, time(Caches::Warm)?);
        for (times, caches) in [(&cold, "cold"), (&warm, "warm")] {
            if let Some(why) = self.ceilings.impossible(cost, times.seconds.median, self.flush.bytes()) {
                return Ok(Outcome::Refused { why: format!("with {caches} caches: {why}") });
            }
        }
        let host_clock = session.clock() == Clock::Host;
        let either = |test: &dyn Fn(&Times) -> bool| test(&cold) || test(&warm);
        let noisy = |times: &Times| {
            let [low, high] = times.seconds.median_interval95;
            times.seconds.count > LEAST && high - low > 0.1 * times.seconds.median
        };
        let rates = Rates::of(cost, cold.seconds.median, self.ceilings);
        let flags = [
            (Flag::HostClock, host_clock),
            (Flag::LaunchBound, !host_clock && either(&|times| times.host_seconds > times.ahead_seconds)),
            (Flag::Noisy, either(&noisy)),
            (Flag::Cut, either(&|times| times.seconds.count < self.schedule.iterations as usize)),
            (Flag::AboveCeiling, rates.share_of_ceiling > DISTURBED),
            (Flag::NotOptimised, cfg!(debug_assertions)),
        ];
        let flags = flags.into_iter().filter_map(|(flag, set)| set.then_some(flag)).collect();
        let milliseconds = Milliseconds::of(&cold.seconds);
        let launch_seconds = cold.seconds.median / launches.max(1) as f64;
        let launch_host_seconds = cold.host_seconds / launches.max(1) as f64;
        let parts = None;
        let told =
            Measured { variant, config, launches, launch_seconds, launch_host_seconds, checked, cost, memory, parts, milliseconds, cold, warm, rates, flags };
        Ok(Outcome::Measured(Box::new(told)))
    }
}

impl<D: Backend> Measure<D> for Judge<'_, D> {
    type Out = Outcome;

    fn on<O: Op>(self, session: &mut Session<D>, work: &Work<O, D>, checked: Checked) -> Result<Outcome>
    where
        D: Kernel<O>,
    {
        let facts = (checked, work.cost(), work.memory());
        self.times(session, (work.variant(), work.config(), work.launches()), facts, |session| work.enqueue(session))
    }
}

impl From<Made<Outcome>> for Outcome {
    fn from(made: Made<Outcome>) -> Self {
        match made {
            Made::Measured(outcome) => outcome,
            Made::Wrong(why) => Self::Wrong { why },
            Made::Unsupported(why) => Self::Unsupported { why },
        }
    }
}
