//! The thread of a device of operations: it takes what waits when it is free.

use std::sync::Arc;

use trifuse::Error;

use super::operator::Operate;
use super::task::Task;
use crate::line::{Ending, Line, Taken};
use crate::queueing::batch::take_few;
use crate::queueing::ticket::Failure;

/// Tasks that are put behind each other before the device is waited for.
const FEW: usize = 16;

/// The number of the only device of operations: their regions lie on it, so that no other could do them.
const DEVICE: usize = 0;

/// Takes from the line until it is closed and empty, or the device is lost. Then whatever waits is told.
pub fn run(operator: &mut dyn Operate, line: &Arc<Line<Task>>) {
    let end = Ending(line, DEVICE);
    while let Some(batch) = line.next_by(DEVICE, |queues, keep| take_few(queues, FEW, keep)) {
        if batch.works.is_empty() {
            continue;
        }
        let began = line.now();
        let tasks: Vec<&Task> = batch.works.iter().map(|work| &**work).collect();
        let ran = operator.run(&tasks);
        drop(tasks);
        // A plan is made once for a shape, and says nothing of how fast queries go.
        let took = (line.now() - began).saturating_sub(ran.planned);
        line.metrics().operated([batch.works.len(), ran.together], took, batch.queued.iter().map(|queued| began.saturating_sub(*queued)));
        let Taken { works, tokens, .. } = batch;
        drop(works);
        let Some(jobs) = line.done(DEVICE, tokens, took) else { break };
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
        if lost {
            break;
        }
    }
    drop(end);
}
