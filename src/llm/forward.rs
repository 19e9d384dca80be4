//! One pass over some tokens of a text: all its launches, in order.

use super::config::Config;
use super::context::Pool;
use super::placed::{Block, Placed};
use super::plans::{Arena, HeadPlans, Plans, part};
use crate::backend::Backend;
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::AttentionIndex;
use crate::ops::index::{Index, PageTable};
use crate::ops::{AttentionArgs, FusedMlpArgs, LinearArgs, PointwiseArgs};
use crate::session::Session;

/// What a pass needs.
pub struct Pass<'a, D: Backend> {
    pub session: &'a mut Session<D>,
    pub config: &'a Config,
    pub dtype: DType,
    pub arena: &'a Arena<D>,
    pub plans: &'a Plans<D>,
    pub table: &'a Index<PageTable, D>,
}

impl<D: Backend> Pass<'_, D> {
    /// The pass from tokens to states after the last layer, in the arena's `state`.
    pub fn run(&mut self, weights: &Placed<D>, pools: &[Pool<D>]) -> Result<()> {
        let state = self.rows(&self.arena.state, self.config.hidden)?;
        let args = PointwiseArgs { ids: Some(self.plans.ids.clone()), ..PointwiseArgs::new(weights.table.clone(), state) };
        self.session.run(&self.plans.embedding, &args)?;
        for (block, pool) in weights.blocks.iter().zip(pools) {
            self.attend(block, pool)?;
            self.transform(block)?;
        }
        Ok(())
    }

    /// As many bytes of `slice` as rows of `columns` elements take.
    fn rows(&self, slice: &Slice<D>, columns: u64) -> Result<Slice<D>> {
        part(slice, 0, self.plans.rows as u64 * columns * self.dtype.size())
    }

    /// Norm, q, k and v, attention, its output and the residual: from `state` to `middle`.
    fn attend(&mut self, block: &Block<D>, pool: &Pool<D>) -> Result<()> {
        let (hidden, query) = (self.config.hidden, self.config.query());
        let [state, normed, middle] = [&self.arena.state, &self.arena.normed, &self.arena.middle].map(|slice| self.rows(slice, hidden));
        let (state, normed, middle) = (state?, normed?, middle?);
        self.session.run(&self.plans.norm, &norm(&state, &block.layer.attention_norm.weight, &normed))?;
        let (q, fresh) = match &block.head_norms {
            Some(norms) => self.apart(block, norms, &normed)?,
            None => self.together(block, &normed)?,
        };
        for (new, to) in fresh.into_iter().zip(&pool.written) {
            self.session.run(&self.plans.append, &PointwiseArgs { pages: Some(self.table.clone()), ..PointwiseArgs::new(new, to.clone()) })?;
        }
        let attended = self.rows(&self.arena.attended, query)?;
        let index = AttentionIndex::Paged(self.table.clone());
        self.session.run(&self.plans.attention, &AttentionArgs { q, k: pool.k.clone(), v: pool.v.clone(), index, o: attended.clone(), lse: None })?;
        let output = &block.layer.output;
        let args = LinearArgs { bias: output.bias.clone(), residual: Some(state), ..LinearArgs::new(attended, output.weight.clone(), middle) };
        self.session.run(&self.plans.output, &args)
    }

    /// Rows `[q | k | v]` of one product, q and k turned in place: q, and rows that begin with k.
    fn together(&mut self, block: &Block<D>, x: &Slice<D>) -> Result<(Slice<D>, Vec<Slice<D>>)> {
        let (query, all) = (self.config.query(), self.config.query() + 2 * self.config.key());
        let rows = self.rows(&self.arena.rows, all)?;
        let qkv = &block.layer.qkv;
        let args = LinearArgs { bias: qkv.bias.clone(), ..LinearArgs::new(x.clone(), qkv.weight.clone(), rows.clone()) };
        for plan in &self.plans.qkv {
            self.session.run(plan, &args)?;
        }
        let positions = self.positions()?;
        for plan in &self.plans.rope {
            self.session.run(plan, &PointwiseArgs::rope_in_place(rows.clone(), positions.clone()))?;
        }
        let offset = query * self.dtype.size();
        Ok((rows.clone(), vec![part(&rows, offset, rows.len - offset)?]))
    }

    /// Products of q, k and v, each packed, the heads of q and k normed and turned: q, and then k and v.
    fn apart(&mut self, block: &Block<D>, norms: &[Slice<D>; 2], x: &Slice<D>) -> Result<(Slice<D>, Vec<Slice<D>>)> {
        let (query, key, size) = (self.config.query(), self.config.key(), self.dtype.size());
        let count = self.plans.rows as u64;
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
        let positions = self.positions()?;
        if let Some(plans) = &self.plans.head_norms {
            let [between, _] = &self.arena.turned;
            for ((rows, plan), (weight, turn)) in made.iter_mut().zip(plans).zip(norms.iter().zip(&self.plans.rope)) {
                let normed = part(between, 0, rows.len)?;
                self.session.run(plan, &norm(rows, weight, &normed))?;
                self.session.run(turn, &PointwiseArgs { positions: Some(positions.clone()), ..PointwiseArgs::new(normed, rows.clone()) })?;
            }
        }
        let fresh = made.split_off(1);
        Ok((made.remove(0), fresh))
    }

    fn positions(&self) -> Result<Slice<D>> {
        part(&self.arena.positions, 0, self.plans.rows as u64 * 4)
    }

    /// Norm, MLP and the residual: from `middle` to `state`.
    fn transform(&mut self, block: &Block<D>) -> Result<()> {
        let hidden = self.config.hidden;
        let [state, normed, middle] = [&self.arena.state, &self.arena.normed, &self.arena.middle].map(|slice| self.rows(slice, hidden));
        let (state, normed, middle) = (state?, normed?, middle?);
        let layer = &block.layer;
        self.session.run(&self.plans.norm, &norm(&middle, &layer.mlp_norm.weight, &normed))?;
        let args = FusedMlpArgs {
            wg: layer.gate.clone(),
            residual: Some(middle),
            ..FusedMlpArgs::new(normed, layer.up.weight.clone(), layer.down.weight.clone(), state)
        };
        self.session.run(&self.plans.mlp, &args)
    }

    /// The logits of `rows` tokens from token `first` of the pass on, in the arena's `logits`.
    pub fn head(&mut self, weights: &Placed<D>, plans: &HeadPlans<D>, first: usize, rows: usize) -> Result<Slice<D>> {
        let row = self.config.hidden * self.dtype.size();
        let x = part(&self.arena.state, first as u64 * row, rows as u64 * row)?;
        let normed = part(&self.arena.normed, 0, rows as u64 * row)?;
        self.session.run(&plans.norm, &norm(&x, &weights.norm, &normed))?;
        let logits = part(&self.arena.logits, 0, rows as u64 * u64::from(self.config.vocabulary) * self.dtype.size())?;
        self.session.run(&plans.head, &LinearArgs::new(normed, weights.head.clone(), logits.clone()))?;
        Ok(logits)
    }
}

fn norm<D: Backend>(x: &Slice<D>, weight: &Slice<D>, y: &Slice<D>) -> PointwiseArgs<D> {
    PointwiseArgs { weight: Some(weight.clone()), ..PointwiseArgs::new(x.clone(), y.clone()) }
}
