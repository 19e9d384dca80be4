//! What the projections of the demonstration read.

use std::collections::BTreeMap;
use std::path::Path;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use trifuse::adapters::bundle::Bundle;
use trifuse::adapters::certificate::Certificate;
use trifuse::adapters::encoded::{Matrix, Population};
use trifuse::adapters::peft::LoraAdapter;
use trifuse::safetensors_file::TensorFile;
use trifuse::{DType, Error, Result};

use crate::cli::kept::mean;

/// Rows `[rows, d_in]` that had no part in an encoding, by module path.
pub struct Activations(BTreeMap<String, Matrix>);

impl Activations {
    /// The last quarter of each tensor's rows: what the encoder holds out of a calibration file.
    pub fn held_out(path: &Path) -> Result<Self> {
        let file = TensorFile::open(path)?;
        let mut rows = BTreeMap::new();
        for name in file.names() {
            let (_, shape, data) = file.floats(&name)?;
            let &[count, d_in] = shape.as_slice() else {
                return Err(Error::input_item(path, name, format!("expected [rows, d_in], found {shape:?}")));
            };
            let first = (count - count / 4) * d_in;
            rows.insert(name, Matrix::new(count / 4, d_in, data[first..].to_vec())?);
        }
        Ok(Self(rows))
    }

    /// Mean over adapters and projections of the relative error of the output on these inputs, of a population that
    /// was encoded from `originals`, in whatever way.
    pub fn output_error(&self, originals: &[LoraAdapter], population: &Population) -> Result<Option<f64>> {
        let mut errors = Vec::new();
        for adapter in originals {
            for (path, lora) in &adapter.modules {
                let encoded = population.adapters.get(&adapter.name).and_then(|adapter| adapter.projections.get(path));
                if let (Some(encoded), Some(shared), Some(rows)) = (encoded, population.projections.get(path), self.0.get(path)) {
                    errors.extend(Certificate::measure(lora, encoded, shared, Some(rows))?.output_error_held_out);
                }
            }
        }
        Ok(mean(errors.into_iter()))
    }
}

/// Projections that read the same inputs: those of one module that are as wide (query, key and value).
pub struct Group {
    pub d_in: usize,
    /// `[tokens, d_in]`, rounded to the device's type.
    pub x: Vec<f64>,
    /// Module path and `d_out`.
    pub projections: Vec<(String, usize)>,
}

/// The projections of a bundle by what they read.
pub fn groups(bundle: &Bundle, activations: Option<&Activations>, tokens: usize, dtype: DType) -> Vec<Group> {
    let mut by_parent: BTreeMap<(&str, usize), Vec<(String, usize)>> = BTreeMap::new();
    for (path, shape) in bundle.projections() {
        let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent);
        by_parent.entry((parent, shape.d_in)).or_default().push((path.to_owned(), shape.d_out));
    }
    let mut normal = StandardNormal.sample_iter(ChaCha8Rng::seed_from_u64(0));
    let mut group = |((_, d_in), projections): ((&str, usize), Vec<(String, usize)>)| {
        let real = activations.and_then(|Activations(rows)| projections.iter().find_map(|(path, _)| rows.get(path)));
        let x: Vec<f64> = match real {
            Some(rows) if rows.cols == d_in && rows.rows > 0 => rows.data.iter().map(|&value| f64::from(value)).cycle().take(tokens * d_in).collect(),
            _ => normal.by_ref().take(tokens * d_in).collect(),
        };
        Group { d_in, x: dtype.decode(&dtype.encode(&x)), projections }
    };
    by_parent.into_iter().map(&mut group).collect()
}
