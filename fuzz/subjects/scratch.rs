//! A folder for parsers that read files by name.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder that goes with its thread, and the files that stay in it.
pub struct Scratch {
    folder: TempDir,
}

impl Scratch {
    /// A folder that holds `files`.
    pub fn new<'a>(files: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Self {
        let scratch = Self { folder: tempfile::tempdir().expect("a folder for temporary files") };
        files.into_iter().for_each(|(name, bytes)| scratch.write(name, &bytes));
        scratch
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file in place of what it held.
    pub fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.place(name);
        path.parent().map_or(Ok(()), std::fs::create_dir_all).expect("a folder inside it");
        std::fs::write(path, bytes).expect("a file inside it");
    }

    /// Removes a file where it is there.
    pub fn remove(&self, name: &str) {
        let _ = std::fs::remove_file(self.place(name));
    }

    fn place(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
