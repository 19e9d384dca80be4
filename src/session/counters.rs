//! What a session has made: counts that rise, so that two readings tell whether anything was made between them.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
    /// The time that planning took, the compiling and loading of code that waited for it among it.
    pub plan_time: Duration,
    /// The time that captures took.
    pub graph_time: Duration,
    /// The time that allocations took, but for those of plans and indices.
    pub alloc_time: Duration,
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
            plan_time: self.plan_time - earlier.plan_time,
            graph_time: self.graph_time - earlier.graph_time,
            alloc_time: self.alloc_time - earlier.alloc_time,
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
    /// The nanoseconds that planning, captures and allocations took.
    pub plan_time: Spent,
    pub graph_time: Spent,
    pub alloc_time: Spent,
}

/// This moment; none in a browser, where the standard library has no clock.
pub fn now() -> Option<Instant> {
    (!cfg!(target_family = "wasm")).then(Instant::now)
}

/// A sum of times, in nanoseconds.
#[derive(Default)]
pub struct Spent(AtomicU64);

impl Spent {
    /// What `work` gives, whose time is added.
    pub fn on<T>(&self, work: impl FnOnce() -> T) -> T {
        let began = now();
        let made = work();
        self.since(began);
        made
    }

    /// Adds the time since `began`.
    pub fn since(&self, began: Option<Instant>) {
        let took = began.map_or(Duration::ZERO, |began| began.elapsed());
        self.0.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    fn sum(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
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
        let [plan_time, graph_time, alloc_time] = [&self.plan_time, &self.graph_time, &self.alloc_time].map(Spent::sum);
        Counters { plans, graphs, buffers, bytes, compiled, plan_time, graph_time, alloc_time }
    }
}
