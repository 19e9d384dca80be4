//! Heads of new tokens on their way into a cache.

use super::turn::Turn;
use crate::error::{Result, ensure};
use crate::ops::index::PageShape;
use crate::ops::{expect_size, setters::setters};

/// What is done to the heads of new tokens: see [`Kind::Heads`](super::Kind::Heads).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Heads {
    /// Elements of a head: even, divides the operation's columns.
    pub head_dim: u64,
    /// How far each pair turns.
    pub turn: Turn,
    /// The eps of a norm of each head before it is turned, as the bits of an f32. What is normed is rounded before it is turned.
    pub norm: Option<u32>,
    /// Elements from a row to the next.
    pub stride: u64,
    /// The column where what goes to the pool begins.
    pub first: u64,
    /// Columns that go to the pool, which are those of its rows.
    pub kept: u64,
    /// The places of the rows in the pool.
    pub to: Places,
}

/// The places in a pool of new tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Places {
    /// The last positions of each sequence, by a page table, as in [`Kind::Append`](super::Kind::Append).
    Pages(PageShape),
    /// A slot of its own for each row, of so many, as in [`Kind::Store`](super::Kind::Store).
    Slots(u32),
}

impl Heads {
    /// Heads of rows that lie `stride` elements apart, which are turned; all columns from the first one on go to the pool.
    pub const fn new(head_dim: u64, turn: Turn, stride: u64, to: Places) -> Self {
        Self { head_dim, turn, norm: None, stride, first: 0, kept: stride, to }
    }

    setters! {
        with_norm: norm <- Option<u32>;
        with_first: first = u64;
        with_kept: kept = u64;
    }

    /// Rows of the pool.
    pub fn pool_rows(&self) -> u64 {
        match self.to {
            Places::Pages(cache) => cache.pool_pages.saturating_mul(cache.page),
            Places::Slots(slots) => slots.into(),
        }
    }

    /// Columns of a row that are turned or go to the pool, of which `columns` are turned.
    pub fn reach(&self, columns: u64) -> u64 {
        columns.max(self.first.saturating_add(self.kept))
    }

    /// Every rule but those of rotary positions and pages.
    pub(super) fn validate(&self, columns: u64, size: u64) -> Result<()> {
        expect_size("pointwise: pool", &[self.pool_rows(), self.kept, size])?;
        let eps = f32::from_bits(self.norm.unwrap_or(0));
        ensure(eps.is_finite() && eps >= 0.0, "pointwise: eps", "a finite number of at least 0", eps)?;
        ensure(self.kept > 0, "pointwise: kept", "at least 1", self.kept)?;
        ensure(
            self.reach(columns) <= self.stride,
            "pointwise: first, kept",
            format_args!("columns within a row of {}", self.stride),
            format_args!("{}, {}", self.first, self.kept),
        )
    }
}
