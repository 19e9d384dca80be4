//! The plans of a pass over the rows of some sequences, and the memory between its launches.

use super::config::Config;
use super::layout::Layout;
use super::rope::Scaling;
use super::shape::{PoolShape, Queries, Shape};
use crate::backend::Backend;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::attention::{AttentionIndex, Scale, Strides};
use crate::ops::index::{Index, TokenAdapters};
use crate::ops::pointwise::{Kind, Turn};
use crate::ops::{Activation, Attention, FusedMlp, Linear, Pointwise};
use crate::session::{Plan, Session};

/// Memory that all passes use in turn.
pub struct Arena<D: Device> {
    /// Rows of states, before and after a layer, between its halves, and after a norm: `[rows, hidden]`.
    pub state: Slice<D>,
    pub middle: Slice<D>,
    pub normed: Slice<D>,
    /// Rows `[q | k | v]`; where heads are normed, all q first, then all k, then all v.
    pub rows: Slice<D>,
    /// What the norm of heads and then rotary positions make of q or k.
    pub turned: Slice<D>,
    /// The result of attention, `[rows, heads · head_dim]`.
    pub attended: Slice<D>,
    /// Rows `[gate | up]`, and what their product gives, where adapters may come between; else nothing.
    pub wide: Slice<D>,
    pub inner: Slice<D>,
    /// Positions of the rows in their sequences, i32.
    pub positions: Slice<D>,
    /// Where keys and values of the rows go, i32: tokens from the start of the pool, −1 for nowhere.
    pub slots: Slice<D>,
    /// Logits of up to `heads` rows.
    pub logits: Slice<D>,
    /// The most rows whose logits are computed together.
    pub heads: usize,
}

impl<D: Backend> Arena<D> {
    /// Allocates the memory for passes over up to `rows` tokens and the logits of up to `heads` of them. `split` says that adapters may come
    /// between the products of the MLP.
    ///
    /// # Errors
    /// No device memory.
    pub fn new(session: &Session<D>, config: &Config, dtype: DType, [rows, heads]: [usize; 2], split: bool) -> Result<Self> {
        let room = |columns: u64| session.alloc(rows as u64 * columns * dtype.size());
        let wide = if split { config.intermediate } else { 0 };
        Ok(Self {
            state: room(config.hidden)?,
            middle: room(config.hidden)?,
            normed: room(config.hidden)?,
            rows: room(config.query() + 2 * config.key())?,
            turned: room(if config.head_norm { config.query() } else { 0 })?,
            attended: room(config.query())?,
            wide: room(2 * wide)?,
            inner: room(wide)?,
            positions: session.alloc(rows as u64 * 4)?,
            slots: session.alloc(rows as u64 * 4)?,
            logits: session.alloc(heads as u64 * u64::from(config.vocabulary) * dtype.size())?,
            heads,
        })
    }
}

/// The plans for passes of one shape, and their index data.
pub struct Plans<D: Backend> {
    pub shape: Shape,
    pub ids: Index<TokenAdapters, D>,
    /// Which rows and pages belong to which sequence.
    pub tables: AttentionIndex<D>,
    pub embedding: Plan<Pointwise, D>,
    pub norm: Plan<Pointwise, D>,
    /// The product of q, k and v, or one of each where heads are normed.
    pub qkv: Vec<Plan<Linear, D>>,
    /// The norms of heads, of q and of k.
    pub head_norms: Option<[Plan<Pointwise, D>; 2]>,
    /// Rotary positions of both in place, or of q and of k.
    pub rope: Vec<Plan<Pointwise, D>>,
    /// The way of k and v into the pool, together, or of either.
    pub store: Plan<Pointwise, D>,
    pub attention: Plan<Attention, D>,
    pub output: Plan<Linear, D>,
    pub mlp: Mlp<D>,
}

/// The plans of an MLP.
pub enum Mlp<D: Backend> {
    /// One operation.
    Fused(Plan<FusedMlp, D>),
    /// Three, between which adapters add their part: `[gate | up]`, their product, and the way down.
    Split(Box<SplitMlp<D>>),
}

/// The plans of an MLP in three operations.
pub struct SplitMlp<D: Backend> {
    /// `[gate | up]`.
    pub wide: Plan<Linear, D>,
    pub glu: Plan<Pointwise, D>,
    pub down: Plan<Linear, D>,
}

impl<D: Backend> Plans<D> {
    /// Plans passes of a shape over keys and values that lie in `pools`.
    ///
    /// # Errors
    /// An operation that the backend does not do; no device memory.
    pub fn new(session: &mut Session<D>, config: &Config, dtype: DType, shape: Shape, pools: PoolShape, split: bool) -> Result<Self> {
        let (n, hidden, d) = (shape.rows as u64, config.hidden, config.head_dim);
        let (query, key) = (config.query(), config.key());
        let all = query + 2 * key;
        let norm = |rows: u64, columns: u64| Pointwise::new(dtype, rows, columns, Kind::RmsNorm { eps: config.norm_eps.to_bits(), residual: false });
        let product = |d_in: u64, d_out: u64, bias: bool| Linear { bias, ..Linear::new(dtype, [n, d_in, d_out]).with_padded_weights() };
        let way = if config.scaling == Scaling::None { Turn::base(config.rope_base) } else { Turn::Table };
        let turn = |columns: u64| Pointwise::new(dtype, n, columns, Kind::Rope { head_dim: d, turn: way });
        let apart = config.head_norm;
        let layout = Layout::spare(&shape);
        let (columns, stride) = if apart { (key, key) } else { (2 * key, all) };
        let slots = pools.tokens()?;
        let wide = config.intermediate;
        let mlp = if split {
            let glu = Kind::Glu(Activation::Silu);
            let wide_product = session.plan(product(hidden, 2 * wide, false))?;
            Mlp::Split(Box::new(SplitMlp {
                wide: wide_product,
                glu: session.plan(Pointwise::new(dtype, n, wide, glu))?,
                down: session.plan(product(wide, hidden, false).with_residual(true))?,
            }))
        } else {
            let mlp = FusedMlp::new(dtype, [n, hidden, wide, hidden], Activation::Silu).with_padded_weights();
            Mlp::Fused(session.plan(FusedMlp { gated: true, residual: true, ..mlp })?)
        };
        Ok(Self {
            shape,
            ids: session.index(&layout.ids(config.vocabulary)?)?,
            tables: layout.place(session, &shape, pools)?,
            embedding: session.plan(Pointwise::new(dtype, n, hidden, Kind::Embedding { vocabulary: config.vocabulary }))?,
            norm: session.plan(norm(n, hidden))?,
            qkv: if apart {
                [query, key, key].into_iter().map(|columns| session.plan(product(hidden, columns, config.qkv_bias))).collect::<Result<_>>()?
            } else {
                vec![session.plan(product(hidden, all, config.qkv_bias))?]
            },
            head_norms: if apart { Some([session.plan(norm(n * config.heads, d))?, session.plan(norm(n * config.kv_heads, d))?]) } else { None },
            rope: if apart {
                vec![session.plan(turn(query))?, session.plan(turn(key))?]
            } else {
                vec![session.plan(Pointwise::new(dtype, n, query + key, Kind::RopeInPlace { head_dim: d, turn: way, stride: all }))?]
            },
            store: session.plan(Pointwise::new(dtype, n, columns, Kind::Store { slots, stride }))?,
            attention: session.plan(attention(config, dtype, shape, pools))?,
            output: session.plan(product(query, hidden, config.output_bias).with_residual(true))?,
            mlp,
        })
    }

    /// Replaces what the last pass of these plans left on the device. Nothing is written where an error is found here.
    ///
    /// # Errors
    /// An id that is not in the vocabulary; pages that the pool does not have; a device that fails.
    pub fn write(&self, session: &mut Session<D>, layout: &Layout, arena: &Arena<D>, vocabulary: u32, pools: PoolShape) -> Result<()> {
        let ids = layout.ids(vocabulary)?;
        match (&self.tables, self.shape.queries) {
            (AttentionIndex::Paged(index), Queries::Even) => session.update_index(index, &layout.even(&self.shape, pools)?)?,
            (AttentionIndex::RaggedPaged(index), Queries::Ragged { most }) => session.update_index(index, &layout.ragged(&self.shape, most, pools)?)?,
            (other, _) => return Err(Error::invalid("pass", "a page table", format!("{other:?}"))),
        }
        session.update_index(&self.ids, &ids)?;
        session.write(&arena.positions, bytemuck::cast_slice(&layout.positions))?;
        session.write(&arena.slots, bytemuck::cast_slice(&layout.slots))
    }
}

/// Attention of the rows over the pages of their sequences.
fn attention(config: &Config, dtype: DType, shape: Shape, pools: PoolShape) -> Attention {
    let (n, d, heads) = (shape.rows as u64, config.head_dim, [config.heads, config.kv_heads]);
    let (attention, longest) = match shape.queries {
        Queries::Even => (Attention::paged(dtype, pools.even(&shape), heads, n / shape.sequences as u64, d), shape.rows / shape.sequences),
        Queries::Ragged { most } => (Attention::ragged_paged(dtype, pools.ragged(&shape, most), heads, d), most),
    };
    let (q, k) = match config.head_norm {
        true => (config.query(), config.key()),
        false => (config.query() + 2 * config.key(), 2 * config.key()),
    };
    let q = Strides { batch: attention.q_len * q, token: q, head: d };
    let k = Strides { batch: pools.page as u64 * k, token: k, head: d };
    let scale = (f64::from(attention.scale_value()) * config.scaling.sharpness()) as f32;
    // One query stands behind all keys: nothing is hidden from it.
    let causal = longest > 1;
    Attention { q, k, v: k, causal, window: config.window.map(|window| window - 1), scale: Scale::from(scale), ..attention }
}
