//! One pass over the rows of some sequences: all its launches, in order.

use super::config::Config;
use super::deltas::{Deltas, Projection};
use super::part::part;
use super::placed::{Block, Placed};
use super::plans::{Arena, Mlp, Plans, SplitMlp};
use super::pools::{Pool, Pools};
use crate::backend::Backend;
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{AttentionArgs, FusedMlpArgs, LinearArgs, PointwiseArgs};
use crate::session::Session;

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
        let state = self.rows(&self.arena.state, self.config.hidden)?;
        let args = PointwiseArgs { ids: Some(self.plans.ids.clone()), ..PointwiseArgs::new(weights.table.clone(), state) };
        self.session.run(&self.plans.embedding, &args)?;
        for (layer, (block, pool)) in weights.blocks.iter().zip(&pools.layers).enumerate() {
            self.attend(layer, weights, block, pool)?;
            self.transform(layer, block)?;
        }
        Ok(())
    }

    /// Adds what the adapters of the rows make of `x` to the results of projections, each its rows of y and their stride.
    fn add<const N: usize>(&mut self, layer: usize, x: (&Slice<D>, u64), targets: [(Projection, &Slice<D>, u64); N]) -> Result<()> {
        match &mut self.deltas {
            Some(deltas) => deltas.add(self.session, layer, x, &targets),
            None => Ok(()),
        }
    }

    /// As many bytes of `slice` as rows of `columns` elements take.
    fn rows(&self, slice: &Slice<D>, columns: u64) -> Result<Slice<D>> {
        part(slice, 0, self.plans.shape.rows as u64 * columns * self.dtype.size())
    }

    /// Norm, q, k and v, attention, its output and the residual: from `state` to `middle`.
    fn attend(&mut self, layer: usize, weights: &Placed<D>, block: &Block<D>, pool: &Pool<D>) -> Result<()> {
        let (hidden, query) = (self.config.hidden, self.config.query());
        let [state, normed, middle] = [&self.arena.state, &self.arena.normed, &self.arena.middle].map(|slice| self.rows(slice, hidden));
        let (state, normed, middle) = (state?, normed?, middle?);
        self.session.run(&self.plans.norm, &norm(&state, &block.layer.attention_norm.weight, &normed))?;
        let (q, fresh) = match &block.head_norms {
            Some(norms) => self.apart(layer, weights, (block, norms), &normed)?,
            None => self.together(layer, weights, block, &normed)?,
        };
        let slots = self.words(&self.arena.slots)?;
        for (new, to) in fresh.into_iter().zip(&pool.written) {
            self.session.run(&self.plans.store, &PointwiseArgs { positions: Some(slots.clone()), ..PointwiseArgs::new(new, to.clone()) })?;
        }
        let attended = self.rows(&self.arena.attended, query)?;
        let index = self.plans.tables.clone();
        self.session.run(&self.plans.attention, &AttentionArgs { q, k: pool.k.clone(), v: pool.v.clone(), index, o: attended.clone(), lse: None })?;
        let output = &block.layer.output;
        let args = LinearArgs { bias: output.bias.clone(), residual: Some(state), ..LinearArgs::new(attended.clone(), output.weight.clone(), middle.clone()) };
        self.session.run(&self.plans.output, &args)?;
        self.add(layer, (&attended, query), [(Projection::Output, &middle, hidden)])
    }

    /// Rows `[q | k | v]` of one product, q and k turned in place: q, and rows that begin with k.
    fn together(&mut self, layer: usize, weights: &Placed<D>, block: &Block<D>, x: &Slice<D>) -> Result<(Slice<D>, Vec<Slice<D>>)> {
        let (query, key, size) = (self.config.query(), self.config.key(), self.dtype.size());
        let all = query + 2 * key;
        let rows = self.rows(&self.arena.rows, all)?;
        let qkv = &block.layer.qkv;
        let args = LinearArgs { bias: qkv.bias.clone(), ..LinearArgs::new(x.clone(), qkv.weight.clone(), rows.clone()) };
        for plan in &self.plans.qkv {
            self.session.run(plan, &args)?;
        }
        let from = |column: u64| part(&rows, column * size, rows.len - column * size);
        let (k, v) = (from(query)?, from(query + key)?);
        let targets = [(Projection::Query, &rows, all), (Projection::Key, &k, all), (Projection::Value, &v, all)];
        self.add(layer, (x, self.config.hidden), targets)?;
        let positions = self.words(&self.arena.positions)?;
        for plan in &self.plans.rope {
            let frequencies = weights.frequencies.clone();
            self.session.run(plan, &PointwiseArgs { frequencies, ..PointwiseArgs::rope_in_place(rows.clone(), positions.clone()) })?;
        }
        Ok((rows, vec![k]))
    }

    /// Products of q, k and v, each packed, the heads of q and k normed and turned: q, and then k and v.
    fn apart(&mut self, layer: usize, weights: &Placed<D>, (block, norms): (&Block<D>, &[Slice<D>; 2]), x: &Slice<D>) -> Result<(Slice<D>, Vec<Slice<D>>)> {
        let (query, key, size) = (self.config.query(), self.config.key(), self.dtype.size());
        let count = self.plans.shape.rows as u64;
        let qkv = &block.layer.qkv;
        let stride = size * self.dtype.row_stride(self.config.hidden);
        let mut made = Vec::new();
        let mut first = 0;
        for (plan, columns) in self.plans.qkv.iter().zip([query, key, key]) {
            let w = part(&qkv.weight, first * stride, columns * stride)?;
            let bias = qkv.bias.as_ref().map(|bias| part(bias, first * size, columns * size)).transpose()?;
            let y = part(&self.arena.rows, count * first * size, count * columns * size)?;
            self.session.run(plan, &LinearArgs { bias, ..LinearArgs::new(x.clone(), w, y.clone()) })?;
            made.push(y);
            first += columns;
        }
        if let [q, k, v] = &made[..] {
            let targets = [(Projection::Query, q, query), (Projection::Key, k, key), (Projection::Value, v, key)];
            self.add(layer, (x, self.config.hidden), targets)?;
        }
        let positions = self.words(&self.arena.positions)?;
        if let Some(plans) = &self.plans.head_norms {
            let between = &self.arena.turned;
            for ((rows, plan), (weight, turn)) in made.iter_mut().zip(plans).zip(norms.iter().zip(&self.plans.rope)) {
                let normed = part(between, 0, rows.len)?;
                self.session.run(plan, &norm(rows, weight, &normed))?;
                let (positions, frequencies) = (Some(positions.clone()), weights.frequencies.clone());
                self.session.run(turn, &PointwiseArgs { positions, frequencies, ..PointwiseArgs::new(normed, rows.clone()) })?;
            }
        }
        let fresh = made.split_off(1);
        Ok((made.remove(0), fresh))
    }

    /// As much of `slice` as a word for each row takes.
    fn words(&self, slice: &Slice<D>) -> Result<Slice<D>> {
        part(slice, 0, self.plans.shape.rows as u64 * 4)
    }

    /// Norm, MLP and the residual: from `middle` to `state`.
    fn transform(&mut self, layer: usize, block: &Block<D>) -> Result<()> {
        let (hidden, wide) = (self.config.hidden, self.config.intermediate);
        let [state, normed, middle] = [&self.arena.state, &self.arena.normed, &self.arena.middle].map(|slice| self.rows(slice, hidden));
        let (state, normed, middle) = (state?, normed?, middle?);
        let weights = &block.layer;
        self.session.run(&self.plans.norm, &norm(&middle, &weights.mlp_norm.weight, &normed))?;
        match &self.plans.mlp {
            Mlp::Fused(plan) => {
                let args = FusedMlpArgs {
                    wg: weights.gate.clone(),
                    residual: Some(middle),
                    ..FusedMlpArgs::new(normed, weights.up.weight.clone(), weights.down.weight.clone(), state)
                };
                self.session.run(plan, &args)
            }
            Mlp::Split(split) => {
                let SplitMlp { wide: product, glu, down } = &**split;
                let both = self.rows(&self.arena.wide, 2 * wide)?;
                self.session.run(product, &LinearArgs::new(normed.clone(), block.gate_up.clone(), both.clone()))?;
                let offset = wide * self.dtype.size();
                let up = part(&both, offset, both.len - offset)?;
                self.add(layer, (&normed, hidden), [(Projection::Gate, &both, 2 * wide), (Projection::Up, &up, 2 * wide)])?;
                let inner = self.rows(&self.arena.inner, wide)?;
                self.session.run(glu, &PointwiseArgs::new(both, inner.clone()))?;
                let args = LinearArgs { residual: Some(middle), ..LinearArgs::new(inner.clone(), weights.down.weight.clone(), state.clone()) };
                self.session.run(down, &args)?;
                self.add(layer, (&inner, wide), [(Projection::Down, &state, hidden)])
            }
        }
    }
}

fn norm<D: Backend>(x: &Slice<D>, weight: &Slice<D>, y: &Slice<D>) -> PointwiseArgs<D> {
    PointwiseArgs { weight: Some(weight.clone()), ..PointwiseArgs::new(x.clone(), y.clone()) }
}
