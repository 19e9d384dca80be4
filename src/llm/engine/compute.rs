//! A step on the device: from its rows to the tokens that are drawn.

use std::collections::hash_map::Entry;

use super::batching::Engine;
use super::buckets::{Bucket, FEW, shape};
use super::draw::Want;
use super::gather::Gather;
use crate::backend::Backend;
use crate::device::Slice;
use crate::error::Result;
use crate::llm::forward::Pass;
use crate::llm::head::Head;
use crate::llm::layout::Layout;
use crate::llm::part::part;
use crate::llm::sample::Choice;
use crate::llm::step::RequestId;
use crate::ops::index::TokenAdapters;
use crate::ops::pointwise::Kind;
use crate::ops::{Pointwise, PointwiseArgs};
use crate::session::Session;

impl<D: Backend> Engine<D> {
    /// Computes the plan's step, and draws the tokens that it asks for. What is wrong with one row is that row's own error.
    pub(super) fn compute(&mut self) -> Result<Vec<(RequestId, Result<Choice>)>> {
        let latent = Some(self.pools.shape).filter(|_| self.model.config.latent);
        let shape = shape(&self.plan.step, self.most, self.invariant, latent);
        let layout = Layout::of_step(&self.plan.step, &shape, &self.seats)?;
        let with = self.plan.step.rows.iter().any(|row| row.adapter.is_some());
        let (config, dtype, pools) = (&self.model.config, self.model.dtype, self.pools.shape);
        let session = &mut self.model.session;
        let bucket = self.buckets.get(session, config, dtype, shape, (pools, self.adapted.is_some()))?;
        let gathered = bucket.plans.write(session, &layout, &self.arena, config.vocabulary, pools)?;
        let tokens = shape.gathered * pools.page as usize;
        if let (true, Some(adapted)) = (with, &mut self.adapted) {
            adapted.write(session, &self.plan.step.rows, shape.rows)?;
            if let Some(gathered) = &gathered {
                adapted.write_gathered(session, &self.plan.step, gathered, (pools.page as usize, tokens))?;
            }
        }
        // Where each sequence has one row, nearly all are drawn from.
        let one_each = self.plan.step.rows.len() == self.plan.step.sequences.len();
        let all = one_each && shape.rows <= self.arena.heads;
        if all && !self.heads.contains_key(&shape.rows) {
            self.heads.insert(shape.rows, Head::new(session, config, dtype, shape.rows)?);
        }
        let head = if all { self.heads.get(&shape.rows) } else { None };

        let generation = self.adapted.as_ref().map_or(0, |adapted| adapted.generation());
        let Bucket { plans, graphs, warm, .. } = bucket;
        let (arena, weights, keys) = (&self.arena, &self.model.weights, &self.pools);
        let adapted = &mut self.adapted;
        let mut run = |session: &mut Session<D>| {
            let deltas = adapted.as_mut().filter(|_| with).and_then(|adapted| adapted.deltas(shape.rows, tokens));
            Pass { session, config, dtype, arena, plans, deltas }.run(weights, keys)?;
            head.map_or(Ok(()), |head| head.run(session, weights, arena, &arena.state).map(|_| ()))
        };
        let graph = &mut graphs[usize::from(with)];
        match graph {
            Some((graph, of)) if *of == generation => session.replay(graph)?,
            _ if all && warm[usize::from(with)] => {
                let captured = session.capture(&mut run)?;
                session.replay(&captured)?;
                *graph = Some((captured, generation));
            }
            _ => {
                run(session)?;
                warm[usize::from(with)] = true;
            }
        }
        if all {
            let wants: Vec<Want> = self.plan.step.sample.iter().map(|sample| Want { sample: *sample, row: sample.row }).collect();
            let drawn = self.draw(&wants, shape.rows)?;
            self.prompts(shape.rows)?;
            return Ok(drawn);
        }
        self.prompts(shape.rows)?;
        let samples = self.plan.step.sample.clone();
        let mut drawn = Vec::with_capacity(samples.len());
        for some in samples.chunks(self.arena.heads) {
            let rows: Vec<usize> = some.iter().map(|sample| sample.row).collect();
            let count = self.logits_of(&rows, shape.rows)?;
            let wants: Vec<Want> = some.iter().enumerate().map(|(row, sample)| Want { sample: *sample, row }).collect();
            drawn.extend(self.draw(&wants, count)?);
        }
        Ok(drawn)
    }

    /// Computes the logits of some rows of a pass of `of` rows, and says how many rows of logits there are then, spare ones included.
    pub(super) fn logits_of(&mut self, rows: &[usize], of: usize) -> Result<usize> {
        let least = if self.invariant { FEW } else { 1 };
        let count = rows.len().next_power_of_two().clamp(least, self.arena.heads);
        let (config, dtype) = (&self.model.config, self.model.dtype);
        let session = &mut self.model.session;
        let mut ids: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        ids.resize(count, 0);
        let ids = TokenAdapters::new(&ids, of as u32)?;
        let gather = match self.gathers.entry([count, of]) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(room) => {
                let op = Pointwise::new(dtype, count as u64, config.hidden, Kind::Embedding { vocabulary: of as u32 });
                room.insert(Gather { rows: session.index(&ids)?, plan: session.plan(op)? })
            }
        };
        let head = match self.heads.entry(count) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(room) => room.insert(Head::new(session, config, dtype, count)?),
        };
        session.update_index(&gather.rows, &ids)?;
        let row = config.hidden * dtype.size();
        let (states, to): (Slice<D>, Slice<D>) = (part(&self.arena.state, 0, of as u64 * row)?, part(&self.arena.middle, 0, count as u64 * row)?);
        session.run(&gather.plan, &PointwiseArgs { ids: Some(gather.rows.clone()), ..PointwiseArgs::new(states, to.clone()) })?;
        head.run(session, &self.model.weights, &self.arena, &to)?;
        Ok(count)
    }
}
