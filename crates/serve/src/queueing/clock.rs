//! Time as a number that a test can turn.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A source of time.
pub trait Clock: Send + Sync {
    /// The time since a moment that stays the same.
    fn now(&self) -> Duration;
}

/// The system's monotonic clock.
#[derive(Debug)]
pub struct Monotonic(Instant);

impl Default for Monotonic {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A clock that stands until it is turned.
#[derive(Debug, Default)]
pub struct Turned(AtomicU64);

impl Turned {
    /// Turns the clock on by that much.
    pub fn turn(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(by, Ordering::Relaxed);
    }
}

impl Clock for Turned {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}
