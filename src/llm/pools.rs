//! Keys and values on the device: a pool of pages for each layer.

use super::config::Config;
use super::plans::{Shape, part};
use crate::backend::Backend;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::index::{PageShape, RaggedShape};
use crate::session::Session;

/// The size of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolShape {
    /// Tokens of a page.
    pub page: u32,
    /// Pages of the pool.
    pub pages: u32,
}

impl PoolShape {
    /// Tokens of the pool.
    ///
    /// # Errors
    /// More than 2^31 of them.
    pub fn tokens(&self) -> Result<u32> {
        let all = u64::from(self.page) * u64::from(self.pages);
        u32::try_from(all).ok().filter(|&all| i32::try_from(all).is_ok()).ok_or_else(|| Error::invalid("pool", "fewer than 2^31 tokens", all))
    }

    /// The page table of a shape whose sequences have as many rows each.
    pub fn even(&self, shape: &Shape) -> PageShape {
        PageShape { batch: shape.sequences as u64, pages: shape.pages as u64, page: self.page.into(), pool_pages: self.pages.into() }
    }

    /// The page table of a shape whose sequences have `most` rows at most.
    pub fn ragged(&self, shape: &Shape, most: usize) -> RaggedShape {
        let (batch, rows, pages) = (shape.sequences as u64, shape.rows as u64, shape.pages as u64);
        RaggedShape { batch, total_q: rows, max_q: most as u64, pages, page: self.page.into(), pool_pages: self.pages.into() }
    }
}

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
            if config.head_norm {
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
