//! The requests that have not ended, in the order of their rank.

use std::collections::{BTreeSet, HashMap};

use super::request::{Phase, State};
use crate::error::{Error, Result};
use crate::llm::step::RequestId;

/// All requests that have not ended, and the lists of those that wait and those that run.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    states: HashMap<RequestId, State>,
    /// In the order of rank.
    waiting: BTreeSet<RequestId>,
    /// In the order of rank.
    running: Vec<RequestId>,
    deadlines: BTreeSet<(u64, RequestId)>,
    next: u64,
}

impl Queue {
    /// Adds a waiting request, the last in rank.
    pub fn push(&mut self, state: State) -> RequestId {
        let id = RequestId(self.next);
        self.next += 1;
        self.waiting.insert(id);
        self.deadlines.extend(state.deadline.map(|deadline| (deadline, id)));
        self.states.insert(id, state);
        id
    }

    /// Takes a request out of every list.
    pub fn remove(&mut self, id: RequestId) -> Option<State> {
        let state = self.states.remove(&id)?;
        if let Some(deadline) = state.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        match state.phase {
            Phase::Waiting => _ = self.waiting.remove(&id),
            Phase::Running { .. } => self.running.retain(|other| *other != id),
            Phase::Ending => {}
        }
        Some(state)
    }

    /// Moves a request to the list of its new phase.
    pub fn turn(&mut self, id: RequestId, phase: Phase) -> Result<&mut State> {
        let state = self.states.get_mut(&id).ok_or_else(|| unknown(id))?;
        match state.phase {
            Phase::Waiting => _ = self.waiting.remove(&id),
            Phase::Running { .. } => self.running.retain(|other| *other != id),
            Phase::Ending => {}
        }
        match phase {
            Phase::Waiting => _ = self.waiting.insert(id),
            Phase::Running { .. } => self.running.insert(self.running.partition_point(|other| *other < id), id),
            Phase::Ending => {}
        }
        state.phase = phase;
        Ok(state)
    }

    /// A request that has not ended.
    pub fn get(&mut self, id: RequestId) -> Result<&mut State> {
        self.find(id).ok_or_else(|| unknown(id))
    }

    /// A request, or `None` where it has ended.
    pub fn find(&mut self, id: RequestId) -> Option<&mut State> {
        self.states.get_mut(&id)
    }

    /// Whether the number was given to a request, be it one that has ended.
    pub fn was_given(&self, id: RequestId) -> bool {
        id.0 < self.next
    }

    /// A request whose deadline is not after `now`.
    pub fn expired(&self, now: u64) -> Option<RequestId> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, id)| *id)
    }

    /// Running requests in the order of rank.
    pub fn running(&self) -> &[RequestId] {
        &self.running
    }

    /// Waiting requests in the order of rank.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = RequestId> {
        self.waiting.iter().copied()
    }

    /// Requests that have not ended.
    pub fn len(&self) -> usize {
        self.states.len()
    }
}

/// The error for a request that is not there.
fn unknown(id: RequestId) -> Error {
    Error::invalid("request", "one that has not ended", id.0)
}
