//! What a class of batches holds: plans, buffers, indices, and its captured graph.

use std::collections::HashMap;

use super::config::Config;
use super::shape::Shape;
use crate::adapters::engine::Batch;
use crate::backend::Backend;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::attention::Strides;
use crate::ops::index::{Index, TokenAdapters, Varlen};
use crate::ops::pointwise::Kind;
use crate::ops::{Attention, FusedMlp, Linear, Pointwise};
use crate::session::{Graph, Plan, Session};

/// Buffers of rows that all classes use in turn, as large as the largest class so far.
pub struct Arena<D: Device> {
    pub rows: usize,
    pub sequences: usize,
    dtype: DType,
    hidden: u64,
    intermediate: u64,
    /// Rows of states, `[rows, hidden]`: the tables' rows, then the results of attention and the products; the states before and after.
    a: Slice<D>,
    b: Slice<D>,
    state: Slice<D>,
    middle: Slice<D>,
    /// Rows of q, k and v, `[rows, 3 · hidden]`.
    qkv: Slice<D>,
    /// The intermediate, `[rows, intermediate]`, before and after the activation; empty until a pass needs it.
    wide: Option<[Slice<D>; 2]>,
    /// The pooled vectors, `[sequences, hidden]`.
    pooled: Slice<D>,
    out: Slice<D>,
}

/// The parts of an [`Arena`] that a class uses.
pub struct Buffers<D: Device> {
    pub a: Slice<D>,
    pub b: Slice<D>,
    pub state: Slice<D>,
    pub middle: Slice<D>,
    pub qkv: Slice<D>,
    pub wide: Option<[Slice<D>; 2]>,
    pub pooled: Slice<D>,
    pub out: Slice<D>,
}

impl<D: Backend> Arena<D> {
    /// Allocates buffers for batches of this many rows and sequences. With `wide` the MLP's intermediate is kept whole.
    pub fn new(session: &Session<D>, config: &Config, dtype: DType, [rows, sequences]: [usize; 2], wide: bool) -> Result<Self> {
        let (hidden, intermediate) = (config.hidden, config.intermediate);
        let room = |rows: usize, columns: u64| session.alloc(rows as u64 * columns * dtype.size());
        Ok(Self {
            rows,
            sequences,
            dtype,
            hidden,
            intermediate,
            a: room(rows, hidden)?,
            b: room(rows, hidden)?,
            state: room(rows, hidden)?,
            middle: room(rows, hidden)?,
            qkv: room(rows, 3 * hidden)?,
            wide: if wide { Some([room(rows, intermediate)?, room(rows, intermediate)?]) } else { None },
            pooled: room(sequences, hidden)?,
            out: room(sequences, hidden)?,
        })
    }

    /// Whether batches of this size fit, with the whole intermediate where that is asked for.
    pub fn fits(&self, shape: &Shape, wide: bool) -> bool {
        shape.rows <= self.rows && shape.sequences <= self.sequences && (!wide || self.wide.is_some())
    }

    fn buffers(&self, shape: &Shape) -> Result<Buffers<D>> {
        let part = |slice: &Slice<D>, rows: usize, columns: u64| {
            let bytes = rows as u64 * columns * self.dtype.size();
            slice.sub_slice(0, bytes).ok_or_else(|| Error::invalid("batch", format!("at most {} rows", self.rows), rows))
        };
        let state = |slice| part(slice, shape.rows, self.hidden);
        let wide = self.wide.as_ref().map(|[a, b]| Ok([part(a, shape.rows, self.intermediate)?, part(b, shape.rows, self.intermediate)?]));
        Ok(Buffers {
            a: state(&self.a)?,
            b: state(&self.b)?,
            state: state(&self.state)?,
            middle: state(&self.middle)?,
            qkv: part(&self.qkv, shape.rows, 3 * self.hidden)?,
            wide: wide.transpose()?,
            pooled: part(&self.pooled, shape.sequences, self.hidden)?,
            out: part(&self.out, shape.sequences, self.hidden)?,
        })
    }
}

/// Everything that batches of one [`Shape`] share.
pub struct Class<D: Backend> {
    pub shape: Shape,
    pub buffers: Buffers<D>,
    pub ids: Index<TokenAdapters, D>,
    pub positions: Index<TokenAdapters, D>,
    pub places: Index<Varlen, D>,
    pub adapters: Option<Batch<D>>,
    pub plans: Plans<D>,
    /// The graph that captured the second batch; later ones replay it.
    pub graph: Option<Graph<D>>,
    /// The number of the batch that the class's indices hold.
    pub loaded: u64,
    /// Whether a batch has been run, and so every plan made.
    pub warm: bool,
}

impl<D: Backend> Class<D> {
    /// The class of a batch with these indices.
    pub fn new(
        session: &mut Session<D>,
        config: &Config,
        arena: &Arena<D>,
        shape: Shape,
        [ids, positions]: [&TokenAdapters; 2],
        places: &Varlen,
        adapters: Option<Batch<D>>,
    ) -> Result<Self> {
        Ok(Self {
            shape,
            buffers: arena.buffers(&shape)?,
            ids: session.index(ids)?,
            positions: session.index(positions)?,
            places: session.index(places)?,
            adapters,
            plans: Plans::new(session, config, arena.dtype, &shape)?,
            graph: None,
            loaded: 0,
            warm: false,
        })
    }
}

/// The plans of one class. Plans of products are made when they are first needed, since the adapters decide which there are.
pub struct Plans<D: Backend> {
    /// The plan of both tables and the norm behind them, where the device takes those at once.
    pub begin: Option<Plan<Pointwise, D>>,
    pub words: Plan<Pointwise, D>,
    pub positions: Plan<Pointwise, D>,
    pub norm: Plan<Pointwise, D>,
    pub attention: Plan<Attention, D>,
    pub pool: Plan<Pointwise, D>,
    pub unit: Plan<Pointwise, D>,
    pub activation: Option<Plan<Pointwise, D>>,
    pub mlp: Option<Plan<FusedMlp, D>>,
    linear: HashMap<Linear, Plan<Linear, D>>,
    /// Plans of products with a norm at the end, where the device takes them.
    normed: HashMap<Linear, Option<Plan<Linear, D>>>,
}

impl<D: Backend> Plans<D> {
    fn new(session: &Session<D>, config: &Config, dtype: DType, shape: &Shape) -> Result<Self> {
        let columns = config.hidden;
        let plan = |rows: usize, kind: Kind| session.plan(Pointwise { dtype, rows: rows as u64, columns, kind });
        let head_dim = config.hidden / config.heads;
        let strides = Strides { batch: 0, token: 3 * config.hidden, head: head_dim };
        let attention = Attention::varlen(dtype, shape.varlen(), [config.heads; 2], head_dim);
        let begin = Kind::EmbeddingNorm { vocabulary: config.vocabulary, places: config.positions, eps: config.norm_eps.to_bits() };
        let begin = match plan(shape.rows, begin) {
            Ok(plan) => Some(plan),
            Err(Error::Unsupported { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            begin,
            words: plan(shape.rows, Kind::Embedding { vocabulary: config.vocabulary })?,
            positions: plan(shape.rows, Kind::Embedding { vocabulary: config.positions })?,
            norm: plan(shape.rows, Kind::LayerNorm { eps: config.norm_eps.to_bits(), residual: true })?,
            attention: session.plan(Attention { q: strides, k: strides, v: strides, ..attention })?,
            pool: plan(shape.sequences, Kind::MeanPool(shape.varlen()))?,
            unit: plan(shape.sequences, Kind::L2Normalise)?,
            activation: None,
            mlp: None,
            linear: HashMap::new(),
            normed: HashMap::new(),
        })
    }

    /// The plan of a product.
    pub fn linear(&mut self, session: &Session<D>, op: &Linear) -> Result<&Plan<Linear, D>> {
        if !self.linear.contains_key(op) {
            self.linear.insert(op.clone(), session.plan(op.clone())?);
        }
        self.linear.get(op).ok_or_else(|| Error::invalid("linear", "a plan", "none"))
    }

    /// The plan of a product with a norm at the end, if the device takes it.
    pub fn normed(&mut self, session: &Session<D>, op: &Linear) -> Result<Option<&Plan<Linear, D>>> {
        if !self.normed.contains_key(op) {
            let plan = match session.plan(op.clone()) {
                Ok(plan) => Some(plan),
                Err(Error::Unsupported { .. }) => None,
                Err(error) => return Err(error),
            };
            self.normed.insert(op.clone(), plan);
        }
        Ok(self.normed.get(op).and_then(Option::as_ref))
    }
}

/// The plan in `place`, made if there is none.
pub fn kept<'a, O: crate::ops::Op, D: crate::backend::Kernel<O>>(place: &'a mut Option<Plan<O, D>>, session: &Session<D>, op: O) -> Result<&'a Plan<O, D>> {
    match place {
        Some(plan) => Ok(plan),
        None => Ok(place.insert(session.plan(op)?)),
    }
}
