//! What a request's work took: the time until it reached a device, and the time there.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The times of a request's work.
#[derive(Debug, Default)]
pub struct Spent(Mutex<Option<[Duration; 2]>>);

impl Spent {
    fn lock(&self) -> MutexGuard<'_, Option<[Duration; 2]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A part of the work has waited so long for the device, and its batch took so long there.
    pub fn ran(&self, waited: Duration, took: Duration) {
        let mut times = self.lock();
        if times.is_none_or(|[longest, _]| waited >= longest) {
            *times = Some([waited, took]);
        }
    }

    /// The time until the last part reached a device, and the time of the batch with it; `None` where none has.
    pub fn times(&self) -> Option<[Duration; 2]> {
        *self.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_that_waited_longest_counts() {
        let (spent, time) = (Spent::default(), Duration::from_millis);
        assert_eq!(spent.times(), None);
        for (waited, took) in [(2, 5), (7, 1), (3, 9)] {
            spent.ran(time(waited), time(took));
        }
        assert_eq!(spent.times(), Some([time(7), time(1)]));
    }
}
