//! A folder for parsers that read files by name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder that goes with its thread, and the files that stay in it.
pub struct Scratch {
    folder: TempDir,
    /// What the files hold: most stay as they are from input to input.
    held: RefCell<HashMap<String, Vec<u8>>>,
}

impl Scratch {
    /// A folder that holds `files`: in memory where the system has a place there, since a disk is waited for with each file that is replaced.
    pub fn new<'a>(files: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let scratch = Self { folder: folder.expect("a folder for temporary files"), held: RefCell::default() };
        files.into_iter().for_each(|(name, bytes)| scratch.write(name, &bytes));
        scratch
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file in place of what it held.
    pub fn write(&self, name: &str, bytes: &[u8]) {
        if self.held.borrow().get(name).is_some_and(|held| held == bytes) {
            return;
        }
        self.held.borrow_mut().insert(name.into(), bytes.to_vec());
        let path = self.place(name);
        path.parent().map_or(Ok(()), std::fs::create_dir_all).expect("a folder inside it");
        std::fs::write(path, bytes).expect("a file inside it");
    }

    /// Removes a file that was written.
    pub fn remove(&self, name: &str) {
        if self.held.borrow_mut().remove(name).is_some() {
            std::fs::remove_file(self.place(name)).expect("a file that was written");
        }
    }

    fn place(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
