//! Where a model is: a folder of the Hugging Face libraries, or a GGUF file.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Where a model is.
pub enum Place {
    /// A folder with a `config.json`.
    Folder(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
}

impl Place {
    /// The place of the model `name`: a folder, a GGUF file, a folder with one GGUF file and no `config.json`, or `organisation/name` in the local
    /// cache of Hugging Face's libraries.
    ///
    /// # Errors
    /// Nothing of that name; a folder with neither kind of model, or with several files.
    pub fn of(name: &Path) -> Result<Self> {
        if name.is_file() {
            return Ok(Self::Gguf(name.to_path_buf()));
        }
        let folder = crate::model::find(name)?;
        if folder.join("config.json").exists() {
            return Ok(Self::Folder(folder));
        }
        let entries = std::fs::read_dir(&folder).map_err(Error::io(&folder, "read"))?;
        let gguf = |path: &PathBuf| path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
        let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(gguf).collect();
        match (found.pop(), found.len()) {
            (Some(only), 0) => Ok(Self::Gguf(only)),
            (Some(_), more) => Err(Error::input(&folder, format!("expected config.json or one GGUF file, found {} of them: name one", more + 1))),
            (None, _) => Err(Error::input(&folder, "expected config.json or a GGUF file, found neither")),
        }
    }
}
