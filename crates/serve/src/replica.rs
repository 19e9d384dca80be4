//! One of the devices of a model: whether it works, and what it has done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A device that has the whole model, as others may have it too.
#[derive(Debug)]
pub struct Replica {
    device: String,
    lost: AtomicBool,
    tasks: AtomicU64,
    tokens: AtomicU64,
    handed_on: AtomicU64,
}

/// What a device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Sentences, prompts or operations that it has dealt with.
    pub tasks: u64,
    /// Tokens that it has read or written for them.
    pub tokens: u64,
    /// Tasks with which it has failed, and which another device has taken over.
    pub handed_on: u64,
}

impl Replica {
    /// A device that works, by its name, such as `cuda:1`.
    pub fn new(device: impl Into<String>) -> Arc<Self> {
        let zero = AtomicU64::default;
        Arc::new(Self { device: device.into(), lost: AtomicBool::new(false), tasks: zero(), tokens: zero(), handed_on: zero() })
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Whether it has failed, and gets no more work.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Gives it up; whether it worked until now.
    pub fn lose(&self) -> bool {
        !self.lost.swap(true, Ordering::AcqRel)
    }

    /// Counts work that is done.
    pub fn did(&self, tasks: u64, tokens: u64) {
        self.tasks.fetch_add(tasks, Ordering::Relaxed);
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Counts work that another device takes over.
    pub fn handed_on(&self, tasks: u64) {
        self.handed_on.fetch_add(tasks, Ordering::Relaxed);
    }

    /// What it has done.
    pub fn done(&self) -> Done {
        let [tasks, tokens, handed_on] = [&self.tasks, &self.tokens, &self.handed_on].map(|count| count.load(Ordering::Relaxed));
        Done { tasks, tokens, handed_on }
    }
}
