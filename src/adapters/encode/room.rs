//! The memory that wide calibrated projections take while they are encoded: bounded for all threads together.

use std::sync::{Condvar, Mutex, PoisonError};

/// Bytes that the projections of more than [`NARROW`] inputs take together. One that takes more is encoded alone.
pub(super) const ROOM: u64 = 2 << 30;
/// Inputs up to which projections do not wait for each other: a second moment of so many takes 128 MiB.
pub(super) const NARROW: usize = 4096;

static TAKEN: Mutex<u64> = Mutex::new(0);
static LEFT: Condvar = Condvar::new();

/// Room that was taken, and is given back when this is dropped.
///
/// Whoever holds one must not wait for other threads' work: that may be waiting for room.
pub(super) struct Room(u64);

impl Room {
    /// Waits until there is room for a projection of this width that takes so many bytes.
    pub(super) fn take(d_in: usize, bytes: u64) -> Self {
        let bytes = if d_in <= NARROW { 0 } else { bytes };
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |taken: &mut u64| *taken > 0 && taken.saturating_add(bytes) > ROOM && bytes > 0;
        let mut taken = LEFT.wait_while(taken, full).unwrap_or_else(PoisonError::into_inner);
        *taken = taken.saturating_add(bytes);
        Self(bytes)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        *taken = taken.saturating_sub(self.0);
        drop(taken);
        LEFT.notify_all();
    }
}

/// The rows of `rows` that a factor by rows is made of, at most: those of which it takes no more than [`ROOM`].
pub(super) fn fitting(rows: usize, d_in: usize) -> usize {
    let (mut fits, mut too_many) = (1, rows.saturating_add(1));
    while too_many - fits > 1 {
        let middle = fits.midpoint(too_many);
        if by_rows(middle, d_in) <= ROOM { fits = middle } else { too_many = middle }
    }
    fits
}

/// Bytes of a factor of so many rows: each row twice in f64, and two squares of their products.
pub(super) fn by_rows(rows: usize, d_in: usize) -> u64 {
    16u64.saturating_mul(rows as u64).saturating_mul(d_in.saturating_add(rows) as u64)
}

/// Bytes of a second moment, which its factor takes the place of.
pub(super) fn by_moment(d_in: usize) -> u64 {
    8u64.saturating_mul(d_in as u64).saturating_mul(d_in as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::*;

    #[test]
    fn no_more_is_taken_at_once_than_there_is() {
        let (held, most) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for bytes in [1 << 30, 1 << 30, ROOM, 3 << 29, 1 << 20, ROOM + 1, 1 << 29, 1 << 30] {
                let (held, most) = (&held, &most);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let room = Room::take(NARROW + 1, bytes);
                        most.fetch_max(held.fetch_add(bytes, SeqCst) + bytes, SeqCst);
                        std::thread::yield_now();
                        held.fetch_sub(bytes, SeqCst);
                        drop(room);
                    }
                });
            }
        });
        assert!((ROOM..=ROOM + 1).contains(&most.load(SeqCst)), "{most:?}");
        // What is narrow waits for nothing.
        let (_all, _narrow) = (Room::take(NARROW + 1, ROOM), Room::take(NARROW, ROOM));
    }

    #[test]
    fn a_factor_by_rows_is_within_the_room() {
        for d_in in [4097, 16_385, 28_672, 1 << 24] {
            let rows = fitting(usize::MAX / 2, d_in);
            assert!(by_rows(rows, d_in) <= ROOM && by_rows(rows + 1, d_in) > ROOM && rows >= 7, "{d_in}: {rows}");
            assert_eq!(fitting(6, d_in), 6);
        }
        assert!(fitting(2048, 28_672) == 2048 && by_moment(16_384) == ROOM);
    }
}
