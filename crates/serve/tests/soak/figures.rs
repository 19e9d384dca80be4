//! What the process holds: memory, descriptors, threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How much more may be held at the end, in bytes: what a thread or a table keeps for the next request.
const MORE: usize = 256 << 10;
/// Besides, for each processor: the tokenizer's regular expressions keep a cache for every thread that was in one at the same time as others, of some 30 KiB
/// each, and no life is sure to have had as many at once as the next.
const OF_A_PROCESSOR: usize = 40 << 10;
/// How much more may be resident at the end, beside a twentieth: pages that the allocator keeps though nobody holds them.
const KEPT_KIB: u64 = 16 << 10;

/// From how many bytes on an allocation is not counted as held: what a thread reserves with its first product of matrices, twice the largest cache of the
/// processor, of which nothing is touched. What is touched of such memory is resident, and bounded as that.
const RESERVED: usize = 32 << 20;

static HELD: AtomicUsize = AtomicUsize::new(0);

/// What an allocation of `size` bytes counts.
const fn counted(size: usize) -> usize {
    if size < RESERVED { size } else { 0 }
}

/// The system's allocator, and how many bytes of it are held.
pub struct Counting;

// SAFETY: every call goes to the system's allocator as it is; counting touches no memory that it gives.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        let at = unsafe { System.alloc(layout) };
        HELD.fetch_add(if at.is_null() { 0 } else { counted(layout.size()) }, Ordering::Relaxed);
        at
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        let at = unsafe { System.alloc_zeroed(layout) };
        HELD.fetch_add(if at.is_null() { 0 } else { counted(layout.size()) }, Ordering::Relaxed);
        at
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        let moved = unsafe { System.realloc(at, layout, size) };
        if !moved.is_null() {
            HELD.fetch_add(counted(size), Ordering::Relaxed);
            HELD.fetch_sub(counted(layout.size()), Ordering::Relaxed);
        }
        moved
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.dealloc(at, layout) };
        HELD.fetch_sub(counted(layout.size()), Ordering::Relaxed);
    }
}

/// What the process holds.
#[derive(Debug)]
pub struct Figures {
    /// Allocated and not freed, in allocations that count.
    held: usize,
    /// Resident, with what the allocator keeps, and with files and memory that are mapped.
    kib: u64,
    descriptors: usize,
    threads: usize,
}

impl Figures {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
        let entries = |folder: &str| std::fs::read_dir(folder).map_or(0, Iterator::count);
        Self { held: HELD.load(Ordering::Relaxed), kib: resident.unwrap_or(0), descriptors: entries("/proc/self/fd"), threads: entries("/proc/self/task") }
    }

    /// What it holds once threads that are to end have ended: the same number of them for a while.
    pub fn settled() -> Self {
        let began = Instant::now();
        let mut last = Self::now();
        loop {
            std::thread::sleep(Duration::from_millis(300));
            let now = Self::now();
            if (now.threads, now.descriptors) == (last.threads, last.descriptors) || began.elapsed() > Duration::from_secs(10) {
                return now;
            }
            last = now;
        }
    }

    /// Fails where more is held than `before`.
    pub fn check(&self, before: &Self) {
        assert!(self.descriptors <= before.descriptors, "descriptors are not given back: {before}, then {self}");
        assert!(self.threads <= before.threads, "threads do not end: {before}, then {self}");
        let more = MORE + OF_A_PROCESSOR * std::thread::available_parallelism().map_or(1, usize::from);
        assert!(self.held <= before.held + more, "memory is not given back: {before}, then {self}, with {more} bytes allowed");
        assert!(self.kib <= before.kib + before.kib / 20 + KEPT_KIB, "memory stays resident: {before}, then {self}");
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} MiB held, {:.1} resident, {} descriptors, {} threads",
            self.held as f64 / 1048576.0,
            self.kib as f64 / 1024.0,
            self.descriptors,
            self.threads
        )
    }
}
