//! Weights that are drawn: for the speed of a model of which there is a configuration alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::WeightSource;
use crate::error::{Error, Result};
use crate::llm::config::Config;
use crate::llm::keys::Keys;
use crate::model::json;

/// Weights of the sizes that a configuration names, drawn evenly: `[d_out, d_in]` with a variance of `1 / d_in`, so that states keep their size. Norms
/// are 1, biases 0. What such a model says means nothing; it takes the time and the memory of a real one.
#[derive(Debug)]
pub struct Drawn {
    path: PathBuf,
    shapes: BTreeMap<String, Vec<u64>>,
}

impl Drawn {
    /// Reads a `config.json`, and gives the configuration and weights for it.
    ///
    /// # Errors
    /// A file that cannot be read; a model that cannot be run, by the key that says so.
    pub fn open(path: &Path) -> Result<(Config, Self)> {
        let map = json(path)?.ok_or_else(|| Error::input(path, "expected the configuration of a model, found no such file"))?;
        let config = Config::new(&Keys { path, map: &map })?;
        let shapes = shapes(&config);
        Ok((config, Self { path: path.to_path_buf(), shapes }))
    }
}

/// The tensors of a model.
fn shapes(config: &Config) -> BTreeMap<String, Vec<u64>> {
    let table = vec![u64::from(config.vocabulary), config.hidden];
    let mut all = BTreeMap::from([("model.embed_tokens.weight".to_owned(), table.clone()), ("model.norm.weight".to_owned(), vec![config.hidden])]);
    if !config.tied {
        all.insert("lm_head.weight".into(), table);
    }
    for layer in 0..config.layers {
        for (number, (path, shape)) in config.projections(layer).into_iter().enumerate() {
            if (number < 3 && config.qkv_bias) || (number == 3 && config.output_bias) {
                all.insert(format!("{path}.bias"), vec![shape[0]]);
            }
            match config.ranks.get(&path) {
                None => drop(all.insert(format!("{path}.weight"), shape.to_vec())),
                Some(rank) => all.extend([(format!("{path}.v.weight"), vec![rank, shape[1]]), (format!("{path}.u.weight"), vec![shape[0], rank])]),
            }
        }
        let mut vector = |name: &str, size: u64| all.insert(format!("model.layers.{layer}.{name}.weight"), vec![size]);
        ["input_layernorm", "post_attention_layernorm"].into_iter().for_each(|name| drop(vector(name, config.hidden)));
        if config.head_norm {
            ["self_attn.q_norm", "self_attn.k_norm"].into_iter().for_each(|name| drop(vector(name, config.head_dim)));
        }
    }
    all
}

impl WeightSource for Drawn {
    fn path(&self) -> &Path {
        &self.path
    }

    fn shape(&self, name: &str) -> Option<Vec<u64>> {
        self.shapes.get(name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.shapes.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Result<(Vec<u64>, Vec<f32>)> {
        let shape = self.shapes.get(name).ok_or_else(|| Error::input_item(&self.path, name, "expected a tensor that the configuration names, found none"))?;
        let mut values = Vec::new();
        draw(name, shape, &mut values);
        Ok((shape.clone(), values))
    }

    fn values_into(&self, name: &str, shape: &[u64], values: &mut Vec<f32>) -> Result<()> {
        match self.shapes.get(name) {
            Some(found) if found == shape => draw(name, shape, values),
            _ => *values = self.values(name, shape)?,
        }
        Ok(())
    }
}

/// Draws the values of a tensor, by all threads. Each depends on its place and the name alone.
fn draw(name: &str, shape: &[u64], values: &mut Vec<f32>) {
    let count = shape.iter().product::<u64>() as usize;
    if let [_, columns] = shape {
        let seed = name.bytes().fold(0u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        let spread = (12.0 / *columns as f32).sqrt();
        // The length of a range of usize is known ahead, so that each thread writes where its values stay.
        (0..count).into_par_iter().map(|at| spread * (unit(seed ^ at as u64) - 0.5)).collect_into_vec(values);
    } else {
        values.clear();
        values.resize(count, if name.ends_with("bias") { 0.0 } else { 1.0 });
    }
}

/// A number from 0 to 1 that looks random.
fn unit(number: u64) -> f32 {
    let mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed >> 40) as f32 / (1u64 << 24) as f32
}
