//! How often each model has answered by the open inference protocol, and how long it took.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// The requests of a model that ended in one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub count: u64,
    /// How long they took together, in nanoseconds.
    pub ns: u64,
}

impl Count {
    fn add(&mut self, took: Duration) {
        self.count += 1;
        self.ns = self.ns.saturating_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }
}

/// What a model has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were answered.
    pub success: Count,
    /// Requests that were not.
    pub fail: Count,
    /// Those of either that reached a device, and the time until then.
    pub queue: Count,
    /// The same, and the time of their batches there.
    pub compute: Count,
    /// When the last one was answered, in milliseconds since 1970.
    pub last_ms: u64,
}

/// What all models have done.
#[derive(Debug, Default)]
pub struct Stats(Mutex<BTreeMap<String, Counts>>);

impl Stats {
    /// Counts a request of a model that is there; `spent` is the time until it reached a device, and the time of its batch there.
    pub fn add(&self, model: &str, answered: bool, took: Duration, spent: Option<[Duration; 2]>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(model) {
            all.insert(model.to_owned(), Counts::default());
        }
        let Some(counts) = all.get_mut(model) else { return };
        if let Some([waited, computed]) = spent {
            counts.queue.add(waited);
            counts.compute.add(computed);
        }
        match answered {
            true => {
                counts.success.add(took);
                counts.last_ms = u64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis()).unwrap_or(u64::MAX);
            }
            false => counts.fail.add(took),
        }
    }

    /// What a model has done.
    pub fn of(&self, model: &str) -> Counts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(model).copied().unwrap_or_default()
    }
}
