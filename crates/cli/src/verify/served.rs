//! What the tests share: sources for the encoder, an engine on a session, float64 answers from exactly what is held.

use std::collections::BTreeMap;

use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::encoded::{Matrix, Population};
use trifuse::adapters::engine::{Batch, Engine, Target};
use trifuse::adapters::peft::{Lora, LoraAdapter};
use trifuse::backend::Backend;
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::session::Session;

/// The adapters with only the modules of one layer, so that a test is quick.
pub fn one_layer(adapters: &[LoraAdapter]) -> Vec<LoraAdapter> {
    let first = adapters.iter().flat_map(|adapter| adapter.modules.keys()).next().cloned().unwrap_or_default();
    // `encoder.layer.0.attention…`: up to the number and its dot.
    let end = first.find(|c: char| c.is_ascii_digit()).map_or(first.len(), |at| first[at..].find('.').map_or(first.len(), |dot| at + dot + 1));
    let inside = |module: &str| module.starts_with(&first[..end]);
    adapters
        .iter()
        .map(|adapter| {
            let modules = adapter.modules.iter().filter(|(module, _)| inside(module)).map(|(module, lora)| (module.clone(), lora.clone()));
            LoraAdapter { modules: modules.collect(), ..adapter.clone() }
        })
        .collect()
}

/// Encodes adapters as they came from their folders.
pub fn encode_all(adapters: &[LoraAdapter], options: &EncodeOptions) -> Result<Population> {
    let sources: Vec<Source<'_>> = adapters.iter().map(Source::from).collect();
    encode(&sources, options, &|_, _| ())
}

/// ΔW of a plain adapter in float64.
pub fn delta_of(lora: &Lora) -> Matrix<f64> {
    let mut data = vec![0.0; lora.b.rows * lora.a.cols];
    for (row, out) in data.chunks_exact_mut(lora.a.cols).enumerate() {
        for k in 0..lora.a.rows {
            let factor = f64::from(lora.b.at(row, k)) * f64::from(lora.scaling);
            for (sum, value) in out.iter_mut().zip(&lora.a.data[k * lora.a.cols..]) {
                *sum += factor * f64::from(*value);
            }
        }
    }
    Matrix { rows: lora.b.rows, cols: lora.a.cols, data }
}

/// `m · x`.
pub fn times(m: &Matrix<f64>, x: &[f64]) -> Vec<f64> {
    m.data.chunks_exact(m.cols).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

/// ΔŴ of every adapter in one projection, from exactly what the population holds.
pub fn deltas(population: &Population, path: &str) -> Result<BTreeMap<String, Matrix<f64>>> {
    let shared = population.projections.get(path).ok_or_else(|| Error::invalid("projection", "one of the population", path))?;
    let held = population.adapters.iter().filter_map(|(name, adapter)| adapter.projections.get(path).map(|projection| (name, projection)));
    held.map(|(name, projection)| Ok((name.clone(), projection.delta(shared)?))).collect()
}

/// The cosine of two lists of numbers; 1 where both are zero.
pub fn cosine(a: impl Iterator<Item = f64> + Clone, b: impl Iterator<Item = f64> + Clone) -> f64 {
    let dot: f64 = a.clone().zip(b.clone()).map(|(x, y)| x * y).sum();
    let norm = a.map(|x| x * x).sum::<f64>().sqrt() * b.map(|y| y * y).sum::<f64>().sqrt();
    if norm == 0.0 { 1.0 } else { dot / norm }
}

/// Runs the delta of projections that read one x: `y[p] = y_in[p] + ΔW x`, and gives the y back. All row-major.
pub fn apply<D: Backend>(
    session: &mut Session<D>,
    engine: &mut Engine<D>,
    batch: &Batch<D>,
    dtype: DType,
    x: &[f64],
    projections: &[(&str, &[f64])],
) -> Result<Vec<Vec<f64>>> {
    let tokens = batch.tokens() as u64;
    let input = session.upload(&dtype.encode(x))?;
    let x_stride = x.len() as u64 / tokens.max(1);
    let mut targets = Vec::new();
    for (projection, y) in projections {
        let y_stride = y.len() as u64 / tokens.max(1);
        targets.push(Target { projection, y: session.upload(&dtype.encode(y))?, y_stride });
    }
    engine.apply(session, batch, &input, x_stride, &targets)?;
    targets.iter().map(|target| Ok(dtype.decode(&session.read(&target.y)?))).collect()
}
