//! A shrunk model as a folder of the Hugging Face libraries.
//!
//! `config.json` has what it had and the key `low_rank`; `model.safetensors` has `<path>.v.weight`, `[rank, d_in]`, and `<path>.u.weight`, `[d_out,
//! rank]`, of each factored projection. The folder appears whole or not at all.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::adapters::encoded::Matrix;
use crate::adapters::whole::write_folder;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::llm::{Beside, WeightSource};

/// The key of a configuration that tells of factored projections.
pub const KEY: &str = "low_rank";

/// The two factors of some projections, by module path: `[d_out, rank]` and `[rank, d_in]`.
pub type Pairs = BTreeMap<String, (Matrix, Matrix)>;

/// Weights of which some projections are two factors.
pub struct Shrunk<'a> {
    inner: &'a dyn WeightSource,
    pairs: &'a Pairs,
}

impl<'a> Shrunk<'a> {
    /// The weights of `inner` with the factors `pairs` in place of their matrices.
    pub fn new(inner: &'a dyn WeightSource, pairs: &'a Pairs) -> Self {
        Self { inner, pairs }
    }

    /// The factor of that name.
    fn factor(&self, name: &str) -> Option<&Matrix> {
        let of = |end: &str| self.pairs.get(name.strip_suffix(end)?);
        of(".u.weight").map(|pair| &pair.0).or_else(|| of(".v.weight").map(|pair| &pair.1))
    }

    /// Whether the name is that of a matrix which is two factors here.
    fn is_factored(&self, name: &str) -> bool {
        name.strip_suffix(".weight").is_some_and(|path| self.pairs.contains_key(path))
    }
}

impl WeightSource for Shrunk<'_> {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn shape(&self, name: &str) -> Option<Vec<u64>> {
        match self.factor(name) {
            Some(factor) => Some(vec![factor.rows as u64, factor.cols as u64]),
            None => self.inner.shape(name).filter(|_| !self.is_factored(name)),
        }
    }

    fn names(&self) -> Vec<String> {
        let names = self.inner.names().into_iter().flat_map(|name| match name.strip_suffix(".weight") {
            Some(path) if self.pairs.contains_key(path) => vec![format!("{path}.u.weight"), format!("{path}.v.weight")],
            _ => vec![name],
        });
        names.collect()
    }

    fn read(&self, name: &str) -> Result<(Vec<u64>, Vec<f32>)> {
        match self.factor(name) {
            Some(factor) => Ok((vec![factor.rows as u64, factor.cols as u64], factor.data.clone())),
            None => self.inner.read(name),
        }
    }
}

/// The key `low_rank` of a configuration, and that of the weights' type.
pub fn configuration(beside: &Beside, low_rank: Option<Value>, dtype: DType) -> Map<String, Value> {
    let mut config = beside.config.clone();
    config.remove(KEY);
    config.remove("dtype");
    let name = match dtype {
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
    };
    config.insert("torch_dtype".into(), name.into());
    config.extend(low_rank.map(|value| (KEY.to_owned(), value)));
    config
}

/// Writes a model into a folder that is not there yet, or empty: `config`, what lies beside, and the weights in `dtype`. `step` is called with the
/// name of each tensor before it is written, and an error of it leaves nothing.
///
/// # Errors
/// A folder that holds something; weights that cannot be read, or that `dtype` cannot hold; what `step` returns; what the system refuses.
pub fn write(
    folder: &Path,
    (config, files): (&Map<String, Value>, &BTreeMap<String, Vec<u8>>),
    source: &dyn WeightSource,
    dtype: DType,
    step: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<u64> {
    let mut bytes = 0;
    write_folder(folder, |folder| {
        let mut text = serde_json::to_vec_pretty(config).map_err(|error| Error::invalid("config.json", "keys and values", error))?;
        text.push(b'\n');
        let config = ("config.json", &text);
        for (name, bytes) in files.iter().map(|(name, bytes)| (name.as_str(), bytes)).chain([config]) {
            let path = folder.join(name);
            std::fs::write(&path, bytes).map_err(Error::io(&path, "write"))?;
        }
        bytes = tensors(&folder.join("model.safetensors"), source, dtype, step)?;
        Ok(())
    })?;
    Ok(bytes)
}

/// Writes the tensors of `source` one after another: no more than one is in memory.
fn tensors(path: &Path, source: &dyn WeightSource, dtype: DType, step: &mut dyn FnMut(&str) -> Result<()>) -> Result<u64> {
    let named = match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
    };
    let (mut header, mut end) = (Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]), 0u64);
    let names = source.names();
    for name in &names {
        let missing = || Error::input_item(source.path(), name, "expected this tensor, found none of that name");
        let shape = source.shape(name).ok_or_else(missing)?;
        let start = end;
        end += shape.iter().product::<u64>() * dtype.size();
        header.insert(name.clone(), json!({"dtype": named, "shape": shape, "data_offsets": [start, end]}));
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let fault = |error| Error::io(path, "write")(error);
    let file = File::create(path).map_err(fault)?;
    let mut out = BufWriter::new(file);
    out.write_all(&(header.len() as u64).to_le_bytes()).and_then(|()| out.write_all(&header)).map_err(fault)?;
    for name in &names {
        step(name)?;
        let bytes = dtype.encode_f32(&source.read(name)?.1);
        if !dtype.all_finite(&bytes) {
            return Err(Error::invalid(name.as_str(), format!("values that {dtype} can hold"), "one that it cannot; take bf16 or f32"));
        }
        out.write_all(&bytes).map_err(fault)?;
    }
    out.flush().and_then(|()| out.get_ref().sync_all()).map_err(fault)?;
    Ok(8 + header.len() as u64 + end)
}
