//! What a device does wrong, by a schedule of a seed.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use rand::{Rng as _, SeedableRng as _};
use trifuse::model::Row;
use trifuse::{Error, Result};

use super::counts::Counts;
use super::mutate::Rng;

/// A device's faults.
pub struct Faults {
    rng: Rng,
    /// Batches until it fails for good.
    batches: u64,
    /// Whether it does anything wrong on the way.
    any: bool,
}

/// What devices are told by the test, and tell it.
#[derive(Debug, Default)]
pub struct Told {
    /// They are to be lost with what they do next.
    pub lost: AtomicBool,
    /// Adapters of names that come and go which they hold, all together.
    pub held: AtomicI64,
}

impl Faults {
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng::seed_from_u64(seed), batches: u64::MAX, any: true }
    }

    /// Those of a device that has none until it is lost.
    pub fn none() -> Self {
        Self { any: false, ..Self::new(0) }
    }

    /// Those of a device that does not live long.
    pub fn short(seed: u64) -> Self {
        let mut rng = Rng::seed_from_u64(seed);
        let batches = rng.random_range(5..60);
        Self { rng, batches, any: true }
    }

    /// What happens before a batch.
    ///
    /// # Errors
    /// A fault that is planned.
    pub fn before(&mut self, rows: &[Row<'_>], told: &Told, counts: &Counts) -> Result<()> {
        let fault = |error: Error| {
            counts.faults.one();
            counts.blamed.many(rows.len() as u64);
            Err(error)
        };
        self.batches = self.batches.saturating_sub(1);
        if told.lost.load(Ordering::SeqCst) || self.batches == 0 {
            return fault(Error::device("a launch", "gone, as planned"));
        }
        match self.rng.random_range(0..1000) {
            _ if !self.any => Ok(()),
            0..15 => {
                counts.stalls.one();
                std::thread::sleep(Duration::from_millis(self.rng.random_range(20..120)));
                Ok(())
            }
            // The batch is tried in halves, whose turn this is too.
            15..45 => fault(Error::OutOfMemory { requested: 1, purpose: "a soak".into() }),
            45..50 => fault(Error::invalid("a launch", "no fault", "one that is planned")),
            _ => Ok(()),
        }
    }

    /// What happens before an adapter is added.
    ///
    /// # Errors
    /// A fault that is planned.
    pub fn adding(&mut self, told: &Told, counts: &Counts) -> Result<()> {
        if told.lost.load(Ordering::SeqCst) {
            counts.faults.one();
            return Err(Error::device("an adapter", "gone, as planned"));
        }
        if self.any && self.rng.random_ratio(1, 10) {
            counts.roomless.one();
            return Err(Error::OutOfMemory { requested: 1, purpose: "a soak's adapter".into() });
        }
        Ok(())
    }
}
