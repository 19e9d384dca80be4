//! Weights that are drawn: for the speed of a model of which there is a configuration alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use rayon::prelude::*;

use super::{Elements, WeightSource};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::llm::config::Config;
use crate::llm::keys::Keys;
use crate::model::json;

/// Elements by the name of their type and the columns that they are made for.
type Blocks = BTreeMap<(&'static str, u64), Arc<[u8]>>;

/// Weights of the sizes that a configuration names, drawn evenly: `[d_out, d_in]` with a variance of `1 / d_in`, so that states keep their size. Norms
/// are 1, biases 0. What such a model says means nothing; it takes the time and the memory of a real one.
#[derive(Debug)]
pub struct Drawn {
    path: PathBuf,
    shapes: BTreeMap<String, Vec<u64>>,
    /// The drawn values as elements.
    blocks: Mutex<Blocks>,
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
        Ok((config, Self { path: path.to_path_buf(), shapes, blocks: Mutex::default() }))
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
        self.draw(name, shape, &mut values);
        Ok((shape.clone(), values))
    }

    fn values_into(&self, name: &str, shape: &[u64], values: &mut Vec<f32>) -> Result<()> {
        match self.shapes.get(name) {
            Some(found) if found == shape => self.draw(name, shape, values),
            _ => *values = self.values(name, shape)?,
        }
        Ok(())
    }

    fn elements(&self, name: &str, shape: &[u64], dtype: DType) -> Option<Elements<'_>> {
        let found = self.shapes.get(name).filter(|found| *found == shape)?;
        let (values, start) = self.repeated(name, found, dtype);
        Some(Box::new(move |from, to| {
            repeat(&values, start + from * dtype.size(), to);
            Ok(())
        }))
    }
}

impl Drawn {
    /// Draws the values of a tensor.
    fn draw(&self, name: &str, shape: &[u64], values: &mut Vec<f32>) {
        values.resize(shape.iter().product::<u64>() as usize, 0.0);
        let (block, start) = self.repeated(name, shape, DType::F32);
        repeat(&block, start, bytemuck::cast_slice_mut(values));
    }

    /// The elements of which a tensor has one after another, from a byte on and then from the start again and again.
    fn repeated(&self, name: &str, shape: &[u64], dtype: DType) -> (Arc<[u8]>, u64) {
        let &[_, columns] = shape else {
            let value = if name.ends_with("bias") { 0.0 } else { 1.0 };
            return (dtype.encode_f32(&[value; MANY]).into(), 0);
        };
        let seed = name.bytes().fold(0u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let block = blocks.entry((dtype.name(), columns)).or_insert_with(|| {
            let spread = (12.0 / columns as f32).sqrt();
            dtype.encode_f32(&block().iter().map(|value| spread * value).collect::<Vec<_>>()).into()
        });
        (Arc::clone(block), seed % BLOCK as u64 * dtype.size())
    }
}

/// How many values are drawn, once: a prime, so that the rows of a matrix begin at different ones.
const BLOCK: usize = 1_048_573;
/// Bytes that a thread takes at a time: whole elements of every type.
const MANY: usize = 1 << 17;

/// The values of all tensors, from −1/2 to 1/2. A device works on no value faster than on another, so that matrices may share them.
fn block() -> &'static [f32] {
    static DRAWN: LazyLock<Vec<f32>> = LazyLock::new(|| (0..BLOCK as u64).into_par_iter().map(|at| unit(at) - 0.5).collect());
    &DRAWN
}

/// Writes what `block` has from byte `start` on, and then from its start again and again, over all of `to`, by all threads.
fn repeat(block: &[u8], start: u64, to: &mut [u8]) {
    let len = block.len().max(1);
    to.par_chunks_mut(MANY).enumerate().for_each(|(number, mut to)| {
        let mut at = (start as usize + number * MANY) % len;
        while !to.is_empty() && !block.is_empty() {
            let (now, rest) = to.split_at_mut(to.len().min(len - at));
            now.copy_from_slice(&block[at..at + now.len()]);
            (to, at) = (rest, 0);
        }
    });
}

/// A number from 0 to 1 that looks random.
fn unit(number: u64) -> f32 {
    let mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed >> 40) as f32 / (1u64 << 24) as f32
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_the_values_rounded_once_and_spread_as_told() {
        // Smaller and larger than the block, of one and of two dimensions.
        let shapes = BTreeMap::from([("a.weight", vec![3, 5]), ("b.weight", vec![2049, 1024]), ("c.bias", vec![7]), ("d.weight", vec![9])]);
        let owned = shapes.iter().map(|(name, shape)| ((*name).to_owned(), shape.clone())).collect();
        let drawn = Drawn { path: PathBuf::new(), shapes: owned, blocks: Mutex::default() };
        for (name, shape) in &shapes {
            let values = drawn.values(name, shape).unwrap();
            for dtype in DType::ALL {
                let (size, all) = (dtype.size() as usize, dtype.encode_f32(&values));
                let elements = drawn.elements(name, shape, dtype).unwrap();
                // All at once, and pieces that begin anywhere.
                let places = [(0, values.len()), (1, values.len() - 1), (values.len() / 2, 3), (values.len() - 1, 1), (values.len(), 0)];
                for (from, count) in places {
                    let mut to = vec![0xff; count * size];
                    elements(from as u64, &mut to).unwrap();
                    assert!(to == all[from * size..(from + count) * size], "{count} of {name} in {dtype} from {from}");
                }
                assert!(drawn.elements(name, &[1, 1], dtype).is_none(), "another shape");
            }
        }
        let values = drawn.values("b.weight", &[2049, 1024]).unwrap();
        let variance = values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>() / values.len() as f64;
        assert!((1024.0 * variance - 1.0).abs() < 0.01, "{variance}");
        assert!(values.chunks(1024).skip(1).all(|row| row != &values[..1024]), "rows differ");
        assert_ne!(values[..15], drawn.values("a.weight", &[3, 5]).unwrap()[..]);
        assert_eq!((drawn.values("c.bias", &[7]).unwrap(), drawn.values("d.weight", &[9]).unwrap()), (vec![0.0; 7], vec![1.0; 9]));
    }
}
