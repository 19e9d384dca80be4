//! A step on the device: from its rows to the tokens that are drawn, in two parts, between which the next step may be launched.

use std::collections::hash_map::Entry;

use super::batching::Engine;
use super::buckets::{Bucket, FEW, shape};
use super::draw::is_free;
use super::flight::{Want, Work};
use super::gather::Gather;
use super::ids::copy_ids;
use super::masks::Masks;
use super::timed::{Timed, TimedStep};
use crate::backend::Backend;
use crate::device::Slice;
use crate::error::{Error, Result};
use crate::llm::forward::Pass;
use crate::llm::head::Head;
use crate::llm::layout::Layout;
use crate::llm::part::part;
use crate::llm::sample::Choice;
use crate::llm::schedule::Plan;
use crate::llm::shape::Shape;
use crate::llm::step::{RequestId, SampleRow, Step};
use crate::ops::index::TokenAdapters;
use crate::ops::pointwise::Kind;
use crate::ops::{Pointwise, PointwiseArgs};
use crate::session::Session;

impl<D: Backend> Engine<D> {
    /// Asks for the times of the launches of the next step that is put into the device's queue, each the median of `times` runs by events: all launches from the
    /// tokens to the states, and to the logits where each row's are computed. The step runs as often again, outside a graph, and gives the tokens that it would
    /// have given. Caches hold what the launches before leave in them.
    pub fn time_next(&mut self, times: u32) {
        self.timed = Timed { times, found: None };
    }

    /// Takes the times that [`time_next`](Self::time_next) asked for; `None` where no step was launched since.
    pub fn take_timed(&mut self) -> Option<TimedStep> {
        self.timed.found.take()
    }

    /// Puts a plan's step into the device's queue, with the draws of its tokens where the host has no part in them.
    pub(super) fn launch(&mut self, plan: &Plan) -> Result<Work<D>> {
        let step = &plan.step;
        let latent = Some(self.pools.shape).filter(|_| self.model.config.latent);
        let shape = shape(step, self.most, self.invariant, latent);
        let shape = self.buckets.place(shape);
        let layout = Layout::of_step(step, &shape, &self.seats)?;
        let with = step.rows.iter().any(|row| row.adapter.is_some());
        let all = self.pass(step, shape, &layout, with)?;
        if !self.ahead || step.sample.len() > self.arena.heads || !self.is_free(step) {
            return Ok(Work::States(shape.rows, all));
        }
        let mut wants = wants(&step.sample);
        let rows = match (wants.is_empty(), all) {
            (true, _) => 0,
            (false, true) => shape.rows,
            (false, false) => self.side_by_side(&mut wants)?,
        };
        let drawn = self.begin_draw(&wants, rows, &[], true)?;
        Ok(Work::Drawn(wants, rows, drawn))
    }

    /// Computes the states of a step in a shape that it fits into, with adapters or without, and says whether the logits of all rows are computed too.
    pub(super) fn pass(&mut self, step: &Step, shape: Shape, layout: &Layout, with: bool) -> Result<bool> {
        let (config, dtype, pools) = (&self.model.config, self.model.dtype, self.pools.shape);
        let session = &mut self.model.session;
        let bucket = self.buckets.get(session, config, dtype, shape, (pools, self.adapted.is_some()))?;
        let gathered = bucket.plans.write(session, layout, &self.arena, config.vocabulary, pools)?;
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
        let all = shape.one_each() && shape.rows <= self.arena.heads;
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
        let (graph, warm) = (&mut graphs[usize::from(with)], &mut warm[usize::from(with)]);
        match graph {
            Some((graph, of)) if *of == generation => session.replay(graph)?,
            _ if all && *warm == Some(generation) => {
                let captured = session.capture(&mut run)?;
                session.replay(&captured)?;
                *graph = Some((captured, generation));
            }
            _ => {
                run(session)?;
                *warm = Some(generation);
            }
        }
        self.timed.step(session, ([step.rows.len(), step.sequences.len()], all), &mut run)?;
        Ok(all)
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
            self.prompts(step)?;
            return Ok(drawn);
        }
        self.prompts(step)?;
        let mut drawn = Vec::with_capacity(step.sample.len());
        for some in step.sample.chunks(self.arena.heads) {
            let mut wants = wants(some);
            let count = self.side_by_side(&mut wants)?;
            drawn.extend(self.draw(&wants, count)?);
        }
        Ok(drawn)
    }

    /// Computes the logits of the rows of `wants` alone, and says how many there are then. Each want has its row among them.
    fn side_by_side(&mut self, wants: &mut [Want]) -> Result<usize> {
        let rows: Vec<usize> = wants.iter().map(|want| want.row).collect();
        wants.iter_mut().enumerate().for_each(|(row, want)| want.row = row);
        self.logits_of(&rows)
    }

    /// Computes the logits of some rows of the last pass, and says how many rows of logits there are then, spare ones included.
    pub(super) fn logits_of(&mut self, rows: &[usize]) -> Result<usize> {
        let count = self.logits_count(rows.len());
        self.make_logits(count)?;
        let mut ids: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        ids.resize(count, 0);
        let ids = TokenAdapters::rows(&ids, self.most[0] as u32)?;
        let (Some(gather), Some(head)) = (self.gathers.get(&count), self.heads.get(&count)) else {
            return Err(Error::invalid("logits", "plans for as many rows", count));
        };
        let session = &mut self.model.session;
        session.update_index(&gather.rows, &ids)?;
        let bytes = count as u64 * self.model.config.hidden * self.model.dtype.size();
        let to: Slice<D> = part(&self.arena.middle, 0, bytes)?;
        let args = PointwiseArgs::new(self.arena.state.clone(), to.clone());
        session.run(&gather.plan, &PointwiseArgs { ids: Some(gather.rows.clone()), ..args })?;
        head.run(session, &self.model.weights, &self.arena, &to)?;
        Ok(count)
    }

    /// How many rows of logits are computed where so many are asked for.
    pub(super) fn logits_count(&self, rows: usize) -> usize {
        let least = if self.invariant { FEW } else { 1 };
        rows.next_power_of_two().clamp(least, self.arena.heads)
    }

    /// Plans what makes `count` rows of logits of any rows of a pass.
    pub(super) fn make_logits(&mut self, count: usize) -> Result<()> {
        let (config, dtype, session) = (&self.model.config, self.model.dtype, &mut self.model.session);
        if let Entry::Vacant(room) = self.gathers.entry(count) {
            // Of all rows that a pass may have, so that one plan serves every shape.
            let rows = self.most[0] as u32;
            let op = Pointwise::new(dtype, count as u64, config.hidden, Kind::Embedding { vocabulary: rows });
            room.insert(Gather { rows: session.index(&TokenAdapters::rows(&vec![0; count], rows)?)?, plan: session.plan(op)? });
        }
        if let Entry::Vacant(room) = self.heads.entry(count) {
            room.insert(Head::new(session, config, dtype, (count, self.invariant))?);
        }
        Ok(())
    }
}

/// A token to draw for each of `samples`, from the logits of its own row.
fn wants(samples: &[SampleRow]) -> Vec<Want> {
    samples.iter().map(|sample| Want { sample: *sample, row: sample.row }).collect()
}
