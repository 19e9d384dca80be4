//! What became of what was asked.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A count that many threads add to.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn one(&self) {
        self.many(1);
    }

    pub fn many(&self, more: u64) {
        self.0.fetch_add(more, Ordering::SeqCst);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

macro_rules! counts {
    ($($(#[$about:meta])* $name:ident),* $(,)?) => {
        /// The counts of a life, or of all.
        #[derive(Debug, Default)]
        pub struct Counts {
            $($(#[$about])* pub $name: Count),*
        }

        impl Counts {
            /// Adds those of another.
            pub fn add(&self, other: &Self) {
                $(self.$name.many(other.$name.get());)*
            }

            fn each(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get())),*]
            }
        }
    };
}

counts! {
    /// Requests of callers that were due while a server was not told to end, those that were sent, and those that were sent late.
    due, sent, behind,
    /// Whole answers of callers who wait for them, each compared bit for bit; and the streams among them.
    right, streams,
    /// Right answers among them that are of adapters which come and go; 404 of one that was not there.
    late, absent,
    /// Right answers by the open inference protocol: of encoders; of attention; with tensors in regions of the caller; with a region that all share.
    inferred, attended, resident, shared,
    /// Changes of adapters: loaded, or there already; unloaded; not done, since a name is taken, not there, or leads elsewhere; refused for broken files.
    loaded, unloaded, kept, broken,
    /// Lives in which every adapter that comes and goes went, and the devices forgot them.
    cleared,
    /// 429; 500 where a fault was planned; 504; 503 of a lost device.
    refused, failed, expired, lost,
    /// 503 where the device of operations had no room, as was planned for so many of its tasks.
    denied, crowded,
    /// What the server said as it ended: 503, or the end of a connection on which no answer had begun.
    draining, over,
    /// Requests of hostile clients that the server may have let in, whatever became of them.
    strange,
    /// Hostile clients by their sort.
    vanished, dripped, starved, halved, mangled,
    /// Client processes that were killed, and what they had asked for.
    killed, of_processes,
    /// Bodies that were changed and sent on connections that are kept; those among them that are answered all the same, and those that are refused.
    mutants, sound, unsound,
    /// Changed bodies that were due while a server was not told to end, and those that were sent by then.
    mutants_due, mutants_sent,
    /// Queries of attention among those refused, which the device may have been asked about.
    unsure,
    /// Faults that the device had, the rows of batches that they cost, and how often it stood still.
    faults, blamed, stalls,
    /// Adapters for which the device had no room.
    roomless,
    /// Requests that the server let in, and those that were given up by their callers.
    accepted, cancelled,
}

impl Counts {
    /// Fails unless as much was asked as was due: who asks must not wait with the server.
    pub fn check_pace(&self) {
        let most = |sent: &Count, due: &Count| sent.get() * 10 >= due.get() * 9;
        assert!(most(&self.sent, &self.due) && most(&self.mutants_sent, &self.mutants_due), "less was sent than was due: {self}");
        assert!(self.behind.get() * 10 <= self.sent.get(), "much was sent late: {self}");
        assert!(self.refused.get() > 0, "twice as much as can be done is never too much: {self}");
    }

    /// Fails unless everything that can happen did.
    pub fn check_every_sort(&self) {
        let never: Vec<_> = self
            .each()
            .into_iter()
            .filter(|(name, count)| *count == 0 && !["behind", "expired", "failed", "blamed", "lost", "roomless"].contains(name))
            .collect();
        assert!(never.is_empty(), "it never happened: {never:?}; {self}");
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.each().into_iter().map(|(name, count)| format!("{count} {name}")).collect();
        f.write_str(&words.join(", "))
    }
}
