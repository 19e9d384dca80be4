//! Ctrl-C: the first asks the work to end soon and to tell what it has; a second ends the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;
use signal_hook::low_level::exit;
use trifuse::{Error, Result};

/// The exit status of a program that was interrupted, as shells have it: 128 and the signal's number.
pub const STATUS: u8 = 130;
/// Signals that follow the first within this time are the same one: `timeout -s INT` sends it to the program, and again to its process group.
const SAME: Duration = Duration::from_millis(500);

/// Whether Ctrl-C was pressed.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from here on.
    pub fn listen() -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        let mut signals = Signals::new([SIGINT]).map_err(Error::io("signals", "listen for"))?;
        let ask = Arc::clone(&asked);
        let listen = move || {
            let mut first: Option<Instant> = None;
            for _ in signals.forever() {
                ask.store(true, Ordering::Relaxed);
                if first.get_or_insert_with(Instant::now).elapsed() > SAME {
                    exit(STATUS.into());
                }
            }
        };
        std::thread::Builder::new().name("interrupt".into()).spawn(listen).map_err(Error::io("signals", "listen for"))?;
        Ok(Self(asked))
    }

    /// Whether it was.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
