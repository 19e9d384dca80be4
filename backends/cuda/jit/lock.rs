//! An advisory lock between processes, on a file of its own. The system releases it where its process dies.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest wait. A process that was stopped, but not ended, holds its locks.
const PATIENCE: Duration = Duration::from_secs(300);

/// A lock that is held until it is dropped. The file is removed then.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: std::fs::File,
}

impl Lock {
    /// Waits for the lock on the file `path`. `None` where there is no lock: in a read-only folder, or on a system without such locks.
    pub fn wait(path: &Path) -> Option<Self> {
        let end = Instant::now() + PATIENCE;
        let mut pause = Duration::from_millis(1);
        loop {
            match attempt(path) {
                Attempt::Held(file) => return Some(Self { path: path.to_owned(), _file: file }),
                Attempt::Never => return None,
                Attempt::Later if Instant::now() > end => return None,
                Attempt::Later => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The lock is still held here: who waits for this file finds that it is gone, and makes another.
        std::fs::remove_file(&self.path).unwrap_or_default();
    }
}

enum Attempt {
    Held(std::fs::File),
    Later,
    Never,
}

#[cfg(unix)]
fn attempt(path: &Path) -> Attempt {
    use std::os::unix::fs::MetadataExt;

    use rustix::fs::{FlockOperation, flock};
    use rustix::io::Errno;

    let Ok(file) = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path) else { return Attempt::Never };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Attempt::Later,
        Err(_) => return Attempt::Never,
    }
    // The former holder has removed its file, and another process may have made a new one by now.
    let place = |data: &std::fs::Metadata| (data.dev(), data.ino());
    let same = matches!((file.metadata(), std::fs::metadata(path)), (Ok(held), Ok(there)) if place(&held) == place(&there));
    if same { Attempt::Held(file) } else { Attempt::Later }
}

#[cfg(not(unix))]
fn attempt(_: &Path) -> Attempt {
    Attempt::Never
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_holds_it_at_a_time_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let (inside, times) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let _lock = Lock::wait(&path).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        times.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!((times.into_inner(), path.exists()), (160, false));
    }

    #[test]
    fn a_file_that_a_dead_process_left_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        std::fs::write(&path, b"").unwrap();
        assert!(Lock::wait(&path).is_some());
        assert!(Lock::wait(&folder.path().join("no folder/a.lock")).is_none());
    }
}
