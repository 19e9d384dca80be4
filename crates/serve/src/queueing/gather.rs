//! One answer of several parts, each of which may come from another batch.

use std::sync::{Arc, Mutex, PoisonError};

use super::ticket::{Failure, Ticket};

struct Gather<A> {
    ticket: Option<Ticket<Vec<A>>>,
    parts: Vec<Option<A>>,
    missing: usize,
}

/// One part of a request. The request is answered once all parts are there, or once one of them fails; a part that is dropped fails.
pub struct Part<A> {
    gather: Arc<Mutex<Gather<A>>>,
    place: usize,
    /// Whether the part's result or failure was given.
    done: bool,
}

/// The `count` parts of a request, of which there must be at least one; the answer has them in this order.
pub fn parts<A>(ticket: Ticket<Vec<A>>, count: usize) -> Vec<Part<A>> {
    let parts = std::iter::repeat_with(|| None).take(count).collect();
    let gather = Arc::new(Mutex::new(Gather { ticket: Some(ticket), parts, missing: count }));
    (0..count).map(|place| Part { gather: Arc::clone(&gather), place, done: false }).collect()
}

impl<A> Part<A> {
    /// Whether this part's work can be spared: the caller has gone away, or the request has failed by another part.
    pub fn is_cancelled(&self) -> bool {
        self.with(|gather| gather.ticket.as_ref().is_none_or(Ticket::is_cancelled))
    }

    /// Gives the part's result.
    pub fn finish(mut self, result: A) {
        self.done = true;
        let whole = self.with(|gather| {
            gather.parts[self.place] = Some(result);
            gather.missing -= 1;
            if gather.missing > 0 {
                return None;
            }
            let parts = std::mem::take(&mut gather.parts).into_iter().flatten().collect();
            Some((gather.ticket.take()?, parts))
        });
        // The answer is given without the lock: it runs the caller's code.
        if let Some((ticket, parts)) = whole {
            ticket.finish(parts);
        }
    }

    /// Fails the whole request.
    pub fn fail(mut self, failure: Failure) {
        self.end(failure);
    }

    fn end(&mut self, failure: Failure) {
        self.done = true;
        if let Some(ticket) = self.with(|gather| gather.ticket.take()) {
            ticket.fail(failure);
        }
    }

    fn with<R>(&self, work: impl FnOnce(&mut Gather<A>) -> R) -> R {
        work(&mut self.gather.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<A> Drop for Part<A> {
    fn drop(&mut self) {
        if !self.done {
            self.end(Failure::Forgotten);
        }
    }
}

impl<A> std::fmt::Debug for Part<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "part {}", self.place)
    }
}
