//! Heads of new tokens on their way into a cache.

use std::ops::Range;

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
    /// Elements from a row to the next; of rows that lie apart, all columns of a row.
    pub stride: u64,
    /// The column where what goes to the pool begins.
    pub first: u64,
    /// Columns that go to the pool, which are those of its rows.
    pub kept: u64,
    /// The places of the rows in the pool.
    pub to: Places,
    /// Whether rows lie in up to three blocks, one behind the other and each packed: the columns in front of the first that is kept, those from it on
    /// that turn, and the rest. Rows `[q | k | v]` are then all of q, all of k and all of v.
    pub apart: bool,
}

/// Neighbouring columns of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// The columns of a row.
    pub columns: Range<u64>,
    /// The element where those of the first row begin.
    pub start: u64,
    /// Elements from a row to the next.
    pub stride: u64,
}

impl Block {
    /// The columns of the block that lie in `other`.
    pub fn within(&self, other: Range<u64>) -> Range<u64> {
        let start = self.columns.start.max(other.start);
        start..self.columns.end.min(other.end).max(start)
    }
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
        Self { head_dim, turn, norm: None, stride, first: 0, kept: stride, to, apart: false }
    }

    setters! {
        with_norm: norm <- Option<u32>;
        with_first: first = u64;
        with_kept: kept = u64;
        with_apart: apart = bool;
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

    /// The blocks that hold `rows` rows, of which `columns` columns are turned, in the order of their columns; some may have no columns.
    pub fn blocks(&self, rows: u64, columns: u64) -> [Block; 3] {
        let reach = self.reach(columns);
        if !self.apart {
            return [0..reach, reach..reach, reach..reach].map(|columns| Block { start: columns.start, columns, stride: self.stride });
        }
        [0..self.first, self.first..columns, columns..reach].map(|columns| Block {
            start: rows.saturating_mul(columns.start),
            stride: columns.end.saturating_sub(columns.start),
            columns,
        })
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
        )?;
        if !self.apart {
            return Ok(());
        }
        let sound = self.first <= columns && self.first.is_multiple_of(self.head_dim) && self.first.saturating_add(self.kept) == self.stride;
        ensure(
            sound && columns <= self.stride,
            "pointwise: first, kept, stride of rows apart",
            format_args!("whole heads of {} within {columns} columns, then all that is left of a row", self.head_dim),
            format_args!("{}, {}, {}", self.first, self.kept, self.stride),
        )
    }
}
