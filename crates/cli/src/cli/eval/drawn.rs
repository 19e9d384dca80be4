//! Adapters whose values are drawn: for the speed of a model that has many.

use std::collections::BTreeMap;

use half::f16;
use trifuse::adapters::certificate::Certificate;
use trifuse::adapters::encoded::{EncodedAdapter, EncodedFactor, EncodedProjection, Matrix, SharedProjection};
use trifuse::adapters::engine::AdapterSource;
use trifuse::llm::Config;
use trifuse::{Error, Result};

/// LoRA adapters of one rank, with factors in f16 as PEFT stores them. All have the same values, each in memory of its own: what they say means
/// nothing, and they take the time and the memory of real ones.
pub struct Adapters {
    count: u32,
    shapes: BTreeMap<String, [u64; 2]>,
    one: EncodedAdapter,
}

impl Adapters {
    /// `count` adapters of the projections whose paths end with one of `targets`.
    ///
    /// # Errors
    /// A target that is no projection of the model.
    pub fn new(config: &Config, count: u32, rank: u32, targets: &[String]) -> Result<Self> {
        let all: Vec<_> = (0..config.layers).flat_map(|layer| config.projections(layer)).collect();
        let ends = |path: &str, target: &String| path.rsplit('.').next() == Some(target);
        if let Some(strange) = targets.iter().find(|&target| !all.iter().any(|(path, _)| ends(path, target))) {
            return Err(Error::invalid("--targets", "projections of the model, such as q_proj", format!("{strange:?}")));
        }
        let shapes: BTreeMap<_, _> = all.into_iter().filter(|(path, _)| targets.iter().any(|target| ends(path, target))).collect();
        let projections = shapes.iter().map(|(path, &[d_out, d_in])| (path.clone(), projection([d_out, d_in].map(|d| d as usize), rank as usize)));
        let one = EncodedAdapter { config: serde_json::json!({}), projections: projections.collect() };
        Ok(Self { count, shapes, one })
    }

    /// The name of an adapter.
    pub fn name(number: u32) -> String {
        format!("drawn{number:04}")
    }
}

/// One projection of an adapter.
fn projection([d_out, d_in]: [usize; 2], rank: usize) -> EncodedProjection {
    // Small enough that states keep their size.
    let factor = |rows: usize| {
        let value = |at: usize| f16::from_f32((at.wrapping_mul(2_654_435_761) % 1021) as f32 / 1021.0 / 64.0 - 1.0 / 128.0);
        EncodedFactor::Plain(Matrix { rows, cols: rank, data: (0..rows * rank).map(value).collect() })
    };
    let bytes = 2 * (rank * (d_in + d_out)) as u64;
    let certificate = Certificate::plain(rank, bytes);
    EncodedProjection { input: factor(d_in), core: None, output: factor(d_out), scaling: 1.0, certificate }
}

impl AdapterSource for Adapters {
    fn projections(&self) -> Result<BTreeMap<String, SharedProjection>> {
        let shared =
            |[d_out, d_in]: [u64; 2]| SharedProjection { d_in: d_in as usize, d_out: d_out as usize, input_bases: Vec::new(), output_bases: Vec::new() };
        Ok(self.shapes.iter().map(|(path, shape)| (path.clone(), shared(*shape))).collect())
    }

    fn names(&self) -> Vec<String> {
        (0..self.count).map(Self::name).collect()
    }

    fn adapter(&self, _name: &str) -> Result<EncodedAdapter> {
        Ok(self.one.clone())
    }
}
