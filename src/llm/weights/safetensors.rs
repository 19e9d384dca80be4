//! A folder in the layout of the Hugging Face libraries: `model.safetensors`, or several files and an index.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::source::{Elements, WeightSource};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::model::json;
use crate::safetensors_file::{TensorFile, float_type};

const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The safetensors files of a model.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    files: Vec<TensorFile>,
    /// The file that holds each tensor.
    places: BTreeMap<String, usize>,
}

/// The file `model.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Folder {
    /// Opens the files in `folder`, and reads their headers alone.
    ///
    /// # Errors
    /// Files that are missing or not sound; an index that names what is not there.
    pub fn open(folder: &Path) -> Result<Self> {
        let index = folder.join(INDEX);
        let Some(Index { weight_map }) = json(&index)? else {
            let path = folder.join(WHOLE);
            if !path.is_file() {
                let found = "no such file, nor an index of several; weights in another format have to be converted";
                return Err(Error::input(&path, format!("expected the model's weights, found {found}")));
            }
            let file = TensorFile::open(&path)?;
            let places = file.names().into_iter().map(|name| (name, 0)).collect();
            return Ok(Self { path, files: vec![file], places });
        };
        let mut files: Vec<TensorFile> = Vec::new();
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut places = BTreeMap::new();
        for (tensor, name) in &weight_map {
            // A name of a file beside the index, and no way out of the folder.
            if name.contains(['/', '\\']) || name == ".." {
                return Err(Error::input_item(&index, tensor, format!("expected a file of this folder, found {name:?}")));
            }
            let number = match numbers.get(name.as_str()) {
                Some(&number) => number,
                None => {
                    files.push(TensorFile::open(folder.join(name))?);
                    numbers.insert(name, files.len() - 1);
                    files.len() - 1
                }
            };
            if files[number].info(tensor).is_none() {
                return Err(Error::input_item(&index, tensor, format!("expected this tensor in {name}, found none of that name")));
            }
            places.insert(tensor.clone(), number);
        }
        Ok(Self { path: index, files, places })
    }

    fn file(&self, name: &str) -> Option<&TensorFile> {
        self.files.get(*self.places.get(name)?)
    }
}

impl WeightSource for Folder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn shape(&self, name: &str) -> Option<Vec<u64>> {
        Some(self.file(name)?.info(name)?.shape.iter().map(|&size| size as u64).collect())
    }

    fn names(&self) -> Vec<String> {
        self.places.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Result<(Vec<u64>, Vec<f32>)> {
        let file = self.file(name).ok_or_else(|| Error::input_item(&self.path, name, "expected this tensor, found none of that name"))?;
        let (_, shape, values) = file.floats(name)?;
        Ok((shape.into_iter().map(|size| size as u64).collect(), values))
    }

    fn elements(&self, name: &str, shape: &[u64], dtype: DType) -> Option<Elements<'_>> {
        let file = self.file(name).filter(|_| self.shape(name).as_deref() == Some(shape))?;
        float_type(file.info(name)?.dtype)?;
        let name = name.to_owned();
        Some(Box::new(move |from, to| file.elements_into(&name, dtype, from, to)))
    }
}
