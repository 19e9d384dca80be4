//! The plans of a pass over some tokens of one text, and the memory between its launches.

use super::config::Config;
use crate::backend::Backend;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::attention::{Scale, Strides};
use crate::ops::index::{Index, PageShape, TokenAdapters};
use crate::ops::pointwise::{Kind, Turn};
use crate::ops::{Activation, Attention, FusedMlp, Linear, Pointwise};
use crate::session::{Plan, Session};

/// The most tokens of a pass. A longer text takes several.
pub const CHUNK: usize = 512;
/// The most tokens whose logits are computed together.
pub const HEAD_ROWS: usize = 64;

/// Memory that all passes use in turn, for [`CHUNK`] tokens.
pub struct Arena<D: Device> {
    /// Rows of states, before and after a layer, between its halves, and after a norm: `[rows, hidden]`.
    pub state: Slice<D>,
    pub middle: Slice<D>,
    pub normed: Slice<D>,
    /// Rows `[q | k | v]`; where heads are normed, all q first, then all k, then all v.
    pub rows: Slice<D>,
    /// What the norm of heads and then rotary positions make of q and k.
    pub turned: [Slice<D>; 2],
    /// The result of attention, `[rows, heads · head_dim]`.
    pub attended: Slice<D>,
    /// Positions, i32.
    pub positions: Slice<D>,
    /// Logits of up to [`HEAD_ROWS`] tokens.
    pub logits: Slice<D>,
}

impl<D: Backend> Arena<D> {
    /// Allocates the memory.
    ///
    /// # Errors
    /// No device memory.
    pub fn new(session: &Session<D>, config: &Config, dtype: DType) -> Result<Self> {
        let room = |columns: u64| session.alloc(CHUNK as u64 * columns * dtype.size());
        let turned = || room(if config.head_norm { config.query() } else { 0 });
        Ok(Self {
            state: room(config.hidden)?,
            middle: room(config.hidden)?,
            normed: room(config.hidden)?,
            rows: room(config.query() + 2 * config.key())?,
            turned: [turned()?, turned()?],
            attended: room(config.query())?,
            positions: session.alloc(CHUNK as u64 * 4)?,
            logits: session.alloc(HEAD_ROWS as u64 * u64::from(config.vocabulary) * dtype.size())?,
        })
    }
}

/// The plans for passes over `rows` tokens.
pub struct Plans<D: Backend> {
    pub rows: usize,
    pub ids: Index<TokenAdapters, D>,
    pub embedding: Plan<Pointwise, D>,
    pub norm: Plan<Pointwise, D>,
    /// The product of q, k and v, or one of each where heads are normed.
    pub qkv: Vec<Plan<Linear, D>>,
    /// The norms of heads, of q and of k.
    pub head_norms: Option<[Plan<Pointwise, D>; 2]>,
    /// Rotary positions of both in place, or of q and of k.
    pub rope: Vec<Plan<Pointwise, D>>,
    /// The append of k and v together, or of either.
    pub append: Plan<Pointwise, D>,
    pub attention: Plan<Attention, D>,
    pub output: Plan<Linear, D>,
    pub mlp: Plan<FusedMlp, D>,
}

impl<D: Backend> Plans<D> {
    /// Plans a pass over `rows` tokens at the end of a text that lies in pages of this shape.
    ///
    /// # Errors
    /// An operation that the backend does not do; no device memory.
    pub fn new(session: &mut Session<D>, config: &Config, dtype: DType, rows: usize, pages: PageShape) -> Result<Self> {
        let (n, hidden, d) = (rows as u64, config.hidden, config.head_dim);
        let (query, key) = (config.query(), config.key());
        let all = query + 2 * key;
        let norm = |rows: u64, columns: u64| Pointwise::new(dtype, rows, columns, Kind::RmsNorm { eps: config.norm_eps.to_bits(), residual: false });
        let product = |d_in: u64, d_out: u64, bias: bool| Linear { bias, ..Linear::new(dtype, [n, d_in, d_out]).with_padded_weights() };
        let way = Turn::base(config.rope_base);
        let turn = |columns: u64| Pointwise::new(dtype, n, columns, Kind::Rope { head_dim: d, turn: way });
        let apart = config.head_norm;
        let q = if apart { query } else { all };
        let q = Strides { batch: n * q, token: q, head: d };
        let token = if apart { key } else { 2 * key };
        let k = Strides { batch: pages.page * token, token, head: d };
        let attention = Attention::paged(dtype, pages, [config.heads, config.kv_heads], n, d);
        let scale = (f64::from(attention.scale_value()) * config.scaling.sharpness()) as f32;
        // One query stands behind all keys: nothing is hidden from it.
        let attention = Attention { q, k, v: k, causal: rows > 1, window: config.window.map(|window| window - 1), scale: Scale::from(scale), ..attention };
        let activation = Activation::Silu;
        let mlp = FusedMlp { gated: true, residual: true, ..FusedMlp::new(dtype, [n, hidden, config.intermediate, hidden], activation).with_padded_weights() };
        let (columns, stride) = if apart { (key, key) } else { (2 * key, all) };
        let ids = TokenAdapters::new(&vec![0; rows], config.vocabulary)?;
        Ok(Self {
            rows,
            ids: session.index(&ids)?,
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
            append: session.plan(Pointwise::new(dtype, n, columns, Kind::Append { cache: pages, stride }))?,
            attention: session.plan(attention)?,
            output: session.plan(Linear { residual: true, ..product(query, hidden, config.output_bias) })?,
            mlp: session.plan(mlp)?,
        })
    }
}

/// The plans of the last norm and the head, for the logits of `rows` tokens.
pub struct HeadPlans<D: Backend> {
    pub norm: Plan<Pointwise, D>,
    pub head: Plan<Linear, D>,
}

impl<D: Backend> HeadPlans<D> {
    /// Plans the logits of `rows` tokens.
    ///
    /// # Errors
    /// An operation that the backend does not do.
    pub fn new(session: &Session<D>, config: &Config, dtype: DType, rows: usize) -> Result<Self> {
        let norm = Kind::RmsNorm { eps: config.norm_eps.to_bits(), residual: false };
        Ok(Self {
            norm: session.plan(Pointwise::new(dtype, rows as u64, config.hidden, norm))?,
            head: session.plan(Linear::new(dtype, [rows as u64, config.hidden, config.vocabulary.into()]).with_padded_weights())?,
        })
    }
}

/// `len` bytes of a slice from `offset` on.
pub fn part<D: Device>(slice: &Slice<D>, offset: u64, len: u64) -> Result<Slice<D>> {
    slice.sub_slice(offset, len).ok_or_else(|| Error::invalid("pass", format!("{len} bytes from byte {offset} on"), format!("{} bytes", slice.len)))
}
