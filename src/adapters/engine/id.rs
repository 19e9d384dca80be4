//! Numbers of adapters and engines.

use std::sync::atomic::{AtomicU64, Ordering};

/// An adapter that an engine knows. It stays valid until the adapter is removed. No two in a program are equal, not even of different
/// engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterId(pub(super) u64);

impl AdapterId {
    /// The adapter's number, which no other adapter of this program has or had.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Numbers of engines and of adapters. None is given twice.
pub(super) fn numbers(count: usize) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(count as u64, Ordering::Relaxed)
}
