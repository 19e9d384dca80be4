//! SIGHUP to a server with a file of keys: the file is read again, and what it says holds from there on.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trifuse::Result;
use trifuse_serve::{Handle, Keys};

use crate::cli::output::Output;

/// A file of keys that is read again when that is asked.
pub struct Renewal<'a> {
    file: Option<&'a Path>,
    asked: Arc<AtomicBool>,
}

impl<'a> Renewal<'a> {
    /// Listens from here on, where there is a file. Without one the signal means what it means to any program.
    pub fn of(file: Option<&'a Path>) -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        #[cfg(unix)]
        if file.is_some() {
            signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::clone(&asked)).map_err(trifuse::Error::io("signals", "listen for"))?;
        }
        Ok(Self { file, asked })
    }

    /// Reads the file where that was asked. One that cannot be read changes nothing.
    pub fn step(&self, handle: &Handle, output: &Output) {
        let Some(file) = self.file.filter(|_| self.asked.swap(false, Ordering::Relaxed)) else { return };
        match Keys::open(file) {
            Ok(keys) => {
                handle.renew_keys(keys);
                output.note(format_args!("{} was read again", file.display()));
            }
            Err(error) => output.note(format_args!("the keys stay as they were: {error}")),
        }
    }
}
