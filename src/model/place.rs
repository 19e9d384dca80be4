//! Where a model's files are: a folder, or the cache that the Hugging Face libraries keep.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::hub;

/// The folder of the model `name`: the folder of that path, or for `organisation/name` its snapshot in the local cache (`$HF_HUB_CACHE`,
/// `$HF_HOME/hub` or `~/.cache/huggingface/hub`). Nothing is ever downloaded.
///
/// # Errors
/// Neither is there. The message names every place that was searched.
pub fn find(name: &Path) -> Result<PathBuf> {
    if name.is_dir() {
        return Ok(name.to_path_buf());
    }
    let Some(cache) = hub::cache() else {
        return Err(Error::input(name, "expected the folder of a model; there is none, and no home folder with a cache of models"));
    };
    let folder = hub::folder(&cache, name);
    if let Some(snapshot) = folder.as_deref().map(hub::snapshot).transpose()?.flatten() {
        return Ok(snapshot);
    }
    let looked = folder.map_or(cache, |folder| folder.join("snapshots"));
    let found = format!(
        "expected the folder of a model, or organisation/name in the cache of models; found neither this folder nor {}. `hf download {}` puts it there",
        looked.display(),
        name.display()
    );
    Err(Error::input(name, found))
}

/// The files from which the model `name` is read, where they are there.
pub fn files(name: &Path) -> Vec<PathBuf> {
    let own = ["config.json", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "tokenizer.json", "model.safetensors"];
    let Ok(folder) = find(name) else { return Vec::new() };
    let modules = super::config::module_files(&folder);
    own.into_iter().map(|file| folder.join(file)).chain(modules).collect()
}
