//! One pass over the rows of some sequences: all its launches, in order.

use super::config::Config;
use super::deltas::{Deltas, Projection};
use super::form::{DOWN, GATE_UP, OUTPUT, QKV};
use super::part::{part, read};
use super::placed::{Block, Placed};
use super::plans::{Arena, LayerPlans, Plans};
use super::pools::{Pool, Pools};
use super::products::{Group, Input};
use crate::backend::Backend;
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::{AttentionArgs, FusedMlpArgs, LinearArgs, PointwiseArgs};
use crate::session::Session;

/// A callback that sees what some projections of a layer read: the layer, the first of the projections by its number in
/// [`Config::projections`], and the rows.
pub type Watch<'a> = dyn FnMut(usize, usize, &[f32]) -> Result<()> + 'a;

/// What a pass needs.
pub struct Pass<'a, D: Backend> {
    pub session: &'a mut Session<D>,
    pub config: &'a Config,
    pub dtype: DType,
    pub arena: &'a Arena<D>,
    pub plans: &'a Plans<D>,
    /// The adapters of the rows, where any has one.
    pub deltas: Option<Deltas<'a, D>>,
}

impl<D: Backend> Pass<'_, D> {
    /// The pass from tokens to states after the last layer, in the arena's `state`.
    pub fn run(&mut self, weights: &Placed<D>, pools: &Pools<D>) -> Result<()> {
        self.run_watched(weights, pools, None)
    }

    /// A pass in which `watch` sees what each projection reads. MLPs that are one operation show nothing in between.
    pub fn run_watched(&mut self, weights: &Placed<D>, pools: &Pools<D>, mut watch: Option<&mut Watch<'_>>) -> Result<()> {
        let state = self.rows(&self.arena.state, self.config.hidden)?;
        let args = PointwiseArgs { ids: Some(self.plans.ids.clone()), ..PointwiseArgs::new(weights.table.clone(), state) };
        self.session.role("embedding");
        self.session.run(&self.plans.embedding, &args)?;
        let plans = self.plans;
        for (layer, ((block, pool), plans)) in weights.blocks.iter().zip(&pools.layers).zip(&plans.layers).enumerate() {
            self.attend((layer, plans), weights, block, pool, &mut watch)?;
            self.transform((layer, plans), block, &mut watch)?;
        }
        Ok(())
    }

    /// Shows what the projections from number `first` on read.
    fn show(&mut self, watch: &mut Option<&mut Watch<'_>>, layer: usize, first: usize, x: &Slice<D>) -> Result<()> {
        match watch {
            Some(watch) => watch(layer, first, &read(self.session, self.dtype, x)?),
            None => Ok(()),
        }
    }

    /// Runs the products of that number, from `x` to each of `results`.
    fn products(&mut self, number: usize, weights: &Group<D>, x: &Slice<D>, residual: Option<&Slice<D>>, results: &[Slice<D>]) -> Result<()> {
        self.plans.products(number)?.run(self.session, (weights, &self.arena.between), Input { x, norm: None }, residual, results)
    }

    /// Runs the products of that number, whose first launch norms `x` by `weight` where it has a number of its own.
    fn norm_products(
        &mut self,
        (number, own): (usize, Option<usize>),
        weights: &Group<D>,
        (x, weight): (&Slice<D>, &Slice<D>),
        results: &[Slice<D>],
    ) -> Result<()> {
        let norm = own.map(|own| self.plans.normed(own)).transpose()?.map(|plan| (plan, weight));
        self.plans.products(number)?.run(self.session, (weights, &self.arena.between), Input { x, norm }, None, results)
    }

    /// Whether rows may be normed on their way into a product: nothing else reads what is normed.
    fn norms_on_the_way(&self, watch: &Option<&mut Watch<'_>>) -> bool {
        self.deltas.is_none() && watch.is_none()
    }

    /// Adds what the adapters of the rows make of `x` to the results of the products of that number, each its rows of y and their stride.
    fn add(&mut self, (layer, number): (usize, usize), x: (&Slice<D>, u64), targets: &[(Projection, &Slice<D>, u64)]) -> Result<()> {
        match &mut self.deltas {
            Some(deltas) => {
                let filled = self.plans.products(number)?.filled(&self.arena.between)?;
                deltas.add(self.session, layer, x, filled.as_ref().map(|(rows, stride)| (rows, *stride)), targets)
            }
            None => Ok(()),
        }
    }

    /// As many bytes of `slice` as rows of `columns` elements take.
    fn rows(&self, slice: &Slice<D>, columns: u64) -> Result<Slice<D>> {
        part(slice, 0, self.plans.shape.rows as u64 * columns * self.dtype.size())
    }

    /// Norm, q, k and v, attention, its output and the residual: from `state` to `middle`.
    fn attend(
        &mut self,
        (layer, plans): (usize, &LayerPlans),
        weights: &Placed<D>,
        block: &Block<D>,
        pool: &Pool<D>,
        watch: &mut Option<&mut Watch<'_>>,
    ) -> Result<()> {
        let (hidden, query) = (self.config.hidden, self.config.query());
        let [state, normed, middle] = [&self.arena.state, &self.arena.normed, &self.arena.middle].map(|slice| self.rows(slice, hidden));
        let (state, normed, middle) = (state?, normed?, middle?);
        let own = plans.normed_qkv.filter(|_| self.norms_on_the_way(watch));
        if own.is_none() {
            self.session.role("norm");
            self.session.run(&self.plans.norm, &norm(&state, &block.norms[0], &normed))?;
            self.show(watch, layer, QKV.start, &normed)?;
        }
        self.session.role("qkv");
        let q = self.qkv(((layer, plans.qkv), own), block, [&state, &normed])?;
        if self.plans.latent.is_none() {
            self.keep((q.clone(), block.head_norms.clone()), weights, pool)?;
        }
        if let Some(latent) = &self.plans.latent {
            self.session.role("latents");
            latent.make(self.session, layer, block, (&self.arena.between, self.words(&self.arena.slots)?), pool)?;
            if let (Some(deltas), Some((filled, stride))) = (&mut self.deltas, latent.filled(layer, pool)?) {
                let key = self.config.key();
                deltas.add_gathered(self.session, layer, (&filled, stride), &[(Projection::Key, &pool.k, key), (Projection::Value, &pool.v, key)])?;
            }
            self.session.role("heads");
            latent.turn(self.session, layer, (block, &weights.frequencies), pool)?;
            latent.turn_query(self.session, (&q, &self.arena.turned), (block, &weights.frequencies), self.words(&self.arena.positions)?)?;
        }
        let attended = self.rows(&self.arena.attended, query)?;
        let index = self.plans.tables.clone();
        self.session.role("attention");
        self.session.run(&self.plans.attention, &AttentionArgs::new(q, pool.k.clone(), pool.v.clone(), attended.clone()).with_index(index))?;
        self.show(watch, layer, OUTPUT.start, &attended)?;
        self.session.role("output");
        self.products(plans.output, &block.output, &attended, Some(&state), std::slice::from_ref(&middle))?;
        self.add((layer, plans.output), (&attended, query), &[(Projection::Output, &middle, hidden)])
    }

    /// Products of q, k and v, side by side in one row or each in rows of its own, and what adapters add: rows that begin with q. They are of the state itself
    /// where it is normed on the way, else of what is normed. Where pages hold latents, those of k and v are between the factors, and q alone is made.
    fn qkv(&mut self, ((layer, qkv), own): ((usize, usize), Option<usize>), block: &Block<D>, [state, x]: [&Slice<D>; 2]) -> Result<Slice<D>> {
        let (query, key, size) = (self.config.query(), self.config.key(), self.dtype.size());
        let (count, all, apart) = (self.plans.shape.rows as u64, query + 2 * key, self.plans.apart);
        let rows = self.rows(&self.arena.rows, all)?;
        let of = |first: u64, columns: u64| {
            let (start, elements) = if apart { (count * first, count * columns) } else { (first, count * all - first) };
            part(&rows, start * size, elements * size)
        };
        let (q, k, v) = (of(0, query)?, of(query, key)?, of(query + key, key)?);
        let results = match (apart, self.plans.latent.is_some()) {
            (false, _) => vec![rows.clone()],
            (true, true) => vec![q.clone()],
            (true, false) => vec![q.clone(), k.clone(), v.clone()],
        };
        self.norm_products((qkv, own), &block.qkv, (if own.is_some() { state } else { x }, &block.norms[0]), &results)?;
        let [wide, narrow] = if apart { [query, key] } else { [all; 2] };
        let targets = [(Projection::Query, &q, wide), (Projection::Key, &k, narrow), (Projection::Value, &v, narrow)];
        self.add((layer, qkv), (x, self.config.hidden), if self.plans.latent.is_some() { &targets[..1] } else { &targets })?;
        Ok(if self.plans.latent.is_some() { q } else { rows })
    }

    /// Turns the heads of rows `[q | k | v]`, side by side or apart, normed where they have a norm, and keeps k and v in `pool`.
    fn keep(&mut self, (rows, weight): (Slice<D>, Option<Slice<D>>), weights: &Placed<D>, pool: &Pool<D>) -> Result<()> {
        let slots = if self.plans.appended.is_none() { Some(self.words(&self.arena.slots)?) } else { None };
        let (pages, pool, frequencies) = (self.plans.appended.clone(), Some(pool.written.clone()), weights.frequencies.clone());
        let turned = PointwiseArgs::rope_in_place(rows, self.words(&self.arena.positions)?);
        let plan = self.plans.heads.as_ref().ok_or_else(unplanned)?;
        self.session.role("heads");
        self.session.run(plan, &PointwiseArgs { weight, frequencies, pages, slots, pool, ..turned })
    }

    /// As much of `slice` as a word for each row takes.
    fn words(&self, slice: &Slice<D>) -> Result<Slice<D>> {
        part(slice, 0, self.plans.shape.rows as u64 * 4)
    }

    /// Norm, MLP and the residual: from `middle` to `state`.
    fn transform(&mut self, (layer, plans): (usize, &LayerPlans), block: &Block<D>, watch: &mut Option<&mut Watch<'_>>) -> Result<()> {
        let (hidden, wide, size) = (self.config.hidden, self.config.intermediate, self.dtype.size());
        let [state, normed, middle] = [&self.arena.state, &self.arena.normed, &self.arena.middle].map(|slice| self.rows(slice, hidden));
        let (state, normed, middle) = (state?, normed?, middle?);
        let (gate_up, on_the_way) = (&block.gate_up, self.norms_on_the_way(watch));
        if let (Some(own), [by]) = (plans.gated.filter(|_| on_the_way), &gate_up.parts[..]) {
            let inner = self.rows(&self.arena.inner, wide)?;
            self.session.role("gate_up");
            let args = LinearArgs::new(middle.clone(), by.weight.clone(), inner.clone()).with_input_norm(block.norms[1].clone());
            self.session.run(self.plans.normed(own.gate_up)?, &args)?;
            self.session.role("down");
            return self.products(own.down, &block.down, &inner, Some(&middle), std::slice::from_ref(&state));
        }
        let own = plans.mlp.and_then(|split| split.normed).filter(|_| on_the_way);
        if own.is_none() {
            self.session.role("norm");
            self.session.run(&self.plans.norm, &norm(&middle, &block.norms[1], &normed))?;
            self.show(watch, layer, GATE_UP.start, &normed)?;
        }
        let Some(split) = plans.mlp else {
            let (Some(plan), [weight], [down]) = (&self.plans.fused, &gate_up.parts[..], &block.down.parts[..]) else { return Err(unplanned()) };
            let half = weight.weight.len / 2;
            let (gate, up) = (part(&weight.weight, 0, half)?, part(&weight.weight, half, half)?);
            let args = FusedMlpArgs { wg: Some(gate), residual: Some(middle), ..FusedMlpArgs::new(normed, up, down.weight.clone(), state) };
            self.session.role("mlp");
            return self.session.run(plan, &args);
        };
        let x = if own.is_some() { &middle } else { &normed };
        let inner = self.rows(&self.arena.inner, wide)?;
        self.session.role("gate_up");
        if self.deltas.is_none() && self.plans.products(split.gate_up)?.gates() {
            self.norm_products((split.gate_up, own), gate_up, (x, &block.norms[1]), std::slice::from_ref(&inner))?;
        } else {
            let both = self.rows(&self.arena.wide, 2 * wide)?;
            let (columns, stride) = if split.apart { (both.len / 2, wide) } else { (wide * size, 2 * wide) };
            let up = part(&both, columns, both.len - columns)?;
            let results = if split.apart { vec![part(&both, 0, columns)?, up.clone()] } else { vec![both.clone()] };
            self.norm_products((split.gate_up, own), gate_up, (x, &block.norms[1]), &results)?;
            self.add((layer, split.gate_up), (&normed, hidden), &[(Projection::Gate, &both, stride), (Projection::Up, &up, stride)])?;
            let glu = self.plans.glu[usize::from(split.apart)].as_ref().ok_or_else(unplanned)?;
            self.session.role("glu");
            self.session.run(glu, &PointwiseArgs::new(both, inner.clone()))?;
        }
        self.show(watch, layer, DOWN.start, &inner)?;
        self.session.role("down");
        self.products(split.down, &block.down, &inner, Some(&middle), std::slice::from_ref(&state))?;
        self.add((layer, split.down), (&inner, wide), &[(Projection::Down, &state, hidden)])
    }
}

/// The error for plans that do not fit the weights.
fn unplanned() -> Error {
    Error::invalid("pass", "plans of the model's own weights", "others")
}

fn norm<D: Backend>(x: &Slice<D>, weight: &Slice<D>, y: &Slice<D>) -> PointwiseArgs<D> {
    PointwiseArgs { weight: Some(weight.clone()), ..PointwiseArgs::new(x.clone(), y.clone()) }
}
