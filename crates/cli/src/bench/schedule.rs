//! How often work is timed.

use serde::Serialize;

/// How often and how long.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Schedule {
    /// Runs before the first that is timed.
    pub warmup: u32,
    /// Timed runs.
    pub iterations: u32,
    /// Seconds after which no further run is timed, once [`LEAST`](super::timing::LEAST) are.
    pub limit_seconds: f64,
}

impl Default for Schedule {
    /// The schedule of the reference harness: 10 runs to warm up, 50 timed.
    fn default() -> Self {
        Self { warmup: 10, iterations: 50, limit_seconds: 10.0 }
    }
}
