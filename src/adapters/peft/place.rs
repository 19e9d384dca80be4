//! The places of adapters: a folder, a folder of such folders, or the cache of Hugging Face's libraries; and the adapters' names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::folder::{CONFIG_FILE, PICKLE_FILE, TENSOR_FILE, checked, inspect_as, name_of};
use super::{Inspection, LoraAdapter};
use crate::error::{Error, Result};
use crate::hub;
use crate::read::is_there;

/// An adapter's folder, and the adapter's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterFolder {
    /// The name that was given, or the folder's. A snapshot in the cache of Hugging Face's libraries has the repository's.
    pub name: String,
    /// The adapter's folder.
    pub folder: PathBuf,
}

impl AdapterFolder {
    /// Opens the adapter.
    ///
    /// # Errors
    /// The first fault that [`inspect`](Self::inspect) finds.
    pub fn open(&self) -> Result<LoraAdapter> {
        self.inspect().into_adapter()
    }

    /// Inspects everything in the folder, as [`super::inspect`] does.
    pub fn inspect(&self) -> Inspection {
        inspect_as(checked(self.name.clone(), &self.folder), &self.folder)
    }
}

/// Opens adapters, sorted by name, from the paths that [`adapter_folders`] takes.
///
/// # Errors
/// The first adapter that cannot be used; two adapters of one name; a folder without any.
pub fn open_all<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<LoraAdapter>> {
    let mut folders = BTreeMap::<String, AdapterFolder>::new();
    for path in paths {
        for found in adapter_folders(path)? {
            let (name, folder) = (found.name.clone(), found.folder.clone());
            if let Some(other) = folders.insert(name.clone(), found) {
                return Err(Error::input(
                    folder,
                    format!("expected adapters of different names, found a second {name:?} beside {}; NAME=DIR names one", other.folder.display()),
                ));
            }
        }
    }
    folders.values().map(AdapterFolder::open).collect()
}

/// Whether any file of an adapter is in `folder`, if only by a link that leads nowhere. A folder that nobody may look into counts as one:
/// such an adapter is refused by its name, and not passed over.
fn is_adapter(folder: &Path) -> bool {
    [CONFIG_FILE, TENSOR_FILE, PICKLE_FILE].iter().any(|file| is_there(&folder.join(file)).unwrap_or(true))
}

/// The adapters' folders at `path`, sorted: itself, or those in it. A path may be written `NAME=DIR`, which names the adapter in `DIR`. It
/// may also be `organisation/name`, which is searched for in the local cache of Hugging Face's libraries.
///
/// # Errors
/// A folder that cannot be read, or one without any; a name for several; a name that cannot be a folder's.
pub fn adapter_folders(path: impl AsRef<Path>) -> Result<Vec<AdapterFolder>> {
    let whole = path.as_ref();
    let (name, path) = named(whole);
    let mut folders = folders(path)?;
    let Some(name) = name else {
        return folders.into_iter().map(|folder| Ok(AdapterFolder { name: name_of(&folder)?, folder })).collect();
    };
    let name = checked(name.into(), whole)?;
    match (folders.pop(), folders.len()) {
        (Some(folder), 0) => Ok(vec![AdapterFolder { name, folder }]),
        (_, others) => Err(Error::input(path, format!("expected one adapter to be named {name:?}, found {}", others + 1))),
    }
}

/// The name and the folder of `NAME=DIR`. A path that exists as it is written has no name.
fn named(path: &Path) -> (Option<&str>, &Path) {
    let parts = path.to_str().and_then(|text| text.split_once('=')).filter(|(name, _)| !path.exists() && !name.contains('/'));
    parts.map_or((None, path), |(name, folder)| (Some(name), Path::new(folder)))
}

fn folders(path: &Path) -> Result<Vec<PathBuf>> {
    let cached = || hub::folder(&hub::cache()?, path).filter(|folder| folder.exists());
    let looked = if path.exists() { None } else { cached() };
    let path = looked.as_deref().unwrap_or(path);
    if let Some(folder) = adapter_at(path)? {
        return Ok(vec![folder]);
    }
    let expected = |found: &str| Error::input(path, format!("expected an adapter's folder with {CONFIG_FILE}, or a folder of such folders; found {found}"));
    if path.exists() && !path.is_dir() {
        return Err(expected(if path.is_file() { "a file" } else { "a device or a pipe" }));
    }
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path).map_err(Error::io(path, "read"))? {
        entries.push(entry.map_err(Error::io(path, "read"))?.path());
    }
    entries.sort();
    let mut folders = Vec::new();
    for entry in &entries {
        folders.extend(adapter_at(entry)?);
    }
    if !folders.is_empty() {
        return Ok(folders);
    }
    if path.join("config.json").exists() && path.join("model.safetensors").exists() {
        return Err(expected("a whole model, config.json and model.safetensors"));
    }
    let deeper = |folder: &&PathBuf| std::fs::read_dir(folder).is_ok_and(|inner| inner.flatten().any(|entry| is_adapter(&entry.path())));
    let deeper: Vec<String> = entries.iter().filter(deeper).map(|folder| folder.display().to_string()).collect();
    Err(if deeper.is_empty() { expected("neither") } else { expected(&format!("adapters one level lower: give {}", deeper.join(" "))) })
}

/// The folder of the adapter at `path`, if there is one: itself, or its snapshot in the cache of Hugging Face's libraries.
fn adapter_at(path: &Path) -> Result<Option<PathBuf>> {
    if is_adapter(path) {
        return Ok(Some(path.into()));
    }
    if !path.join("snapshots").is_dir() {
        return Ok(None);
    }
    Ok(hub::snapshot(path)?.filter(|snapshot| is_adapter(snapshot)))
}

/// The files from which the adapters at `paths` are read; none for a path without adapters.
pub fn adapter_files<P: AsRef<Path>>(paths: &[P]) -> Vec<PathBuf> {
    let folders = paths.iter().flat_map(|path| adapter_folders(path).unwrap_or_default());
    folders.flat_map(|found| [CONFIG_FILE, TENSOR_FILE].map(|file| found.folder.join(file))).collect()
}
