//! What tells the contents of adapters apart.

use std::path::PathBuf;

use trifuse::adapters::peft::{CONFIG_FILE, TENSOR_FILE, adapter_folders};
use trifuse::{Error, Result};
use trifuse_serve::content;

/// What tells the contents of adapters with these names apart, whose files lie at `paths`.
pub fn contents(names: &[&str], paths: &[PathBuf]) -> Result<Vec<String>> {
    let bundle = if let [path] = paths { Some(path).filter(|path| path.is_file()) } else { None };
    let mut folders = Vec::new();
    for path in paths.iter().filter(|_| bundle.is_none()) {
        folders.extend(adapter_folders(path)?);
    }
    let one = |name: &&str| match (bundle, folders.iter().find(|folder| folder.name == *name)) {
        (Some(bundle), _) => content([bundle.as_path()], name),
        (None, Some(found)) => {
            let files = [CONFIG_FILE, TENSOR_FILE].map(|file| found.folder.join(file));
            content(files.iter().map(PathBuf::as_path), "")
        }
        (None, None) => Err(Error::invalid("adapter", "its folder, as it was there before", format!("{name:?} gone"))),
    };
    names.iter().map(one).collect()
}
