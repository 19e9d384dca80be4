//! What is wrong with a parser.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

/// The words of the last panic, with its place.
static LAST_PANIC: Mutex<String> = Mutex::new(String::new());
static QUIET: AtomicBool = AtomicBool::new(false);

/// A fault and the input that shows it.
#[derive(Clone, Debug)]
pub struct Finding {
    pub input: Vec<u8>,
    pub fault: Fault,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// What the panic says, and where.
    Panic(String),
    /// Bytes that were held at once.
    Memory(usize),
    /// Time of the processor.
    Time(Duration),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.input.len();
        match &self.fault {
            Fault::Panic(told) => write!(f, "{bytes} bytes, panics: {told}"),
            Fault::Memory(held) => write!(f, "{bytes} bytes, holds {} MiB at once", held >> 20),
            Fault::Time(time) => write!(f, "{bytes} bytes, takes {:.1} s", time.as_secs_f64()),
        }
    }
}

/// Runs `work`, during which a panic's words are kept instead of printed: the parsers catch those of the libraries below them.
pub fn quietly<T>(work: impl FnOnce() -> T) -> T {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| if QUIET.load(Relaxed) { *kept() = panic.to_string().replace('\n', " ") } else { loud(panic) }));
    });
    QUIET.store(true, Relaxed);
    let done = work();
    QUIET.store(false, Relaxed);
    done
}

/// What the last panic said.
pub fn last_panic() -> String {
    kept().clone()
}

fn kept() -> MutexGuard<'static, String> {
    LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner)
}
