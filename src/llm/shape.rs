//! What a pass is planned for: rows, sequences, and pages of keys and values.

use crate::error::{Error, Result};
use crate::ops::index::{PageShape, RaggedShape};

/// What a pass is planned for. The same plans serve every pass of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows: tokens to compute, and spare ones.
    pub rows: usize,
    /// Sequences that the rows belong to, and spare ones.
    pub sequences: usize,
    /// How the rows are spread over the sequences.
    pub queries: Queries,
    /// The most pages of a sequence.
    pub pages: usize,
    /// Whether a row has the same bits in every shape: see [`Linear::batch_invariant`](crate::ops::Linear).
    pub batch_invariant: bool,
    /// The most different pages of all sequences together, where they are gathered; else 0.
    pub gathered: usize,
}

/// How rows are spread over sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queries {
    /// As many in each.
    Even,
    /// Numbers of their own, `most` at most.
    Ragged { most: usize },
}

/// The size of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolShape {
    /// Tokens of a page.
    pub page: u32,
    /// Pages of the pool.
    pub pages: u32,
    /// Whether pages of latents hold what adapters' bases give as well, where the padding carries them.
    pub filled: bool,
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
