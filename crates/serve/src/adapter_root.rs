//! The folder under which adapters lie that may be loaded while a server runs.

use std::path::{Component, Path, PathBuf};

use half::f16;
use serde_json::Value;
use trifuse::adapters::bundle::Bundle;
use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::encoded::{EncodedAdapter, EncodedFactor, EncodedProjection, Matrix, Rung};
use trifuse::adapters::peft::{CONFIG_FILE, LoraAdapter};
use trifuse::{Error, Result};

use crate::content::{content, of_folder};
use crate::keeper::Found;
use crate::queueing::registry::Beside;

/// A folder. Nothing outside it is read, whatever links lie in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterRoot(PathBuf);

impl AdapterRoot {
    /// The folder at `path`.
    ///
    /// # Errors
    /// A folder that is not there.
    pub fn open(path: &Path) -> Result<Self> {
        let folder = path.canonicalize().map_err(Error::io(path, "open"))?;
        if folder.is_dir() { Ok(Self(folder)) } else { Err(Error::invalid(path.display().to_string(), "a folder", "something else")) }
    }

    /// Whether an adapter's folder of that name lies in the folder itself.
    pub fn has(&self, name: &str) -> bool {
        let plain = matches!((Path::new(name).components().next(), Path::new(name).components().nth(1)), (Some(Component::Normal(one)), None) if one == name);
        plain && self.place(name).is_ok_and(|place| place.join(CONFIG_FILE).is_file())
    }

    /// The names of the adapters whose folders lie in the folder itself, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| self.has(name)).collect();
        names.sort_unstable();
        names
    }

    /// Reads the adapter at `path` below the folder: a PEFT folder as it is, or the adapter `entry` of a bundle, unpacked to two plain factors.
    ///
    /// # Errors
    /// A path that leads outside; what is no adapter, or cannot be read.
    pub fn read(&self, path: &str, entry: &str) -> Result<Found> {
        let place = self.place(path)?;
        if place.is_file() { bundled(&place, entry) } else { folder(&place) }
    }

    /// The place of a path below the folder. What lies outside is refused in the same words whether it is there or not.
    fn place(&self, path: &str) -> Result<PathBuf> {
        let refused = || Error::invalid("lora_path", "an adapter's folder or a bundle below the server's adapter root", format!("{path:?}"));
        let inner = Path::new(path).strip_prefix(&self.0).unwrap_or(Path::new(path));
        let plain = inner.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        let place = if plain { self.0.join(inner).canonicalize().ok() } else { None };
        place.filter(|place| place.starts_with(&self.0)).ok_or_else(refused)
    }
}

fn folder(place: &Path) -> Result<Found> {
    let LoraAdapter { name, config, modules, .. } = LoraAdapter::open(place)?;
    let (content, beside) = of_folder(place)?;
    let plain = EncodeOptions { rungs: Some(vec![Rung::Plain]), ..EncodeOptions::default() };
    let mut population = encode(&[Source { name: &name, config: &config, modules: &modules }], &plain, &|_, _| {})?;
    Ok(Found { content, adapter: population.remove(&name)?, beside })
}

fn bundled(place: &Path, entry: &str) -> Result<Found> {
    let bundle = Bundle::open(place)?;
    let EncodedAdapter { config, projections } = bundle.adapter(entry)?;
    let content = content([place], entry)?;
    let mut unpacked = EncodedAdapter { config: Value::clone(&config), projections: Default::default() };
    for (path, projection) in projections {
        let (a, b) = projection.factors(&bundle.shared(&path)?)?;
        let narrow = |factor: Matrix<f64>| EncodedFactor::Plain(factor.map(f16::from_f64));
        let EncodedProjection { scaling, certificate, .. } = projection;
        unpacked.projections.insert(path, EncodedProjection { input: narrow(a.transposed()), core: None, output: narrow(b), scaling, certificate });
    }
    Ok(Found { content, adapter: unpacked, beside: Beside::default() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_the_folder_is_reached() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("root");
        std::fs::create_dir_all(inner.join("one")).unwrap();
        std::fs::create_dir_all(outer.path().join("secret")).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(outer.path().join("secret"), inner.join("link")).unwrap();
        let root = AdapterRoot::open(&inner).unwrap();
        assert!(root.place("one").is_ok() && root.place("./one").is_ok());
        let whole = inner.canonicalize().unwrap().join("one");
        assert!(root.place(whole.to_str().unwrap()).is_ok());
        let told = |path: &str| root.place(path).unwrap_err().to_string().replace(&format!("{path:?}"), "");
        let outside = ["../secret", "link", "/etc", "../nothing", "one/../../secret", "nothing"].map(told);
        assert!(outside.iter().all(|text| *text == outside[0]), "{outside:?}");
        assert!(AdapterRoot::open(&outer.path().join("nothing")).is_err());
        // What may be loaded by its name alone.
        for folder in [inner.join("one"), inner.join("two"), outer.path().join("secret")] {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(CONFIG_FILE), "{}").unwrap();
        }
        std::fs::create_dir_all(inner.join("empty")).unwrap();
        assert_eq!(root.names(), ["one", "two"]);
        assert!(["../secret", "link", "./one", "one/", "one/..", "", ".", "empty", "nothing"].iter().all(|name| !root.has(name)));
    }
}
