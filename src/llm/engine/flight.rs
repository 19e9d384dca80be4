//! A step that is under way.

use super::sampler::Drawn;
use crate::backend::Backend;
use crate::error::Result;
use crate::llm::schedule::Plan;
use crate::llm::step::SampleRow;

/// A token to draw, and the row of the logits that it is drawn from.
pub struct Want {
    pub sample: SampleRow,
    pub row: usize,
}

/// What a step has left in the device's queue.
pub enum Work<D: Backend> {
    /// Tokens that the device draws from so many rows of logits, with nothing of the host in between; none where the step draws none.
    Drawn(Vec<Want>, usize, Option<Drawn<D>>),
    /// States of so many rows, and their logits where it says so. The host has a part in what comes next.
    States(usize, bool),
}

/// A step that was launched, and whose tokens are not read.
pub struct Flight<D: Backend> {
    pub plan: Plan,
    pub work: Result<Work<D>>,
}

impl<D: Backend> Flight<D> {
    /// Whether the next step may be launched before this one is read.
    pub fn is_free(&self) -> bool {
        matches!(self.work, Ok(Work::Drawn(..)))
    }
}
