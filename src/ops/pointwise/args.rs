//! The operands of a small operation.

use derive_where::derive_where;

use crate::device::{Device, Slice};
use crate::ops::index::{Index, PageTable, TokenAdapters, Varlen};
use crate::ops::setters::setters;

/// The operands of a small operation.
#[derive_where(Clone, Debug)]
#[non_exhaustive]
pub struct PointwiseArgs<D: Device> {
    /// Rows, or the table of an embedding; read. In place it is y.
    pub x: Slice<D>,
    /// The weight of a norm, `[columns]`, read. For Heads each head has its own part.
    pub weight: Option<Slice<D>>,
    /// The bias of LayerNorm, `[columns]`, read.
    pub bias: Option<Slice<D>>,
    /// The residual, `[rows, columns]`, read. EmbeddingNorm has the second table here.
    pub residual: Option<Slice<D>>,
    /// Positions for both forms of Rope and for Heads, and places for Store: `[rows]` as i32, any value, read.
    pub positions: Option<Slice<D>>,
    /// Radians from a position to the next for both forms of Rope and for Heads with [`Turn::Table`](super::Turn::Table): `[head_dim / 2]` f32, read.
    pub frequencies: Option<Slice<D>>,
    /// Ids of the rows for Embedding ([`TokenAdapters`] checks ids against a range, here the vocabulary).
    pub ids: Option<Index<TokenAdapters, D>>,
    /// Rows of the second table for EmbeddingNorm, one for each row.
    pub places: Option<Index<TokenAdapters, D>>,
    /// Starts of the sequences for MeanPool.
    pub sequences: Option<Index<Varlen, D>>,
    /// Lengths of the sequences for Append and Heads, and the pages of their positions.
    pub pages: Option<Index<PageTable, D>>,
    /// Slots for Heads with [`Places::Slots`](super::Places::Slots): `[rows]` as i32, any value, read.
    pub slots: Option<Slice<D>>,
    /// The pool for Heads, `[pool_pages, page, kept]` or `[slots, kept]`, of which the places of new tokens are written.
    pub pool: Option<Slice<D>>,
    /// The result, `[rows, columns]`, written. In place it is rows a stride apart, read and written. For Append it is `[pool_pages, page,
    /// columns]`, of which the places of new tokens are written; for Store `[slots, columns]`.
    pub y: Slice<D>,
}

impl<D: Device> PointwiseArgs<D> {
    /// Operands from `x` to `y`, and no others.
    pub fn new(x: Slice<D>, y: Slice<D>) -> Self {
        let [weight, bias, residual, positions, frequencies, slots, pool] = [const { None }; 7];
        Self { x, weight, bias, residual, positions, frequencies, ids: None, places: None, sequences: None, pages: None, slots, pool, y }
    }

    /// Operands that rotate `y` in place by `positions`.
    pub fn rope_in_place(y: Slice<D>, positions: Slice<D>) -> Self {
        Self { positions: Some(positions), ..Self::new(y.clone(), y) }
    }

    setters! {
        with_x: x = Slice<D>;
        with_weight: weight <- Option<Slice<D>>;
        with_bias: bias <- Option<Slice<D>>;
        with_residual: residual <- Option<Slice<D>>;
        with_positions: positions <- Option<Slice<D>>;
        with_frequencies: frequencies <- Option<Slice<D>>;
        with_ids: ids <- Option<Index<TokenAdapters, D>>;
        with_places: places <- Option<Index<TokenAdapters, D>>;
        with_sequences: sequences <- Option<Index<Varlen, D>>;
        with_pages: pages <- Option<Index<PageTable, D>>;
        with_slots: slots <- Option<Slice<D>>;
        with_pool: pool <- Option<Slice<D>>;
        with_y: y = Slice<D>;
    }
}
