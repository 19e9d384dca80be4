//! What steps need, made before the first request comes: plans, index data, samplers, captured graphs.

use std::collections::BTreeSet;

use super::batching::Engine;
use super::buckets::{FEW, rounded};
use crate::backend::Backend;
use crate::error::{Result, ensure};
use crate::llm::layout::Layout;
use crate::llm::shape::{PoolShape, Queries, Shape};
use crate::llm::step::Step;
use crate::ops::Sample;
use crate::session::Counters;

impl<D: Backend> Engine<D> {
    /// Makes all that steps need, so that those from here on plan, compile, capture and allocate nothing ([`counters`](Self::counters)). A step then takes
    /// the least of these shapes that it fits into, where without a call a shape of its own is made when it is first met. It runs each shape once, or
    /// twice where it is captured, with rows that belong to no request.
    ///
    /// An adapter of a form that is not there, or beyond the [room kept for more](super::EngineOptions::reserve), takes memory and new graphs; another call makes
    /// those at once.
    ///
    /// # Errors
    /// Requests that have not ended; an operation that the backend does not do; no device memory.
    pub fn warm_up(&mut self) -> Result<()> {
        ensure(self.is_idle() && self.flight.is_none(), "warm_up", "an engine without requests", format_args!("{:?}", self.usage()))?;
        let shapes = self.shapes();
        let most = self.arena.heads;
        let captured = |shape: &Shape| shape.one_each() && shape.rows <= most;
        let mut counts: BTreeSet<usize> = (0..).map(|power| 1 << power).take_while(|&rows| rows < 2 * most).map(|rows| self.logits_count(rows)).collect();
        counts.iter().copied().try_for_each(|count| self.make_logits(count))?;
        counts.extend(shapes.iter().filter(|shape| captured(shape)).map(|shape| shape.rows));
        for rows in counts {
            let op = Sample::new(rows as u64, self.model.config.vocabulary.into());
            self.draws.make(&self.model.session, op.clone().with_mask(true), false)?;
            self.draws.make(&self.model.session, op, self.ahead)?;
        }
        self.buckets.settle(shapes.len());
        let step = Step::default();
        for shape in shapes {
            let layout = Layout::spare(&shape);
            for with in [false, true].into_iter().take(1 + usize::from(self.adapted.is_some())) {
                for _ in 0..1 + usize::from(captured(&shape)) {
                    self.pass(&step, shape, &layout, with)?;
                }
            }
        }
        self.model.session.synchronize()
    }

    /// What the engine's session has made so far.
    pub fn counters(&self) -> Counters {
        self.model.session.counters()
    }

    /// Shapes of which each step fits into one: where sequences have a row each, all that such a step is rounded up to; else powers of two of rows, with
    /// as many sequences as those may have.
    fn shapes(&self) -> Vec<Shape> {
        let [rows, sequences, pages] = self.most;
        let (batch_invariant, page) = (self.invariant, self.pools.shape);
        let least = if batch_invariant { FEW } else { 1 };
        let each = if batch_invariant { Queries::Ragged { most: 1 } } else { Queries::Even };
        let one_each = (1..=sequences).map(|count| rounded(count).min(sequences).max(least)).map(|count| (count, count, each));
        let several = powers(FEW, rows).map(|count| (count, count.min(sequences), Queries::Ragged { most: count }));
        let mut all: Vec<Shape> = Vec::new();
        for (rows, sequences, queries) in one_each.collect::<BTreeSet<_>>().into_iter().chain(several) {
            for pages in powers(1, pages) {
                let gathered = if self.model.config.latent { gathered(sequences * pages, pages, page) } else { vec![0] };
                all.extend(gathered.into_iter().map(|gathered| Shape { rows, sequences, queries, pages, gathered, batch_invariant }));
            }
        }
        all
    }
}

/// Powers of two times `first`, up to `last`, which ends them.
fn powers(first: usize, last: usize) -> impl Iterator<Item = usize> {
    let first = first.min(last);
    std::iter::successors(Some(first), move |&number| (number < last).then(|| (2 * number).min(last)))
}

/// Numbers of different pages of which a pass gathers: the most, and quarters of it down to those of one sequence.
fn gathered(most: usize, pages: usize, pools: PoolShape) -> Vec<usize> {
    let all = pools.pages as usize;
    let least = pages.max(FEW.div_ceil(pools.page.max(1) as usize)).min(all);
    let most = most.min(all).max(least);
    std::iter::successors(Some(most), |&number| (number > least).then(|| (number / 4).max(least))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_end_with_the_last() {
        assert_eq!(powers(16, 100).collect::<Vec<_>>(), [16, 32, 64, 100]);
        assert_eq!(powers(1, 8).collect::<Vec<_>>(), [1, 2, 4, 8]);
        assert_eq!((powers(16, 16).collect::<Vec<_>>(), powers(16, 3).collect::<Vec<_>>()), (vec![16], vec![3]));
    }

    #[test]
    fn pages_that_are_gathered_go_down_to_those_of_one_sequence() {
        let pools = |pages| PoolShape { page: 8, pages, filled: false };
        assert_eq!(gathered(256, 4, pools(1000)), [256, 64, 16, 4]);
        assert_eq!((gathered(256, 4, pools(100)), gathered(1, 1, pools(100)), gathered(1, 1, pools(1))), (vec![100, 25, 6, 4], vec![2], vec![1]));
    }
}
