//! What the process holds: memory, descriptors, threads.

use std::fmt;
use std::time::{Duration, Instant};

/// What the process holds.
#[derive(Debug)]
pub struct Figures {
    kib: u64,
    descriptors: usize,
    threads: usize,
}

impl Figures {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
        let entries = |folder: &str| std::fs::read_dir(folder).map_or(0, Iterator::count);
        Self { kib: resident.unwrap_or(0), descriptors: entries("/proc/self/fd"), threads: entries("/proc/self/task") }
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
        assert!(self.kib <= before.kib + before.kib / 20, "memory is not given back: {before}, then {self}");
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB, {} descriptors, {} threads", self.kib as f64 / 1024.0, self.descriptors, self.threads)
    }
}
