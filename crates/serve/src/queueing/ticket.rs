//! The promise of exactly one answer to a request. Whoever holds the [`Ticket`] gives the answer, and gives it up by that; a ticket that is dropped
//! answers that the server failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::ledger::{Ledger, Outcome};

/// Why a request that was accepted has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Its deadline passed in the queue.
    Expired,
    /// The server ends, and will not come to it.
    Draining,
    /// The device is gone.
    DeviceLost,
    /// The server's own fault, in words for its log.
    Internal(String),
    /// Nobody answered: a fault of the server that the ticket's end has shown.
    Forgotten,
}

type Answer<A> = Box<dyn FnOnce(Result<A, Failure>) + Send>;

/// A request's right to one answer.
pub struct Ticket<A> {
    /// `None` once the answer is given.
    answer: Option<Answer<A>>,
    gone: Arc<AtomicBool>,
    ledger: Arc<Ledger>,
}

/// The caller's side of a [`Ticket`]: whoever drops it has gone away.
#[derive(Debug)]
pub struct Waiter(Arc<AtomicBool>);

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Accepts a request, whose answer goes to `answer`.
pub fn accept<A>(ledger: &Arc<Ledger>, answer: impl FnOnce(Result<A, Failure>) + Send + 'static) -> (Ticket<A>, Waiter) {
    ledger.accept();
    let gone = Arc::new(AtomicBool::new(false));
    (Ticket { answer: Some(Box::new(answer)), gone: Arc::clone(&gone), ledger: Arc::clone(ledger) }, Waiter(gone))
}

impl<A> Ticket<A> {
    /// Whether the caller has gone away, so that the work can be spared.
    pub fn is_cancelled(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Gives the result.
    pub fn finish(mut self, result: A) {
        self.end(Ok(result));
    }

    /// Gives the reason why there is no result.
    pub fn fail(mut self, failure: Failure) {
        self.end(Err(failure));
    }

    fn end(&mut self, result: Result<A, Failure>) {
        let Some(answer) = self.answer.take() else { return };
        self.ledger.end(match &result {
            _ if self.is_cancelled() => Outcome::Cancelled,
            Ok(_) => Outcome::Finished,
            Err(Failure::Expired) => Outcome::Expired,
            Err(_) => Outcome::Failed,
        });
        answer(result);
    }
}

impl<A> Drop for Ticket<A> {
    fn drop(&mut self) {
        self.end(Err(Failure::Forgotten));
    }
}

impl<A> std::fmt::Debug for Ticket<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ticket, {}", if self.is_cancelled() { "cancelled" } else { "open" })
    }
}
