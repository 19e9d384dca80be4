//! Attention `O = softmax(scale · Q · Kᵀ + mask) · V` for each head, with an online softmax (Milakov and Gimelshein, arXiv:1805.02867;
//! FlashAttention, arXiv:2205.14135). It makes one pass over K and V with a running maximum and sum in f32, and no score matrix in memory. Query
//! heads may share a KV head (arXiv:2305.13245), and K and V may lie in pages (arXiv:2309.06180).
//!
//! Query `i` of a sequence stands at position `i + kv_len − q_len`. With a causal mask it sees key `j` where `j ≤ position`. With a window `w` it
//! sees `j ≥ position − w` and, when not causal, `j ≤ position + w`. Masks combine; in the block-sparse form they hold inside the listed blocks. A
//! query that sees no key gets `O = 0` and `LSE = −∞`.

mod args;

pub use args::{AttentionArgs, AttentionIndex};

use super::index::{BlockShape, Index, MapShape, PageShape, RaggedShape, SlotShape, VarlenShape};
use super::setters::setters;
pub use super::strides::Strides;
use super::{Access, Cost, Op, Operand, Translate, expect_present, expect_size};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result, ensure};

/// The bytes of which q, k and v start at a multiple, where sequences lie at slots.
const SLOTS_ALIGN: u64 = 16;

/// The descriptor of attention. Sizes and strides are in elements; a head's `head_dim` elements are contiguous.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Attention {
    /// Element type of q, k, v and o. Scores and sums are in f32.
    pub dtype: DType,
    /// Sequences of the batch.
    pub batch: u64,
    /// Heads of q and o.
    pub heads: u64,
    /// Heads of k and v; divides `heads`. Query head `h` reads head `h / (heads / kv_heads)`.
    pub kv_heads: u64,
    /// Elements of a head, 1 to 256.
    pub head_dim: u64,
    /// Queries of a sequence; in the varlen form, the most.
    pub q_len: u64,
    /// Keys of a sequence; in the varlen and the paged form, the most.
    pub kv_len: u64,
    /// The factor in front of the scores.
    pub scale: Scale,
    /// Whether a query sees no key past its own position.
    pub causal: bool,
    /// How far from its own position a query sees keys, if that is limited.
    pub window: Option<u64>,
    /// How sequences, keys and masks are given.
    pub form: Form,
    /// How many sequences q, k and v have, where those of the batch are some of them in any order: each is at its slot, as the operand
    /// [`slots`](AttentionArgs::slots) says, and its output and masks at its own number. Else they have the batch's sequences, in order.
    pub slots: Option<u32>,
    /// Whether the logarithm of Σ exp(scale·q·k) is written too.
    pub lse: bool,
    /// Strides of q.
    pub q: Strides,
    /// Strides of k. In the paged form `batch` is the stride of a page.
    pub k: Strides,
    /// Strides of v. In the paged form `batch` is the stride of a page.
    pub v: Strides,
    /// Strides of o.
    pub o: Strides,
}

/// The factor in front of the scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scale {
    /// The usual scale, 1/√head_dim.
    Default,
    /// The f32 with these bits; see [`Scale::from`].
    Bits(u32),
}

impl From<f32> for Scale {
    fn from(value: f32) -> Self {
        Self::Bits(value.to_bits())
    }
}

/// How sequences, keys and masks are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Every sequence has `q_len` queries and `kv_len` keys.
    Dense,
    /// Sequences of different length, end to end: batch strides are not used.
    Varlen(VarlenShape),
    /// Dense sequences with only the listed blocks of the score matrix.
    Blocks(BlockShape),
    /// Blocks as in [`Blocks`](Self::Blocks), where a byte for each says whether it is present. Each launch reads the bytes that are then on the
    /// device.
    BlockMap(MapShape),
    /// K and V in pages of a pool, each sequence with its own length.
    Paged(PageShape),
    /// K and V in pages of a pool, and queries in numbers of their own, end to end: batch strides of q and o are not used. Spare queries give
    /// `O = 0` and `LSE = −∞`. A query's bits depend on itself and its keys alone.
    RaggedPaged(RaggedShape),
}

impl Form {
    /// Whether only some blocks of the score matrix are present.
    pub const fn is_sparse(&self) -> bool {
        matches!(self, Self::Blocks(_) | Self::BlockMap(_))
    }
}

impl Attention {
    /// Dense attention, not causal, without LSE, all operands packed `[b, s, h, d]`. Heads are `[heads, kv_heads]`, lengths `[q_len, kv_len]`.
    pub fn dense(dtype: DType, batch: u64, [heads, kv_heads]: [u64; 2], [q_len, kv_len]: [u64; 2], head_dim: u64) -> Self {
        let query = Strides::bshd(q_len, heads, head_dim);
        let key = Strides::bshd(kv_len, kv_heads, head_dim);
        Self {
            dtype,
            batch,
            heads,
            kv_heads,
            head_dim,
            q_len,
            kv_len,
            scale: Scale::Default,
            causal: false,
            window: None,
            form: Form::Dense,
            slots: None,
            lse: false,
            q: query,
            k: key,
            v: key,
            o: query,
        }
    }

    /// Varlen attention of sequences end to end: `q [total_q, heads, head_dim]`, `k`, `v [total_kv, kv_heads, head_dim]`.
    pub fn varlen(dtype: DType, shape: VarlenShape, heads: [u64; 2], head_dim: u64) -> Self {
        Self { form: Form::Varlen(shape), ..Self::dense(dtype, shape.batch, heads, [shape.max_q, shape.max_kv], head_dim) }
    }

    /// Decoding from a pool of pages, with `q [batch, q_len, heads, head_dim]`.
    pub fn paged(dtype: DType, shape: PageShape, heads: [u64; 2], q_len: u64, head_dim: u64) -> Self {
        let page = Strides::bshd(shape.page, heads[1], head_dim);
        let dense = Self::dense(dtype, shape.batch, heads, [q_len, shape.pages.saturating_mul(shape.page)], head_dim);
        Self { form: Form::Paged(shape), k: page, v: page, ..dense }
    }

    /// Any numbers of queries against a pool of pages, with `q [total_q, heads, head_dim]`.
    pub fn ragged_paged(dtype: DType, shape: RaggedShape, heads: [u64; 2], head_dim: u64) -> Self {
        Self { form: Form::RaggedPaged(shape), ..Self::paged(dtype, shape.table(), heads, shape.max_q, head_dim) }
    }

    /// The factor in front of the scores, as a number.
    pub fn scale_value(&self) -> f32 {
        match self.scale {
            Scale::Default => 1.0 / (self.head_dim as f32).sqrt(),
            Scale::Bits(bits) => f32::from_bits(bits),
        }
    }

    /// Rows of o in all sequences: `(sequences as laid out, tokens of each)`.
    pub(crate) fn o_extent(&self) -> (u64, u64) {
        match self.form {
            Form::Varlen(VarlenShape { total_q, .. }) | Form::RaggedPaged(RaggedShape { total_q, .. }) => (1, total_q),
            _ => (self.batch, self.q_len),
        }
    }

    /// Rows of q in all sequences, or slots, as [`o_extent`](Self::o_extent) gives those of o.
    pub(crate) fn q_extent(&self) -> (u64, u64) {
        let (sequences, tokens) = self.o_extent();
        (self.slots.map_or(sequences, u64::from), tokens)
    }

    /// Rows of k in all sequences, slots or pages: `(sequences, slots or pages, tokens of each)`.
    pub(crate) fn kv_extent(&self) -> (u64, u64) {
        match self.form {
            Form::Varlen(shape) => (1, shape.total_kv),
            Form::Paged(PageShape { pool_pages, page, .. }) | Form::RaggedPaged(RaggedShape { pool_pages, page, .. }) => (pool_pages, page),
            _ => (self.slots.map_or(self.batch, u64::from), self.kv_len),
        }
    }

    /// How many sequences of [`q_len`](Self::q_len) queries (of one, if that is 0) have room for all queries that may be spare. A backend may take
    /// those for such sequences, which have no keys.
    pub fn spare_sequences(&self) -> u64 {
        if let Form::RaggedPaged(shape) = self.form { shape.total_q.div_ceil(self.q_len.max(1)) } else { 0 }
    }

    /// Elements of the LSE.
    pub fn lse_len(&self) -> u64 {
        let (batch, tokens) = self.o_extent();
        batch.saturating_mul(self.heads).saturating_mul(tokens)
    }

    /// Elements from the first of a tensor to one past its last.
    pub(super) fn span(&self, name: &str, strides: Strides, (batch, tokens): (u64, u64), heads: u64) -> Result<u64> {
        if batch == 0 || tokens == 0 {
            return Ok(0);
        }
        let parts = [(batch - 1, strides.batch), (tokens - 1, strides.token), (heads - 1, strides.head)];
        let last = parts.iter().try_fold(self.head_dim, |all, &(n, stride)| n.checked_mul(stride).and_then(|part| all.checked_add(part)));
        last.filter(|&last| last < 1 << 61).ok_or_else(|| Error::invalid(format!("attention: {name}"), "a span below 2^61", format!("{strides:?}")))
    }

    /// An upper bound of the operations: the blocks that there is room for, each pattern's share.
    fn listed_flops(&self, shape: &BlockShape) -> f64 {
        let rows = self.batch as f64 * self.heads as f64 / f64::from(shape.patterns.max(1));
        4.0 * self.head_dim as f64 * f64::from(shape.block).powi(2) * f64::from(shape.capacity) * rows
    }

    fn validate_blocks(&self, shape: &BlockShape) -> Result<()> {
        let block = u64::from(shape.block.max(1));
        let (rows, columns) = (self.q_len.div_ceil(block), self.kv_len.div_ceil(block));
        let fits = u64::from(shape.q_blocks) == rows && u64::from(shape.kv_blocks) == columns;
        ensure(fits, "attention: blocks", format_args!("{rows} × {columns} blocks"), format_args!("{} × {}", shape.q_blocks, shape.kv_blocks))?;
        let patterns = u64::from(shape.patterns);
        let legal = patterns == 1 || patterns == self.heads || patterns == self.heads * self.batch;
        ensure(legal, "attention: block patterns", "1, heads, or batch · heads", patterns)
    }

    /// Pairs of query and key that the masks of a dense sequence leave.
    fn seen_pairs(&self) -> f64 {
        let (q, kv) = (self.q_len as i128, self.kv_len as i128);
        // Σ over n ≤ last of n clamped to 0..=kv.
        let clamped_up_to = |last: i128| match last {
            ..=0 => 0.0,
            _ if last <= kv => last as f64 * (last + 1) as f64 / 2.0,
            _ => kv as f64 * (kv + 1) as f64 / 2.0 + (last - kv) as f64 * kv as f64,
        };
        // Pairs whose key lies at most `ahead` after the query's position: row by row, position + ahead + 1 keys.
        let up_to = |ahead: i128| clamped_up_to(kv + ahead) - clamped_up_to(kv - q + ahead);
        let ahead = if self.causal { 0 } else { self.window.map_or(q + kv, i128::from) };
        up_to(ahead) - self.window.map_or(0.0, |window| up_to(-i128::from(window) - 1))
    }

    setters! {
        with_dtype: dtype = DType;
        with_batch: batch = u64;
        with_heads: heads = u64;
        with_kv_heads: kv_heads = u64;
        with_head_dim: head_dim = u64;
        with_q_len: q_len = u64;
        with_kv_len: kv_len = u64;
        with_scale: scale <- Scale;
        with_causal: causal = bool;
        with_window: window = Option<u64>;
        with_form: form = Form;
        with_slots: slots <- Option<u32>;
        with_lse: lse = bool;
        with_q: q = Strides;
        with_k: k = Strides;
        with_v: v = Strides;
        with_o: o = Strides;
    }
}

impl Op for Attention {
    const NAME: &'static str = "attention";
    type Args<D: Device> = AttentionArgs<D>;

    fn validate(&self) -> Result<()> {
        ensure((1..=256).contains(&self.head_dim), "attention: head_dim", "1 to 256", self.head_dim)?;
        ensure(self.heads > 0 && self.kv_heads > 0, "attention: heads and kv_heads", "at least 1", format_args!("{} and {}", self.heads, self.kv_heads))?;
        ensure(self.heads.is_multiple_of(self.kv_heads), "attention: heads", format_args!("a multiple of kv_heads, {}", self.kv_heads), self.heads)?;
        let scale = self.scale_value();
        ensure(scale.is_finite(), "attention: scale", "a finite number", scale)?;
        expect_size("attention: scores", &[self.batch, self.heads, self.q_len, self.kv_len])?;
        for (name, strides, extent, heads) in [
            ("q", self.q, self.q_extent(), self.heads),
            ("k", self.k, self.kv_extent(), self.kv_heads),
            ("v", self.v, self.kv_extent(), self.kv_heads),
            ("o", self.o, self.o_extent(), self.heads),
        ] {
            self.span(name, strides, extent, heads)?;
            // Rows of d elements must not overlap. Only an operand that is written needs that.
            if name == "o" {
                let mut steps = [(extent.0, strides.batch), (extent.1, strides.token), (heads, strides.head)];
                steps.sort_by_key(|&(_, stride)| stride);
                let mut room = self.head_dim;
                for (count, stride) in steps.into_iter().filter(|&(count, _)| count > 1) {
                    ensure(stride >= room, "attention: o strides", format_args!("elements apart, a stride of at least {room}"), stride)?;
                    room = stride.saturating_mul(count);
                }
            }
        }
        let in_order = self.slots.is_none() || matches!(self.form, Form::Dense | Form::Blocks(_) | Form::BlockMap(_));
        ensure(in_order, "attention: slots", "none, but for dense and block-sparse sequences", format_args!("{:?}", self.form))?;
        match self.form {
            Form::Dense => Ok(()),
            Form::Varlen(shape) => {
                let fits = shape.batch == self.batch && shape.max_q == self.q_len && shape.max_kv == self.kv_len;
                ensure(fits, "attention: varlen", "batch, q_len and kv_len of the index's shape", format_args!("{shape:?}"))
            }
            Form::Blocks(shape) => self.validate_blocks(&shape),
            Form::BlockMap(shape) => {
                ensure(shape.blocks() < 1 << 31, "attention: block map", "fewer than 2^31 blocks", shape.blocks())?;
                self.validate_blocks(&shape.lists())
            }
            Form::Paged(shape) => {
                let fits = shape.batch == self.batch && Some(self.kv_len) == shape.pages.checked_mul(shape.page);
                ensure(fits, "attention: page table", "the batch of the operation, and kv_len = pages · page", format_args!("{shape:?}"))
            }
            Form::RaggedPaged(shape) => {
                let fits = shape.batch == self.batch && shape.max_q == self.q_len && Some(self.kv_len) == shape.pages.checked_mul(shape.page);
                ensure(fits, "attention: ragged pages", "batch and q_len of the index's shape, and kv_len = pages · page", format_args!("{shape:?}"))
            }
        }
    }

    fn sizes(&self) -> [u64; 3] {
        [self.batch * self.q_len, self.heads * self.head_dim, self.kv_len]
    }

    fn cost(&self) -> Cost {
        let sequence = 4.0 * self.heads as f64 * self.head_dim as f64;
        let dense = sequence * self.batch as f64 * self.q_len as f64 * self.kv_len as f64;
        let useful = sequence * self.batch as f64 * self.seen_pairs();
        let executed = match self.form {
            Form::Blocks(shape) => self.listed_flops(&shape),
            Form::BlockMap(shape) => self.listed_flops(&shape.lists()),
            _ => useful,
        };
        // Of slots those are read that the batch has.
        let (q, kv) = (self.o_extent(), if self.slots.is_some() { (self.batch, self.kv_len) } else { self.kv_extent() });
        let rows = |(batch, tokens): (u64, u64), heads: u64| 2.0 * batch as f64 * tokens as f64 * heads as f64;
        let elements = rows(q, self.heads) + rows(kv, self.kv_heads);
        let bytes = elements * (self.head_dim * self.dtype.size()) as f64 + if self.lse { 4.0 * self.lse_len() as f64 } else { 0.0 };
        Cost { executed_flops: executed, useful_flops: useful.min(executed), dense_flops: dense, bytes }
    }

    fn translate<A: Device, B: Device>(args: &AttentionArgs<A>, to: &Translate<'_, A, B>) -> Result<AttentionArgs<B>> {
        let index = match &args.index {
            AttentionIndex::None => AttentionIndex::None,
            AttentionIndex::Varlen(index) => AttentionIndex::Varlen(to.index(index)?),
            AttentionIndex::Blocks(index) => AttentionIndex::Blocks(to.index(index)?),
            AttentionIndex::BlockMap(index) => AttentionIndex::BlockMap(to.index(index)?),
            AttentionIndex::Paged(index) => AttentionIndex::Paged(to.index(index)?),
            AttentionIndex::RaggedPaged(index) => AttentionIndex::RaggedPaged(to.index(index)?),
        };
        let [q, k, v, o] = [&args.q, &args.k, &args.v, &args.o].map(|slice| to.slice(slice));
        Ok(AttentionArgs { q: q?, k: k?, v: v?, index, slots: to.index_if_any(&args.slots)?, o: o?, lse: to.if_any(&args.lse)? })
    }

    fn operands<'a, D: Device>(&self, args: &'a AttentionArgs<D>, see: &mut dyn FnMut(Operand<'a, D>)) -> Result<()> {
        let tensors = [
            ("q", Access::Read, &args.q, self.q, self.q_extent(), self.heads),
            ("k", Access::Read, &args.k, self.k, self.kv_extent(), self.kv_heads),
            ("v", Access::Read, &args.v, self.v, self.kv_extent(), self.kv_heads),
            ("o", Access::Write, &args.o, self.o, self.o_extent(), self.heads),
        ];
        for (name, access, slice, strides, extent, heads) in tensors {
            let operand = Operand::packed(name, access, slice, self.span(name, strides, extent, heads)?, self.dtype);
            let wide = self.slots.is_some() && access == Access::Read;
            see(if wide { operand.starting_at(SLOTS_ALIGN) } else { operand });
        }
        let index = match (&args.index, self.form) {
            (AttentionIndex::None, Form::Dense) => None,
            (AttentionIndex::Varlen(index), Form::Varlen(shape)) if *index.shape() == shape => Some(index.slice()),
            (AttentionIndex::Blocks(index), Form::Blocks(shape)) if *index.shape() == shape => Some(index.slice()),
            (AttentionIndex::BlockMap(index), Form::BlockMap(shape)) if *index.shape() == shape => Some(index.slice()),
            (AttentionIndex::Paged(index), Form::Paged(shape)) if *index.shape() == shape => Some(index.slice()),
            (AttentionIndex::RaggedPaged(index), Form::RaggedPaged(shape)) if *index.shape() == shape => Some(index.slice()),
            (other, form) => return Err(Error::invalid("attention: index", format!("the index of {form:?}"), format!("{other:?}"))),
        };
        if let Some(slice) = index {
            see(Operand::packed("index", Access::Read, slice, slice.len / 4, 4u64));
        }
        match (&args.slots, self.slots) {
            (None, None) => {}
            (Some(index), Some(slots)) if *index.shape() == (SlotShape { batch: self.batch, slots }) => {
                see(Operand::packed("slots", Access::Read, index.slice(), self.batch, 4u64));
            }
            (found, Some(slots)) => {
                let expected = format!("{:?}", SlotShape { batch: self.batch, slots });
                return Err(Error::invalid("attention: slots", expected, format!("{:?}", found.as_ref().map(Index::shape))));
            }
            (Some(_), None) => return Err(Error::invalid("attention: slots", "absent (the descriptor says so)", "present")),
        }
        expect_present(Self::NAME, "lse", self.lse, args.lse.is_some())?;
        if let Some(lse) = &args.lse {
            see(Operand::packed("lse", Access::Write, lse, self.lse_len(), DType::F32));
        }
        Ok(())
    }
}
