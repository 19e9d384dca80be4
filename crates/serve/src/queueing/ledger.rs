//! The count of requests by what came of them: accepted = finished + failed + cancelled + expired, once none is under way.

use std::sync::atomic::{AtomicU64, Ordering};

/// What came of a request that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Its answer was given.
    Finished,
    /// A fault of the server or of the device.
    Failed,
    /// The caller went away.
    Cancelled,
    /// Its deadline passed before it reached the device.
    Expired,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 4] = [Self::Finished, Self::Failed, Self::Cancelled, Self::Expired];

    /// The outcome's name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }
}

/// The counts of a server.
#[derive(Debug, Default)]
pub struct Ledger {
    accepted: AtomicU64,
    ended: [AtomicU64; 4],
}

impl Ledger {
    /// Counts a request that was accepted.
    pub fn accept(&self) {
        self.accepted.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts the end of a request.
    pub fn end(&self, outcome: Outcome) {
        self.ended[outcome as usize].fetch_add(1, Ordering::SeqCst);
    }

    /// How many requests were accepted.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }

    /// How many requests ended so.
    pub fn ended(&self, outcome: Outcome) -> u64 {
        self.ended[outcome as usize].load(Ordering::SeqCst)
    }

    /// How many requests are under way.
    pub fn open(&self) -> u64 {
        // The ends are read first: a request that is accepted and ends meanwhile must not make this negative.
        let ended: u64 = Outcome::ALL.iter().map(|outcome| self.ended(*outcome)).sum();
        self.accepted().saturating_sub(ended)
    }
}
