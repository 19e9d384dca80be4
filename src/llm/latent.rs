//! Keys and values in low rank (PaLU, arXiv:2407.21118): pages hold what lies between the factors of k and v, and a pass makes keys and values of it.
//!
//! A pass stores the latents of its rows, gathers those of every page that its sequences have, each page once, and multiplies them by the second factors.
//! Keys are turned afterwards, as positions do not commute with the product. Keys and values of one layer at a time are in memory, those of all layers are
//! not.
//!
//! What an adapter adds to k and v is not in the latents. Where the padding of the first factors carries the adapters' bases, pages hold what these give
//! as well, and adapters add their part to the keys and values that are made.

use super::config::Config;
use super::form::{Form, Part, QKV};
use super::layout::{Gathered, Layout};
use super::part::part;
use super::placed::Block;
use super::pools::Pool;
use super::shape::{PoolShape, Shape};
use crate::backend::Backend;
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::index::{Index, TokenAdapters};
use crate::ops::pointwise::Kind;
use crate::ops::{Linear, LinearArgs, Pointwise, PointwiseArgs};
use crate::session::{Plan, Session};

/// What layers with the same latents have in common.
struct Way<D: Backend> {
    /// Columns of the latents of k and of v, all columns between the factors, and those of q's latent, which is in front.
    columns: [u64; 2],
    between: u64,
    query: u64,
    store: Plan<Pointwise, D>,
    gather: Plan<Pointwise, D>,
    /// The second factors of k and of v.
    products: [Plan<Linear, D>; 2],
}

/// The plans of heads in rows of their own: their norm, where they have one, and their rotary positions.
struct Turned<D: Backend> {
    norm: Option<Plan<Pointwise, D>>,
    turn: Plan<Pointwise, D>,
}

impl<D: Backend> Turned<D> {
    /// Plans `rows` rows of so many heads.
    fn new(session: &Session<D>, config: &Config, dtype: DType, [rows, heads]: [u64; 2]) -> Result<Self> {
        let (d, way, stride) = (config.head_dim, config.turn(), heads * config.head_dim);
        let norm = Pointwise::new(dtype, rows * heads, d, Kind::RmsNorm { eps: config.norm_eps.to_bits(), residual: false });
        let turn = if config.head_norm { Kind::Rope { head_dim: d, turn: way } } else { Kind::RopeInPlace { head_dim: d, turn: way, stride } };
        let norm = if config.head_norm { Some(session.plan(norm)?) } else { None };
        Ok(Self { norm, turn: session.plan(Pointwise::new(dtype, rows, stride, turn))? })
    }

    /// Norms the heads of `x` into `spare`, where they have a norm of that weight, and turns them back into `x`.
    fn run(
        &self,
        session: &mut Session<D>,
        (x, spare): (&Slice<D>, Option<&Slice<D>>),
        weight: Option<Slice<D>>,
        (positions, frequencies): (Slice<D>, &Option<Slice<D>>),
    ) -> Result<()> {
        let mut from = x.clone();
        if let (Some(plan), Some(weight), Some(spare)) = (&self.norm, weight, spare) {
            from = part(spare, 0, x.len)?;
            session.run(plan, &PointwiseArgs { weight: Some(weight), ..PointwiseArgs::new(x.clone(), from.clone()) })?;
        }
        session.run(&self.turn, &PointwiseArgs { positions: Some(positions), frequencies: frequencies.clone(), ..PointwiseArgs::new(from, x.clone()) })
    }
}

/// The plans that make keys and values of latents, for passes of one shape.
pub struct Latent<D: Backend> {
    ways: Vec<Way<D>>,
    /// The way of each layer.
    layers: Vec<usize>,
    /// Pages that are gathered.
    pages: Index<TokenAdapters, D>,
    /// Positions of the keys of those pages, i32.
    positions: Slice<D>,
    /// The heads of q, and of those keys.
    query: Turned<D>,
    key: Turned<D>,
    /// Keys that are made, and elements of a head.
    keys: u64,
    head: u64,
    dtype: DType,
}

impl<D: Backend> Latent<D> {
    /// Plans passes of a shape over latents that lie in `pools`.
    ///
    /// # Errors
    /// An operation that the backend does not do; no device memory.
    pub fn new(session: &mut Session<D>, config: &Config, dtype: DType, shape: &Shape, pools: PoolShape) -> Result<Self> {
        let (rows, page, key) = (shape.rows as u64, u64::from(pools.page), config.key());
        let keys = shape.gathered as u64 * page;
        let (mut ways, mut layers): (Vec<(Form, Way<D>)>, Vec<usize>) = (Vec::new(), Vec::new());
        for layer in 0..config.layers {
            let form = Form::of(config, dtype, layer, QKV);
            let known = ways.iter().position(|(own, _)| *own == form);
            if known.is_none() {
                let columns = form.latents();
                let all = form.kept(pools.filled);
                let second = |rank: u64| {
                    Linear::new(dtype, [keys, rank, key])
                        .with_padded_weights()
                        .with_x_stride(all)
                        .with_bias(form.bias)
                        .with_batch_invariant(shape.batch_invariant)
                };
                let store = Kind::Store { slots: pools.tokens()?, stride: form.between() };
                let way = Way {
                    columns,
                    between: form.between(),
                    query: form.parts.first().and_then(|part: &Part| part.rank).unwrap_or(0),
                    store: session.plan(Pointwise::new(dtype, rows, all, store))?,
                    gather: session.plan(Pointwise::new(dtype, shape.gathered as u64, page * all, Kind::Embedding { vocabulary: pools.pages }))?,
                    products: [session.plan(second(columns[0]))?, session.plan(second(columns[1]))?],
                };
                ways.push((form, way));
            }
            layers.push(known.unwrap_or(ways.len() - 1));
        }
        let (gathered, _) = Layout::spare(shape).gathered(shape, pools)?;
        Ok(Self {
            ways: ways.into_iter().map(|(_, way)| way).collect(),
            layers,
            pages: session.index(&gathered.pages(pools)?)?,
            positions: session.upload(&gathered.positions)?,
            query: Turned::new(session, config, dtype, [rows, config.heads])?,
            key: Turned::new(session, config, dtype, [keys, config.kv_heads])?,
            keys,
            head: config.head_dim,
            dtype,
        })
    }

    /// Replaces the pages that the next pass gathers.
    ///
    /// # Errors
    /// Pages that the pool does not have; a device that fails.
    pub fn write(&self, session: &mut Session<D>, gathered: &Gathered, pools: PoolShape) -> Result<()> {
        session.update_index(&self.pages, &gathered.pages(pools)?)?;
        session.write(&self.positions, bytemuck::cast_slice(&gathered.positions))
    }

    /// The way of a layer.
    fn way(&self, layer: usize) -> Result<&Way<D>> {
        self.layers.get(layer).and_then(|&way| self.ways.get(way)).ok_or_else(|| other(layer))
    }

    /// What adapters' bases gave for the tokens of all pages of the pass, with its stride, where pages hold it.
    ///
    /// # Errors
    /// A pool of another model.
    pub fn filled(&self, layer: usize, pool: &Pool<D>) -> Result<Option<(Slice<D>, u64)>> {
        let way = self.way(layer)?;
        let (latents, all) = (way.columns[0] + way.columns[1], way.store.op().columns);
        let Some(gathered) = pool.gathered.as_ref().filter(|_| all > latents) else { return Ok(None) };
        let size = self.dtype.size();
        Ok(Some((part(gathered, latents * size, (self.keys * all - latents) * size)?, all)))
    }

    /// Stores the latents of the rows, which lie `between` the factors, in the slots, and makes the values and the unturned keys of all pages of the pass.
    ///
    /// # Errors
    /// Weights of another model; a device that fails.
    pub fn make(&self, session: &mut Session<D>, layer: usize, block: &Block<D>, (between, slots): (&Slice<D>, Slice<D>), pool: &Pool<D>) -> Result<()> {
        let way = self.way(layer)?;
        let (latents, Some(gathered), [_, k, v]) = (&pool.written, &pool.gathered, &block.qkv.parts[..]) else { return Err(other(layer)) };
        let (size, op) = (self.dtype.size(), way.store.op());
        let fresh = part(between, way.query * size, (op.rows * way.between - way.query) * size)?;
        session.run(&way.store, &PointwiseArgs { positions: Some(slots), ..PointwiseArgs::new(fresh, latents.clone()) })?;
        let all = part(gathered, 0, self.keys * op.columns * size)?;
        session.run(&way.gather, &PointwiseArgs { ids: Some(self.pages.clone()), ..PointwiseArgs::new(latents.clone(), all.clone()) })?;
        let offset = way.columns[0] * size;
        let lists = [(&way.products[0], k, all.clone(), &pool.k), (&way.products[1], v, part(&all, offset, all.len - offset)?, &pool.v)];
        for (plan, weight, x, to) in lists {
            let y = part(to, 0, self.keys * plan.op().d_out * size)?;
            session.run(plan, &LinearArgs { bias: weight.bias.clone(), ..LinearArgs::new(x, weight.weight.clone(), y) })?;
        }
        Ok(())
    }

    /// Norms keys where they are, and turns them by their positions.
    ///
    /// # Errors
    /// Weights of another model; a device that fails.
    pub fn turn(&self, session: &mut Session<D>, layer: usize, (block, frequencies): (&Block<D>, &Option<Slice<D>>), pool: &Pool<D>) -> Result<()> {
        let (way, size) = (self.way(layer)?, self.dtype.size());
        let keys = part(&pool.k, 0, self.keys * way.products[0].op().d_out * size)?;
        // The heads of k are the last.
        let head = self.head * size;
        let weight = block.head_norms.as_ref().map(|weights| part(weights, weights.len - head, head)).transpose()?;
        self.key.run(session, (&keys, pool.gathered.as_ref()), weight, (self.positions.clone(), frequencies))
    }

    /// Norms the heads of the pass's q where they are, by way of `spare`, and turns them by their positions.
    ///
    /// # Errors
    /// Weights of another model; a device that fails.
    pub fn turn_query(
        &self,
        session: &mut Session<D>,
        (q, spare): (&Slice<D>, &Slice<D>),
        (block, frequencies): (&Block<D>, &Option<Slice<D>>),
        positions: Slice<D>,
    ) -> Result<()> {
        let weight = block.head_norms.as_ref().map(|weights| part(weights, 0, self.head * self.dtype.size())).transpose()?;
        self.query.run(session, (q, Some(spare)), weight, (positions, frequencies))
    }
}

/// The error for a layer or weights that are not the model's.
fn other(layer: usize) -> Error {
    Error::invalid("pass", "the latents of the model's own layers", layer)
}
