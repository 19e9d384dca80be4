//! The thread of a device of operations: it takes what waits when it is free, and what waits behind that while the device is at work.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use trifuse::Error;

use super::operator::Operate;
use super::task::Task;
use super::together::MOST;
use crate::line::{Ending, Line, Taken};
use crate::queueing::batch::take_few;
use crate::queueing::ticket::Failure;

/// Batches that the device has at once: one that runs, and one behind it.
const BATCHES: usize = 2;

/// The number of the only device of operations: their regions lie on it, so that no other could do them.
const DEVICE: usize = 0;

/// Tasks that the device has.
struct Flight {
    tokens: usize,
    /// When each of them was let in.
    queued: Vec<Duration>,
    /// When the device was given them.
    given: Duration,
}

/// Takes from the line until it is closed and empty, or the device is lost. Then whatever waits is told.
pub fn run(operator: &mut dyn Operate, line: &Arc<Line<Task>>) {
    let end = Ending(line, DEVICE);
    let (mut flights, mut free) = (VecDeque::<Flight>::new(), Duration::ZERO);
    loop {
        let taken = match flights.back() {
            None => match line.next_by(DEVICE, |queues, keep| take_few(queues, MOST, keep)) {
                Some(taken) => Some(taken),
                None => break,
            },
            // With less than half of what the device has, more come while it is at that.
            Some(last) if flights.len() < BATCHES => {
                line.next_ahead_by(DEVICE, |queues| 2 * queues.len() >= last.queued.len(), |queues, keep| take_few(queues, MOST, keep))
            }
            Some(_) => None,
        };
        match taken {
            Some(Taken { works, queued, tokens, .. }) if !works.is_empty() => {
                let given = line.now();
                operator.submit(&works.iter().map(|work| &**work).collect::<Vec<&Task>>());
                flights.push_back(Flight { tokens, queued, given });
            }
            Some(_) => {}
            None => {
                let Some(flight) = flights.pop_front() else { break };
                if !answer(operator, line, flight, &mut free) {
                    break;
                }
            }
        }
    }
    drop(end);
}

/// Waits for what the device was given first, and answers; whether the device goes on.
fn answer(operator: &mut dyn Operate, line: &Line<Task>, flight: Flight, free: &mut Duration) -> bool {
    let Flight { tokens, queued, given } = flight;
    let ran = operator.finish();
    let now = line.now();
    // The device came to it when it was done with what was before. A plan is made once for a shape, and says nothing of how fast queries go.
    let took = now.saturating_sub(given.max(*free)).saturating_sub(ran.planned);
    *free = now;
    line.metrics().operated([queued.len(), ran.together], took, queued.iter().map(|queued| given.saturating_sub(*queued)));
    let Some(jobs) = line.done(DEVICE, tokens, took) else { return false };
    let mut lost = false;
    let mut results = ran.results.into_iter();
    for job in jobs {
        let part = job.part;
        // Who is answered finds the memory that the task held given back.
        drop(job.work);
        match results.next() {
            Some(Err(Error::Device { .. })) => lost = true,
            Some(result) => {
                part.finish(result);
                continue;
            }
            None => {}
        }
        part.fail(if lost { Failure::DeviceLost } else { Failure::Forgotten });
    }
    !lost
}
