//! Where a model's files are: a folder, or the cache that the Hugging Face libraries keep.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The folder of the model `name`: the folder of that path, or for `organisation/name` its snapshot in the local cache
/// (`$HF_HUB_CACHE`, `$HF_HOME/hub` or `~/.cache/huggingface/hub`). Nothing is ever fetched.
///
/// # Errors
/// Neither is there; the message names every place that was looked at.
pub fn find(name: &Path) -> Result<PathBuf> {
    if name.is_dir() {
        return Ok(name.to_path_buf());
    }
    let env = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache =
        env("HF_HUB_CACHE").or_else(|| env("HF_HOME").map(|home| home.join("hub"))).or_else(|| env("HOME").map(|home| home.join(".cache/huggingface/hub")));
    match cache {
        Some(cache) => in_cache(&cache, name),
        None => Err(Error::input(name, "expected the folder of a model; there is none, and no home folder with a cache of models")),
    }
}

/// The files that the model `name` is read from, where it is there.
pub fn files(name: &Path) -> Vec<PathBuf> {
    let own = ["config.json", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "tokenizer.json", "model.safetensors"];
    find(name).map_or_else(|_| Vec::new(), |folder| own.map(|file| folder.join(file)).into())
}

/// The newest snapshot of `name` below `cache`: the one that `refs/main` names, or else the only one.
fn in_cache(cache: &Path, name: &Path) -> Result<PathBuf> {
    let absent = |looked: &Path| {
        let found = format!("expected the folder of a model, or organisation/name in the cache of models; found neither this folder nor {}", looked.display());
        Err(Error::input(name, found))
    };
    let Some((organisation, model)) = name.to_str().and_then(|name| name.split_once('/')) else { return absent(cache) };
    // A name has one slash and no way up: it becomes the name of one folder.
    let plain = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(['/', '\\']);
    if !plain(organisation) || !plain(model) {
        return absent(cache);
    }
    let folder = cache.join(format!("models--{organisation}--{model}"));
    let snapshots = folder.join("snapshots");
    if let Ok(commit) = std::fs::read_to_string(folder.join("refs/main")) {
        let snapshot = snapshots.join(commit.trim());
        if plain(commit.trim()) && snapshot.is_dir() {
            return Ok(snapshot);
        }
    }
    let Ok(entries) = std::fs::read_dir(&snapshots) else { return absent(&snapshots) };
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    match (found.pop(), found.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(_), false) => Err(Error::input(&snapshots, "expected one snapshot, or refs/main to name one; found several: give the folder of one")),
        (None, _) => absent(&snapshots),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_read_as_it_is_laid_out() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("models--org--name");
        let name = Path::new("org/name");
        assert!(in_cache(cache.path(), name).is_err());
        std::fs::create_dir_all(folder.join("snapshots/aaa")).unwrap();
        assert_eq!(in_cache(cache.path(), name).unwrap(), folder.join("snapshots/aaa"));
        std::fs::create_dir_all(folder.join("snapshots/bbb")).unwrap();
        assert!(in_cache(cache.path(), name).is_err(), "two, and nothing says which");
        std::fs::create_dir_all(folder.join("refs")).unwrap();
        std::fs::write(folder.join("refs/main"), "bbb\n").unwrap();
        assert_eq!(in_cache(cache.path(), name).unwrap(), folder.join("snapshots/bbb"));
        for bad in ["name", "org/../name", "a/b/c", "/org", "../up"] {
            assert!(in_cache(cache.path(), Path::new(bad)).is_err(), "{bad}");
        }
    }
}
