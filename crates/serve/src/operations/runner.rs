//! The thread of a device of operations: it takes what waits when it is free.

use std::sync::Arc;

use trifuse::Error;

use super::operator::Operate;
use super::task::Task;
use crate::line::{Ending, Line};
use crate::queueing::batch::take_few;
use crate::queueing::ticket::Failure;

/// Tasks that are put behind each other before the device is waited for.
const FEW: usize = 16;

/// Takes from the line until it is closed and empty, or the device is lost. Then whatever waits is told.
pub fn run(operator: &mut dyn Operate, line: &Arc<Line<Task>>) {
    let end = Ending(line);
    while let Some(batch) = line.next_by(|queues, keep| take_few(queues, FEW, keep)) {
        if batch.items.is_empty() {
            continue;
        }
        let began = line.now();
        let tasks: Vec<&Task> = batch.items.iter().map(|job| &job.work).collect();
        let ran = operator.run(&tasks);
        // A plan is made once for a shape, and says nothing of how fast queries go.
        let took = (line.now() - began).saturating_sub(ran.planned);
        line.metrics().operated(batch.items.len(), took, batch.items.iter().map(|job| began.saturating_sub(job.queued)));
        line.done(batch.tokens, batch.tokens, took);
        let mut lost = false;
        let mut results = ran.results.into_iter();
        for job in batch.items {
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
        if lost {
            break;
        }
    }
    drop(end);
}
