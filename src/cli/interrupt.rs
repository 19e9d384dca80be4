//! Ctrl-C: the first asks the work to end soon and to tell what it has; a second ends the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;
use signal_hook::flag;
use trifuse::{Error, Result};

/// The exit status of a program that was interrupted, as shells have it: 128 and the signal's number.
pub const STATUS: u8 = 130;

/// Whether Ctrl-C was pressed.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from here on.
    pub fn listen() -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        // In this order: the first signal finds the flag unset here, and sets it below.
        flag::register_conditional_shutdown(SIGINT, STATUS.into(), Arc::clone(&asked))
            .and_then(|_| flag::register(SIGINT, Arc::clone(&asked)))
            .map_err(Error::io("signals", "listen for"))?;
        Ok(Self(asked))
    }

    /// Whether it was.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
