//! The time of each launch of a step, for who wants to know where a step's time goes.

use std::time::Instant;

use crate::backend::Backend;
use crate::error::Result;
use crate::session::{Launched, Session};

/// The most replays that keep a device busy while the host puts launches into its queue.
const MOST_AHEAD: f64 = 64.0;

/// What the launches of a step took.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TimedStep {
    /// Rows of the step.
    pub rows: usize,
    /// The requests that they belong to.
    pub sequences: usize,
    /// Whether steps of this shape replay a graph.
    pub graph: bool,
    /// The seconds of a replay of all launches from one captured graph, the median.
    pub seconds: f64,
    /// The launches in their order, each with its median time.
    pub launches: Vec<Launched>,
}

/// What is asked for, and what was found.
#[derive(Debug, Default)]
pub(super) struct Timed {
    pub times: u32,
    pub found: Option<TimedStep>,
}

impl Timed {
    /// Times the pass of a step that was put into the queue, where somebody asked: it runs again, to the same states, since a pass overwrites all that it
    /// reads and makes.
    pub(super) fn step<D: Backend>(
        &mut self,
        session: &mut Session<D>,
        ([rows, sequences], graph): ([usize; 2], bool),
        run: &mut impl FnMut(&mut Session<D>) -> Result<()>,
    ) -> Result<()> {
        let times = std::mem::take(&mut self.times);
        if times == 0 {
            return Ok(());
        }
        let captured = session.capture(&mut *run)?;
        session.replay(&captured)?;
        let mut whole = Vec::new();
        for _ in 0..times {
            let before = session.record_event()?;
            session.replay(&captured)?;
            let after = session.record_event()?;
            whole.push(session.elapsed(&before, &after)?);
        }
        let seconds = median(&mut whole);
        // What the host takes to put the launches and their events into an empty queue.
        let started = Instant::now();
        session.time_launches(&mut *run)?;
        let ahead = (2.0 * started.elapsed().as_secs_f64() / seconds).ceil().clamp(1.0, MOST_AHEAD) as usize;
        let mut runs = Vec::new();
        for _ in 0..times {
            (0..ahead).try_for_each(|_| session.replay(&captured))?;
            runs.push(session.time_launches(&mut *run)?);
        }
        let mut launches = runs.first().cloned().unwrap_or_default();
        for (number, launch) in launches.iter_mut().enumerate() {
            let mut own: Vec<f64> = runs.iter().filter_map(|run| run.get(number)).map(|launch| launch.seconds).collect();
            launch.seconds = median(&mut own);
        }
        self.found = Some(TimedStep { rows, sequences, graph, seconds, launches });
        Ok(())
    }
}

/// The value in the middle; 0 of none.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
