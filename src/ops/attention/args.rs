//! The operands of attention.

use derive_where::derive_where;

use crate::device::{Device, Slice};
use crate::ops::index::{BlockMap, BlockMask, Index, PageTable, RaggedPages, Slots, Varlen};
use crate::ops::setters::setters;

/// The operands of attention.
#[derive_where(Clone, Debug)]
#[non_exhaustive]
pub struct AttentionArgs<D: Device> {
    /// Queries, read.
    pub q: Slice<D>,
    /// Keys, read. In the paged form `[pool_pages, page, kv_heads, head_dim]`.
    pub k: Slice<D>,
    /// Values, read. In the paged form as k.
    pub v: Slice<D>,
    /// The index data, for the forms that need one.
    pub index: AttentionIndex<D>,
    /// The slot of each sequence in q, k and v, where the descriptor has [`slots`](super::Attention::slots). These then start at multiples of 16 bytes.
    pub slots: Option<Index<Slots, D>>,
    /// The output.
    pub o: Slice<D>,
    /// The LSE, written: `[batch, heads, q_len]` f32; in the varlen form `[heads, total_q]`.
    pub lse: Option<Slice<D>>,
}

impl<D: Device> AttentionArgs<D> {
    /// The operands of the dense form, without LSE.
    pub fn new(q: Slice<D>, k: Slice<D>, v: Slice<D>, o: Slice<D>) -> Self {
        Self { q, k, v, index: AttentionIndex::None, slots: None, o, lse: None }
    }

    setters! {
        with_q: q = Slice<D>;
        with_k: k = Slice<D>;
        with_v: v = Slice<D>;
        with_index: index = AttentionIndex<D>;
        with_slots: slots <- Option<Index<Slots, D>>;
        with_o: o = Slice<D>;
        with_lse: lse <- Option<Slice<D>>;
    }
}

/// The index data of a [`Form`](super::Form).
#[derive_where(Clone, Debug)]
pub enum AttentionIndex<D: Device> {
    /// No index data: for [`Form::Dense`](super::Form::Dense).
    None,
    /// Index data for [`Form::Varlen`](super::Form::Varlen).
    Varlen(Index<Varlen, D>),
    /// Index data for [`Form::Blocks`](super::Form::Blocks).
    Blocks(Index<BlockMask, D>),
    /// Index data for [`Form::BlockMap`](super::Form::BlockMap).
    BlockMap(Index<BlockMap, D>),
    /// Index data for [`Form::Paged`](super::Form::Paged).
    Paged(Index<PageTable, D>),
    /// Index data for [`Form::RaggedPaged`](super::Form::RaggedPaged).
    RaggedPaged(Index<RaggedPages, D>),
}
