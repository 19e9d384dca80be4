//! The cache that the Hugging Face libraries keep on a machine. Nothing is ever downloaded.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The cache's folder: `$HF_HUB_CACHE`, `$HF_HOME/hub` or `~/.cache/huggingface/hub`.
pub fn cache() -> Option<PathBuf> {
    let env = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
    env("HF_HUB_CACHE").or_else(|| env("HF_HOME").map(|home| home.join("hub"))).or_else(|| env("HOME").map(|home| home.join(".cache/huggingface/hub")))
}

/// The folder below `cache` that would hold `organisation/name`; `None` where `name` has another form.
pub fn folder(cache: &Path, name: &Path) -> Option<PathBuf> {
    let (organisation, name) = name.to_str()?.split_once('/')?;
    // A name has one slash and no way up: it becomes the name of one folder.
    (plain(organisation) && plain(name)).then(|| cache.join(format!("models--{organisation}--{name}")))
}

/// The newest snapshot in a folder of the cache: the one that `refs/main` names, or else the only one. `None` where there is none.
///
/// # Errors
/// Several snapshots, and nothing that says which.
pub fn snapshot(folder: &Path) -> Result<Option<PathBuf>> {
    let snapshots = folder.join("snapshots");
    let main = folder.join("refs/main");
    if let Some(commit) = main.is_file().then(|| std::fs::read_to_string(&main).ok()).flatten() {
        let snapshot = snapshots.join(commit.trim());
        if plain(commit.trim()) && snapshot.is_dir() {
            return Ok(Some(snapshot));
        }
    }
    let Ok(entries) = std::fs::read_dir(&snapshots) else { return Ok(None) };
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    match (found.pop(), found.is_empty()) {
        (Some(_), false) => Err(Error::input(&snapshots, "expected one snapshot, or refs/main to name one; found several: give the folder of one")),
        (only, _) => Ok(only),
    }
}

/// The name, without its organisation, of the model or adapter whose snapshot this folder is. `None` for another folder.
pub fn name_of(snapshot: &Path) -> Option<String> {
    let snapshots = snapshot.parent()?;
    let folder = snapshots.parent()?.file_name()?.to_str()?;
    let (_, name) = folder.strip_prefix("models--")?.rsplit_once("--")?;
    (snapshots.file_name()? == "snapshots").then(|| name.to_owned())
}

fn plain(part: &str) -> bool {
    !part.is_empty() && part != "." && part != ".." && !part.contains(['/', '\\'])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_read_as_it_is_laid_out() {
        let cache = tempfile::tempdir().unwrap();
        let place = folder(cache.path(), Path::new("org/name")).unwrap();
        assert_eq!(place, cache.path().join("models--org--name"));
        assert_eq!(snapshot(&place).unwrap(), None);
        std::fs::create_dir_all(place.join("snapshots/aaa")).unwrap();
        assert_eq!(snapshot(&place).unwrap(), Some(place.join("snapshots/aaa")));
        assert_eq!(name_of(&place.join("snapshots/aaa")).as_deref(), Some("name"));
        std::fs::create_dir_all(place.join("snapshots/bbb")).unwrap();
        assert!(snapshot(&place).is_err(), "two, and nothing says which");
        std::fs::create_dir_all(place.join("refs")).unwrap();
        std::fs::write(place.join("refs/main"), "bbb\n").unwrap();
        assert_eq!(snapshot(&place).unwrap(), Some(place.join("snapshots/bbb")));
        for bad in ["name", "org/../name", "a/b/c", "/org", "../up"] {
            assert_eq!(folder(cache.path(), Path::new(bad)), None, "{bad}");
        }
        for other in ["/", "a", "models--org--name/other/aaa", "org/snapshots/aaa"] {
            assert_eq!(name_of(Path::new(other)), None, "{other}");
        }
    }
}
