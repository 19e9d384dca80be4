//! What a session has made: counts that rise, so that two readings tell whether anything was made between them.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};

/// What was made since a session began. The difference of two readings is what was made between them: zeros where only plans that were there
/// ran on memory that was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Operations that were planned.
    pub plans: u64,
    /// Graphs that were captured.
    pub graphs: u64,
    /// Allocations of at least a byte, of the device's memory and of the host's for its copies, those for plans and indices among them.
    pub buffers: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Pieces of code that the device has compiled or loaded, for all of its sessions ([`Device::compiled`](crate::device::Device::compiled)).
    pub compiled: u64,
}

impl Sub for Counters {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            plans: self.plans - earlier.plans,
            graphs: self.graphs - earlier.graphs,
            buffers: self.buffers - earlier.buffers,
            bytes: self.bytes - earlier.bytes,
            compiled: self.compiled - earlier.compiled,
        }
    }
}

/// The counts of one session. Methods that take a session by reference count too, so the numbers are atomic; nothing is ordered by them.
#[derive(Default)]
pub struct Counted {
    plans: AtomicU64,
    graphs: AtomicU64,
    buffers: AtomicU64,
    bytes: AtomicU64,
}

impl Counted {
    /// Notes an allocation.
    pub fn buffer(&self, bytes: u64) {
        if bytes > 0 {
            self.buffers.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Notes a plan with a workspace of so many bytes.
    pub fn plan(&self, workspace_bytes: u64) {
        self.plans.fetch_add(1, Ordering::Relaxed);
        self.buffer(workspace_bytes);
    }

    /// Notes a captured graph.
    pub fn graph(&self) {
        self.graphs.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts so far, and what the device says of its own.
    pub fn read(&self, compiled: u64) -> Counters {
        let [plans, graphs, buffers, bytes] = [&self.plans, &self.graphs, &self.buffers, &self.bytes].map(|count| count.load(Ordering::Relaxed));
        Counters { plans, graphs, buffers, bytes, compiled }
    }
}
