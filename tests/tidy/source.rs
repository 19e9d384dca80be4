//! The files of the repository.

use std::path::Path;

/// A text file: its path from the repository's root, with `/`, and what it holds.
pub struct File {
    /// For example `src/ops/mod.rs`.
    pub path: String,
    /// All of it.
    pub text: String,
}

impl File {
    /// Whether the file lies in the folder.
    pub fn under(&self, folder: &str) -> bool {
        self.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Whether it is Rust that ships: not a test, bench or example.
    pub fn is_product(&self) -> bool {
        self.path.ends_with(".rs") && (self.inner().is_some() || self.under("backends"))
    }

    /// The path inside the sources of its package: of the library's, `src/`, or of another's, `crates/NAME/src/`.
    pub fn inner(&self) -> Option<&str> {
        inner(&self.path)
    }

    /// A fault at a line of this file.
    pub fn fault(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{line}: {what}", self.path)
    }
}

/// What [`File::inner`] is of a path.
pub fn inner(path: &str) -> Option<&str> {
    let package = path.strip_prefix("crates/").and_then(|rest| rest.split_once('/'));
    package.map_or(path, |(_, rest)| rest).strip_prefix("src/")
}

/// Built or installed, not written.
const SKIPPED: &[&str] = &["target", ".git", ".venv", ".cuda", ".gpu", ".gl", "__pycache__", "node_modules"];

/// Every file of the repository that is text.
pub fn files() -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if SKIPPED.contains(&name.as_str()) || path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                let path = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
                found.push(File { path, text });
            }
        }
    }
    assert!(found.iter().any(|file| file.path == "src/lib.rs"), "the walk missed the sources");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}
