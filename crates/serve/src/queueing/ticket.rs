//! The promise of exactly one answer to a request. Whoever holds the [`Ticket`] gives the answer, and gives it up by that; a ticket that is dropped
//! answers that the server failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

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
    caller: Arc<AtomicU8>,
    ledger: Arc<Ledger>,
}

/// The caller waits for more.
const WAITS: u8 = 0;
/// The caller has all that was wanted.
const SATISFIED: u8 = 1;
/// The caller went away.
const GONE: u8 = 2;

/// The caller's side of a [`Ticket`]: whoever drops it has gone away.
#[derive(Debug)]
pub struct Waiter(Arc<AtomicU8>);

impl Waiter {
    /// Has enough: the work can end, and is counted as finished.
    pub fn satisfied(&self) {
        self.0.store(SATISFIED, Ordering::Release);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        // Who is satisfied is not gone.
        let _ = self.0.compare_exchange(WAITS, GONE, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// Accepts a request, whose answer goes to `answer`.
pub fn accept<A>(ledger: &Arc<Ledger>, answer: impl FnOnce(Result<A, Failure>) + Send + 'static) -> (Ticket<A>, Waiter) {
    ledger.accept();
    let caller = Arc::new(AtomicU8::new(WAITS));
    (Ticket { answer: Some(Box::new(answer)), caller: Arc::clone(&caller), ledger: Arc::clone(ledger) }, Waiter(caller))
}

impl<A> Ticket<A> {
    /// Whether nobody waits for more, so that the work can be spared.
    pub fn is_cancelled(&self) -> bool {
        self.caller.load(Ordering::Acquire) != WAITS
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
        self.ledger.end(match (self.caller.load(Ordering::Acquire), &result) {
            (GONE, _) => Outcome::Cancelled,
            (SATISFIED, _) | (_, Ok(_)) => Outcome::Finished,
            (_, Err(Failure::Expired)) => Outcome::Expired,
            (_, Err(_)) => Outcome::Failed,
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
