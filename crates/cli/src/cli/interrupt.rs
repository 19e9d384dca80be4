//! Ctrl-C, and the SIGTERM of a service manager: the first asks the work to end soon and to tell what it has; a second ends the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, sleep};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use trifuse::{Error, Result};

/// The exit status of a program that was interrupted, as shells have it: 128 and the signal's number.
pub const STATUS: u8 = 130;
/// Signals that follow the first within this time are the same one: `timeout -s INT` sends it to the program, and again to its process group.
const SAME: Duration = Duration::from_millis(500);

/// Whether Ctrl-C was pressed, or the program asked to end.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from here on.
    pub fn listen() -> Result<Self> {
        let (asked, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let listen =
            |signal| flag::register_conditional_shutdown(signal, STATUS.into(), Arc::clone(&ends)).and_then(|_| flag::register(signal, Arc::clone(&asked)));
        [SIGINT, SIGTERM]
            .into_iter()
            .try_for_each(|signal| listen(signal).map(drop))
            .and_then(|()| {
                let first = Arc::clone(&asked);
                // A handler may do no more than set a flag, and the work may be in one call for long: so it takes a thread to tell the time.
                Builder::new().name("interrupt".into()).spawn(move || {
                    loop {
                        let asked = first.load(Ordering::Relaxed);
                        sleep(if asked { SAME } else { SAME / 5 });
                        // A signal that was answered meanwhile is not the first of two.
                        ends.store(asked && first.load(Ordering::Relaxed), Ordering::Relaxed);
                    }
                })
            })
            .map_err(Error::io("signals", "listen for"))?;
        Ok(Self(asked))
    }

    /// Takes it as answered: what it was to end has ended, and the program goes on.
    pub fn forget(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether it was.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
