//! Keys and values on the device: a pool of pages for each layer.

use super::config::Config;
use super::form::{Form, QKV};
use super::part::part;
use super::shape::PoolShape;
use crate::backend::Backend;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::Result;
use crate::session::Session;

/// Keys and values of a layer.
pub struct Pool<D: Device> {
    /// What a pass writes: keys and values side by side, a token after the other, or latents.
    pub written: Slice<D>,
    pub k: Slice<D>,
    pub v: Slice<D>,
    /// Where pages hold latents, room for those of a pass. k and v then are what a pass makes of them, in memory of all layers.
    pub gathered: Option<Slice<D>>,
}

/// Columns that pages hold of a token in a layer, where they hold latents.
fn kept(config: &Config, dtype: DType, layer: usize, filled: bool) -> u64 {
    Form::of(config, dtype, layer, QKV).kept(filled)
}

/// Columns of what is gathered of a token: its latents in the layer that has most, and its key where that is normed on the way.
fn widest(config: &Config, dtype: DType, filled: bool) -> u64 {
    let latents = (0..config.layers).map(|layer| kept(config, dtype, layer, filled)).max().unwrap_or(0);
    latents.max(if config.head_norm { config.key() } else { 0 })
}

/// The pools of all layers.
pub struct Pools<D: Device> {
    pub shape: PoolShape,
    pub layers: Vec<Pool<D>>,
}

impl<D: Backend> Pools<D> {
    /// Allocates the pools of a model.
    ///
    /// # Errors
    /// No device memory.
    pub fn new(session: &mut Session<D>, config: &Config, dtype: DType, shape: PoolShape) -> Result<Self> {
        let tokens = u64::from(shape.tokens()?);
        if config.latent {
            return Self::latent(session, config, dtype, shape);
        }
        let each = tokens * config.key() * dtype.size();
        let pool = |session: &mut Session<D>| {
            let both = session.alloc(2 * each)?;
            let offset = config.key() * dtype.size();
            let v = part(&both, offset, both.len - offset)?;
            Ok(Pool { written: both.clone(), k: both, v, gathered: None })
        };
        Ok(Self { shape, layers: (0..config.layers).map(|_| pool(session)).collect::<Result<_>>()? })
    }

    /// Pools of latents, and memory for the keys and values of one layer.
    fn latent(session: &Session<D>, config: &Config, dtype: DType, shape: PoolShape) -> Result<Self> {
        let tokens = u64::from(shape.tokens()?);
        let room = |columns: u64| session.alloc(tokens * columns * dtype.size());
        let (k, v, gathered) = (room(config.key())?, room(config.key())?, room(widest(config, dtype, shape.filled))?);
        let pool = |layer: usize| {
            let written = room(kept(config, dtype, layer, shape.filled))?;
            Ok(Pool { written, k: k.clone(), v: v.clone(), gathered: Some(gathered.clone()) })
        };
        Ok(Self { shape, layers: (0..config.layers).map(pool).collect::<Result<_>>()? })
    }
}

/// Bytes that a token takes in all layers.
pub fn token_bytes(config: &Config, dtype: DType, filled: bool) -> u64 {
    if config.latent {
        let kept: u64 = (0..config.layers).map(|layer| kept(config, dtype, layer, filled)).sum();
        return (kept + 2 * config.key() + widest(config, dtype, filled)) * dtype.size();
    }
    2 * config.key() * dtype.size() * config.layers as u64
}

/// Bytes of a token in the largest of the buffers.
pub fn buffer_bytes(config: &Config, dtype: DType, filled: bool) -> u64 {
    let columns = if config.latent { config.key().max(widest(config, dtype, filled)) } else { 2 * config.key() };
    columns * dtype.size()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use serde_json::{Map, Value, json};

    use super::*;
    use crate::llm::keys::Keys;

    #[test]
    fn latents_take_less_than_keys_and_values() {
        let bytes = |rank: u64, latent: bool| {
            let paths = (0..32).flat_map(|layer| ["k", "v"].map(|part| format!("model.layers.{layer}.self_attn.{part}_proj")));
            let ranks: Map<String, Value> = paths.map(|path| (path, rank.into())).collect();
            let keys = json!({"model_type": "llama", "vocab_size": 128_256, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                "num_key_value_heads": 8, "intermediate_size": 14_336, "max_position_embeddings": 8192, "low_rank": {"ranks": ranks, "latent": latent}});
            let config = Config::new(&Keys { path: Path::new("config.json"), map: keys.as_object().unwrap() }).unwrap();
            (token_bytes(&config, DType::F16, true), buffer_bytes(&config, DType::F16, true))
        };
        assert_eq!(bytes(512, false), (32 * 2048 * 2, 2048 * 2));
        // Latents of all layers, and keys, values and latents of one.
        assert_eq!(bytes(512, true), ((32 * 1024 + 2048 + 1024) * 2, 1024 * 2));
        // 107 columns are 112 in memory.
        assert_eq!(bytes(107, true), ((32 * 224 + 2048 + 224) * 2, 1024 * 2));
    }
}
