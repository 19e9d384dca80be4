//! Keys and values on the device: a pool of pages for each layer.

use super::config::Config;
use super::part::part;
use super::shape::PoolShape;
use crate::backend::Backend;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::Result;
use crate::session::Session;

/// Keys and values of a layer.
pub struct Pool<D: Device> {
    /// What a pass writes: both side by side, a token after the other, or each on its own.
    pub written: Vec<Slice<D>>,
    pub k: Slice<D>,
    pub v: Slice<D>,
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
        let each = u64::from(shape.tokens()?) * config.key() * dtype.size();
        let pool = |session: &mut Session<D>| {
            if config.apart() {
                let (k, v) = (session.alloc(each)?, session.alloc(each)?);
                return Ok(Pool { written: vec![k.clone(), v.clone()], k, v });
            }
            let both = session.alloc(2 * each)?;
            let offset = config.key() * dtype.size();
            let v = part(&both, offset, both.len - offset)?;
            Ok(Pool { written: vec![both.clone()], k: both, v })
        };
        Ok(Self { shape, layers: (0..config.layers).map(|_| pool(session)).collect::<Result<_>>()? })
    }

    /// Bytes that a token takes in all layers.
    pub fn token_bytes(config: &Config, dtype: DType) -> u64 {
        2 * config.key() * dtype.size() * config.layers as u64
    }
}
