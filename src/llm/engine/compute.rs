//! A step on the device: from its rows to the tokens that are drawn, in two parts, between which the next step may be launched.

use std::collections::hash_map::Entry;

use super::batching::Engine;
use super::buckets::{Bucket, FEW, shape};
use super::draw::is_free;
use super::flight::{Want, Work};
use super::gather::Gather;
use super::ids::copy_ids;
use super::masks::Masks;
use crate::backend::Backend;
use crate::device::Slice;
use crate::error::{Error, Result};
use crate::llm::forward::Pass;
use crate::llm::head::Head;
use crate::llm::layout::Layout;
use crate::llm::part::part;
use crate::llm::sample::Choice;
use crate::llm::schedule::Plan;
use crate::llm::step::{RequestId, SampleRow, Step};
use crate::ops::index::TokenAdapters;
use crate::ops::pointwise::Kind;
use crate::ops::{Pointwise, PointwiseArgs};
use crate::session::Session;

impl<D: Backend> Engine<D> {
    /// Puts a plan's step into the device's queue, with the draws of its tokens where the host has no part in them.
    pub(super) fn launch(&mut self, plan: &Plan) -> Result<Work<D>> {
        let step = &plan.step;
        let latent = Some(self.pools.shape).filter(|_| self.model.config.latent);
        let shape = shape(step, self.most, self.invariant, latent);
        let layout = Layout::of_step(step, &shape, &self.seats)?;
        let with = step.rows.iter().any(|row| row.adapter.is_some());
        let (config, dtype, pools) = (&self.model.config, self.model.dtype, self.pools.shape);
        let session = &mut self.model.session;
        let bucket = self.buckets.get(session, config, dtype, shape, (pools, self.adapted.is_some()))?;
        let gathered = bucket.plans.write(session, &layout, &self.arena, config.vocabulary, pools)?;
        for [row, from, count] in layout.runs() {
            let last = self.last.as_ref().ok_or_else(|| Error::invalid("step", "ids that were drawn on the device", "none"))?;
            copy_ids(session, &part(last, 4 * from as u64, 4 * count as u64)?, &bucket.plans.ids, row)?;
        }
        let tokens = shape.gathered * pools.page as usize;
        if let (true, Some(adapted)) = (with, &mut self.adapted) {
            adapted.write(session, &step.rows, shape.rows)?;
            if let Some(gathered) = &gathered {
                adapted.write_gathered(session, step, gathered, (pools.page as usize, tokens))?;
            }
        }
        // Where each sequence has one row, nearly all are drawn from.
        let one_each = step.rows.len() == step.sequences.len();
        let all = one_each && shape.rows <= self.arena.heads;
        if all && !self.heads.contains_key(&shape.rows) {
            self.heads.insert(shape.rows, Head::new(session, config, dtype, (shape.rows, self.invariant))?);
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
        if !self.ahead || step.sample.len() > self.arena.heads || !self.is_free(step) {
            return Ok(Work::States(shape.rows, all));
        }
        let mut wants = wants(&step.sample);
        let rows = match (wants.is_empty(), all) {
            (true, _) => 0,
            (false, true) => shape.rows,
            (false, false) => self.side_by_side(&mut wants, shape.rows)?,
        };
        let drawn = self.begin_draw(&wants, rows, &[], true)?;
        Ok(Work::Drawn(wants, rows, drawn))
    }

    /// Whether the host has no part in a step: it draws none of the tokens, rules none, and tells of no prompt's.
    fn is_free(&self, step: &Step) -> bool {
        let told = step.sequences.iter().filter_map(|span| self.live.get(&span.request)).any(|live| live.prompt_logprobs.is_some());
        !told && step.sample.iter().filter_map(|sample| self.live.get(&sample.request)).all(is_free)
    }

    /// The tokens of a step that was launched. Blocks. What is wrong with one row is that row's own error.
    pub(super) fn tokens(&mut self, plan: &Plan, work: Work<D>) -> Result<Vec<(RequestId, Result<Choice>)>> {
        let (rows, all) = match work {
            Work::Drawn(wants, rows, drawn) => return self.chosen(&wants, rows, drawn.as_ref(), Masks::default()),
            Work::States(rows, all) => (rows, all),
        };
        let step = &plan.step;
        if all {
            let drawn = self.draw(&wants(&step.sample), rows)?;
            self.prompts(step, rows)?;
            return Ok(drawn);
        }
        self.prompts(step, rows)?;
        let mut drawn = Vec::with_capacity(step.sample.len());
        for some in step.sample.chunks(self.arena.heads) {
            let mut wants = wants(some);
            let count = self.side_by_side(&mut wants, rows)?;
            drawn.extend(self.draw(&wants, count)?);
        }
        Ok(drawn)
    }

    /// Computes the logits of the rows of `wants` alone, of a pass of `of` rows, and says how many there are then. Each want has its row among them.
    fn side_by_side(&mut self, wants: &mut [Want], of: usize) -> Result<usize> {
        let rows: Vec<usize> = wants.iter().map(|want| want.row).collect();
        wants.iter_mut().enumerate().for_each(|(row, want)| want.row = row);
        self.logits_of(&rows, of)
    }

    /// Computes the logits of some rows of a pass of `of` rows, and says how many rows of logits there are then, spare ones included.
    pub(super) fn logits_of(&mut self, rows: &[usize], of: usize) -> Result<usize> {
        let least = if self.invariant { FEW } else { 1 };
        let count = rows.len().next_power_of_two().clamp(least, self.arena.heads);
        let (config, dtype) = (&self.model.config, self.model.dtype);
        let session = &mut self.model.session;
        let mut ids: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        ids.resize(count, 0);
        let ids = TokenAdapters::rows(&ids, of as u32)?;
        let gather = match self.gathers.entry([count, of]) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(room) => {
                let op = Pointwise::new(dtype, count as u64, config.hidden, Kind::Embedding { vocabulary: of as u32 });
                room.insert(Gather { rows: session.index(&ids)?, plan: session.plan(op)? })
            }
        };
        let head = match self.heads.entry(count) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(room) => room.insert(Head::new(session, config, dtype, (count, self.invariant))?),
        };
        session.update_index(&gather.rows, &ids)?;
        let row = config.hidden * dtype.size();
        let (states, to): (Slice<D>, Slice<D>) = (part(&self.arena.state, 0, of as u64 * row)?, part(&self.arena.middle, 0, count as u64 * row)?);
        session.run(&gather.plan, &PointwiseArgs { ids: Some(gather.rows.clone()), ..PointwiseArgs::new(states, to.clone()) })?;
        head.run(session, &self.model.weights, &self.arena, &to)?;
        Ok(count)
    }
}

/// A token to draw for each of `samples`, from the logits of its own row.
fn wants(samples: &[SampleRow]) -> Vec<Want> {
    samples.iter().map(|sample| Want { sample: *sample, row: sample.row }).collect()
}
