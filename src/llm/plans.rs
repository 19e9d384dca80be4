//! The plans of a pass over the rows of some sequences, and the memory between its launches.

use std::collections::HashMap;

use super::config::Config;
use super::form::{DOWN, Form, GATE_UP, OUTPUT, QKV};
use super::latent::Latent;
use super::layout::{Gathered, Layout};
use super::products::{MOST_NORMED, Products, normed};
use super::shape::{PoolShape, Queries, Shape};
use crate::backend::Backend;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::attention::{AttentionIndex, Scale, Strides};
use crate::ops::index::{Index, PageTable, TokenAdapters};
use crate::ops::pointwise::{Heads, Kind, Places};
use crate::ops::{Activation, Attention, FusedMlp, Linear, Pointwise};
use crate::session::{Plan, Session};

/// Memory that all passes use in turn.
pub struct Arena<D: Device> {
    /// Rows of states, before and after a layer, between its halves, and after a norm: `[rows, hidden]`.
    pub state: Slice<D>,
    pub middle: Slice<D>,
    pub normed: Slice<D>,
    /// Rows `[q | k | v]`; where they lie apart, all q first, then all k, then all v.
    pub rows: Slice<D>,
    /// What the norm of heads makes of q, where pages hold latents.
    pub turned: Slice<D>,
    /// The result of attention, `[rows, heads · head_dim]`.
    pub attended: Slice<D>,
    /// Rows `[gate | up]`, or all gates first where they lie apart, and what their product gives; nothing where every MLP is one operation.
    pub wide: Slice<D>,
    pub inner: Slice<D>,
    /// What lies between two factors.
    pub between: Slice<D>,
    /// Positions of the rows in their sequences, i32.
    pub positions: Slice<D>,
    /// Where keys and values of the rows go, i32: tokens from the start of the pool, −1 for nowhere.
    pub slots: Slice<D>,
    /// Logits of up to `heads` rows, f32.
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
        let forms = |layer: usize| [QKV, OUTPUT, GATE_UP, DOWN].map(|group| Form::of(config, dtype, layer, group).between());
        let split = split || (0..config.layers).any(|layer| forms(layer)[2..].iter().any(|&columns| columns > 0));
        let between = if config.ranks.is_empty() { 0 } else { (0..config.layers).flat_map(forms).max().unwrap_or(0) };
        let wide = if split { config.intermediate } else { 0 };
        Ok(Self {
            state: room(config.hidden)?,
            middle: room(config.hidden)?,
            normed: room(config.hidden)?,
            rows: room(config.query() + 2 * config.key())?,
            turned: room(if config.head_norm && config.latent { config.query() } else { 0 })?,
            attended: room(config.query())?,
            wide: room(2 * wide)?,
            inner: session.alloc(if split { rows } else { rows.min(MOST_NORMED) } as u64 * config.intermediate * dtype.size())?,
            between: room(between)?,
            positions: session.alloc(rows as u64 * 4)?,
            slots: session.alloc(rows as u64 * 4)?,
            logits: session.alloc(heads as u64 * u64::from(config.vocabulary) * DType::F32.size())?,
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
    /// Rotary positions of q and k, and the way of k and v into the pool: to slots of their own, or where each sequence has one row, to its end. Latents
    /// have their own.
    pub heads: Option<Plan<Pointwise, D>>,
    /// How keys and values are made, where the pool holds latents.
    pub latent: Option<Latent<D>>,
    /// The pages at whose end rows are appended. What attention reads before them needs no wait.
    pub appended: Option<Index<PageTable, D>>,
    pub attention: Plan<Attention, D>,
    /// Products, without those that are equal, and those of rows that are normed on the way.
    products: Vec<Products<D>>,
    normed: Vec<Plan<Linear, D>>,
    /// The MLP as one operation, where some layer's is.
    pub fused: Option<Plan<FusedMlp, D>>,
    /// What a gate lets through, of rows `[gate | up]`, and of all gates before all that they let through.
    pub glu: [Option<Plan<Pointwise, D>>; 2],
    /// Whether q, k and v lie apart.
    pub apart: bool,
    /// Where the products of each layer are.
    pub layers: Vec<LayerPlans>,
}

/// The products of one layer, by their numbers in [`Plans::products`], and those of rows that are normed on the way by theirs in [`Plans::normed`]. These
/// stand for the first launch of products in a pass without adapters.
#[derive(Clone, Copy)]
pub struct LayerPlans {
    pub qkv: usize,
    pub normed_qkv: Option<usize>,
    pub output: usize,
    /// The products of an MLP that is more than one operation.
    pub mlp: Option<SplitMlp>,
    /// The products of an MLP without adapters, whose gates are in the first of them.
    pub gated: Option<GatedMlp>,
}

/// An MLP in two products: that of the gates and what they let through, by its number in [`Plans::normed`], and the last one, by that in
/// [`Plans::products`].
#[derive(Clone, Copy)]
pub struct GatedMlp {
    pub gate_up: usize,
    pub down: usize,
}

/// An MLP in three operations, between which adapters may add their part.
#[derive(Clone, Copy)]
pub struct SplitMlp {
    pub gate_up: usize,
    pub normed: Option<usize>,
    /// Whether gates and what they let through lie apart.
    pub apart: bool,
    pub down: usize,
}

/// The products of a pass, each planned once.
struct Planned<'a, D: Backend> {
    session: &'a Session<D>,
    dtype: DType,
    rows: u64,
    batch_invariant: bool,
    numbers: HashMap<Form, usize>,
    all: Vec<Products<D>>,
    /// The numbers of products of rows that are normed on the way, where the backend has them.
    norming: HashMap<Form, Option<usize>>,
    normed: Vec<Plan<Linear, D>>,
}

impl<D: Backend> Planned<'_, D> {
    fn number(&mut self, form: Form) -> Result<usize> {
        if let Some(&number) = self.numbers.get(&form) {
            return Ok(number);
        }
        self.all.push(Products::new(self.session, &form, self.dtype, (self.rows, self.batch_invariant))?);
        self.numbers.insert(form, self.all.len() - 1);
        Ok(self.all.len() - 1)
    }

    /// The number of a product of rows that are normed on the way, where there is one.
    fn normed(&mut self, form: &Form) -> Result<Option<usize>> {
        if let Some(&number) = self.norming.get(form) {
            return Ok(number);
        }
        let few = self.rows <= MOST_NORMED as u64 && !self.batch_invariant;
        let plan = if few { normed(self.session, form, self.dtype, self.rows)? } else { None };
        let number = plan.map(|plan| {
            self.normed.push(plan);
            self.normed.len() - 1
        });
        self.norming.insert(form.clone(), number);
        Ok(number)
    }

    /// Plans the products of a layer. `split` says that adapters may come between the products of its MLP.
    fn layer(&mut self, config: &Config, layer: usize, split: bool) -> Result<LayerPlans> {
        let [qkv, output, gate_up, down] = [QKV, OUTPUT, GATE_UP, DOWN].map(|group| Form::of(config, self.dtype, layer, group));
        let (normed_qkv, normed) = (self.normed(&qkv)?, self.normed(&gate_up)?);
        let apart = gate_up.between() > 0;
        let gated = match normed.filter(|_| !apart) {
            Some(gate_up) => Some(GatedMlp { gate_up, down: self.number(down.clone())? }),
            None => None,
        };
        let (qkv, output) = (self.number(qkv)?, self.number(output)?);
        let split = split || apart || down.between() > 0;
        let mlp =
            if split { Some(SplitMlp { gate_up: self.number(gate_up)?, normed: normed.filter(|_| apart), apart, down: self.number(down)? }) } else { None };
        Ok(LayerPlans { qkv, normed_qkv, output, mlp, gated })
    }
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
        let norm = Pointwise::new(dtype, n, hidden, Kind::RmsNorm { eps: config.norm_eps.to_bits(), residual: false });
        let apart = config.apart();
        let layout = Layout::spare(&shape);
        let wide = config.intermediate;
        let batch_invariant = shape.batch_invariant;
        // An MLP in one operation has no such promise.
        let split = split || batch_invariant;
        let mut planned =
            Planned { session, dtype, rows: n, batch_invariant, numbers: HashMap::new(), all: Vec::new(), norming: HashMap::new(), normed: Vec::new() };
        let layers = (0..config.layers).map(|layer| planned.layer(config, layer, split)).collect::<Result<Vec<_>>>()?;
        let (products, normed) = (planned.all, planned.normed);
        let fused = if layers.iter().any(|layer| layer.mlp.is_none()) {
            let mlp = FusedMlp::new(dtype, [n, hidden, wide, hidden], Activation::Silu).with_padded_weights();
            Some(session.plan(FusedMlp { gated: true, residual: true, ..mlp })?)
        } else {
            None
        };
        // Gates that lie apart are as one long row.
        let glu = |apart: bool, [rows, columns]: [u64; 2]| {
            let some = layers.iter().filter_map(|layer| layer.mlp).any(|mlp| mlp.apart == apart);
            if some { session.plan(Pointwise::new(dtype, rows, columns, Kind::Glu(Activation::Silu))).map(Some) } else { Ok(None) }
        };
        let glu = [glu(false, [n, wide])?, glu(true, [1, n * wide])?];
        let latent = if config.latent { Some(Latent::new(session, config, dtype, &shape, pools)?) } else { None };
        let read = read(&shape, pools, latent.is_some());
        let tables = layout.place(session, &shape, read)?;
        let appended = match &tables {
            AttentionIndex::Paged(pages) if shape.rows == shape.sequences && latent.is_none() => Some(pages.clone()),
            _ => None,
        };
        let to = if appended.is_some() { Places::Pages(pools.even(&shape)) } else { Places::Slots(pools.tokens()?) };
        let head_norm = config.head_norm.then(|| config.norm_eps.to_bits());
        let heads = Heads::new(d, config.turn(), all, to).with_first(query).with_kept(2 * key).with_norm(head_norm).with_apart(apart);
        let heads = Pointwise::new(dtype, n, query + key, Kind::Heads(heads));
        Ok(Self {
            shape,
            ids: session.index(&layout.ids(config.vocabulary)?)?,
            tables,
            appended,
            embedding: session.plan(Pointwise::new(dtype, n, hidden, Kind::Embedding { vocabulary: config.vocabulary }))?,
            norm: session.plan(norm)?,
            heads: if latent.is_none() { Some(session.plan(heads)?) } else { None },
            latent,
            attention: session.plan(attention(config, dtype, shape, read))?,
            products,
            normed,
            fused,
            glu,
            apart,
            layers,
        })
    }

    /// The products of that number.
    ///
    /// # Errors
    /// A number that a pass of another model has.
    pub fn products(&self, number: usize) -> Result<&Products<D>> {
        self.products.get(number).ok_or_else(|| Error::invalid("pass", "products of the model", number))
    }

    /// The product of that number of rows that are normed on the way.
    ///
    /// # Errors
    /// A number that a pass of another model has.
    pub fn normed(&self, number: usize) -> Result<&Plan<Linear, D>> {
        self.normed.get(number).ok_or_else(|| Error::invalid("pass", "products of the model", number))
    }

    /// Replaces what the last pass of these plans left on the device, and tells which pages are gathered, where they are. Nothing is written where an
    /// error is found here.
    ///
    /// # Errors
    /// An id that is not in the vocabulary; pages that the pool does not have; a device that fails.
    pub fn write(&self, session: &mut Session<D>, layout: &Layout, arena: &Arena<D>, vocabulary: u32, pools: PoolShape) -> Result<Option<Gathered>> {
        let ids = layout.ids(vocabulary)?;
        let read = read(&self.shape, pools, self.latent.is_some());
        let gathered = if self.latent.is_some() { Some(layout.gathered(&self.shape, pools)?) } else { None };
        let layout = gathered.as_ref().map_or(layout, |(_, own)| own);
        match (&self.tables, self.shape.queries) {
            (AttentionIndex::Paged(index), Queries::Even) => session.update_index(index, &layout.even(&self.shape, read)?)?,
            (AttentionIndex::RaggedPaged(index), Queries::Ragged { most }) => session.update_index(index, &layout.ragged(&self.shape, most, read)?)?,
            (other, _) => return Err(Error::invalid("pass", "a page table", format!("{other:?}"))),
        }
        if let (Some(latent), Some((gathered, _))) = (&self.latent, &gathered) {
            latent.write(session, gathered, pools)?;
        }
        session.update_index(&self.ids, &ids)?;
        session.write(&arena.positions, bytemuck::cast_slice(&layout.positions))?;
        session.write(&arena.slots, bytemuck::cast_slice(&layout.slots))?;
        Ok(gathered.map(|(gathered, _)| gathered))
    }
}

/// The pages that attention reads: those of the pool, or those that were gathered of it.
fn read(shape: &Shape, pools: PoolShape, latent: bool) -> PoolShape {
    if latent { PoolShape { pages: shape.gathered as u32, ..pools } } else { pools }
}

/// Attention of the rows over the pages of their sequences.
fn attention(config: &Config, dtype: DType, shape: Shape, pools: PoolShape) -> Attention {
    let (n, d, heads) = (shape.rows as u64, config.head_dim, [config.heads, config.kv_heads]);
    let (attention, longest) = match shape.queries {
        Queries::Even => (Attention::paged(dtype, pools.even(&shape), heads, n / shape.sequences as u64, d), shape.rows / shape.sequences),
        Queries::Ragged { most } => (Attention::ragged_paged(dtype, pools.ragged(&shape, most), heads, d), most),
    };
    let k = if config.latent { config.key() } else { 2 * config.key() };
    let q = if config.apart() { config.query() } else { config.query() + k };
    let q = Strides { batch: attention.q_len * q, token: q, head: d };
    let k = Strides { batch: pools.page as u64 * k, token: k, head: d };
    let scale = (f64::from(attention.scale_value()) * config.scaling.sharpness()) as f32;
    // One query stands behind all keys: nothing is hidden from it.
    let causal = longest > 1;
    Attention { q, k, v: k, causal, window: config.window.map(|window| window - 1), scale: Scale::from(scale), ..attention }
}
