//! The shapes that steps are rounded up to, and what is kept of each: plans, index data and captured graphs.

use std::collections::HashMap;

use crate::backend::Backend;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::llm::config::Config;
use crate::llm::plans::Plans;
use crate::llm::shape::{PoolShape, Queries, Shape};
use crate::llm::step::Step;
use crate::session::{Graph, Session};

/// The most shapes whose plans are kept.
const MOST: usize = 192;

/// What is kept of a shape.
pub struct Bucket<D: Backend> {
    pub plans: Plans<D>,
    /// The captured pass, without adapters and with them, and the generation of the adapters' memory that it names.
    pub graphs: [Option<(Graph<D>, u64)>; 2],
    /// The generation of the adapters' memory in which a pass was run without adapters and with them, and so every plan of it made.
    pub warm: [Option<u64>; 2],
    used: u64,
}

/// All shapes that were met.
pub struct Buckets<D: Backend> {
    all: HashMap<Shape, Bucket<D>>,
    clock: u64,
    /// How many times plans were made.
    pub made: u64,
    /// How many shapes were made ahead, after which a step takes one of those that it fits into; 0 before.
    ahead: usize,
}

/// A number rounded up to a power of two, or to three quarters of one.
pub fn rounded(number: usize) -> usize {
    let power = number.max(1).next_power_of_two();
    let between = power / 4 * 3;
    if power >= 16 && number <= between { between } else { power }
}

/// The least rows of a pass whose sums are to have one order: fewer are streamed, in another one.
pub const FEW: usize = 16;

/// The shape that a step is rounded up to, given the rows, the sequences and the pages of a sequence that no step has more of. Where the form of
/// attention may not depend on the step, it is the ragged one. `latent` is the pool whose pages are gathered, where they are.
pub fn shape(step: &Step, [rows, sequences, pages]: [usize; 3], invariant: bool, latent: Option<PoolShape>) -> Shape {
    let longest = step.sequences.iter().map(|span| span.pages.len()).max().unwrap_or(0);
    let pages = longest.max(1).next_power_of_two().min(pages);
    let one_each = step.rows.len() == step.sequences.len();
    let least = if invariant { FEW } else { 1 };
    let sequences = rounded(step.sequences.len()).min(sequences).max(least);
    let rows = if one_each { sequences } else { rounded(step.rows.len()).min(rows).max(least) };
    let queries = match (one_each, invariant) {
        (true, false) => Queries::Even,
        (true, true) => Queries::Ragged { most: 1 },
        (false, _) => Queries::Ragged { most: rows },
    };
    let gathered = latent.map_or(0, |pools| {
        let mut different = step.pages.clone();
        different.sort_unstable();
        different.dedup();
        rounded(different.len()).max(FEW.div_ceil(pools.page.max(1) as usize)).min(pools.pages as usize)
    });
    Shape { rows, sequences, queries, pages, gathered, batch_invariant: invariant }
}

impl<D: Backend> Default for Buckets<D> {
    fn default() -> Self {
        Self { all: HashMap::new(), clock: 0, made: 0, ahead: 0 }
    }
}

impl<D: Backend> Buckets<D> {
    /// Notes that these shapes are there, or will be: no step needs another from here on.
    pub fn settle(&mut self, shapes: usize) {
        self.ahead = shapes;
    }

    /// The shape that a step takes: its own where plans of it are there or none were made ahead, else the least of those that it fits into.
    pub fn place(&self, own: Shape) -> Shape {
        if self.ahead == 0 || self.all.contains_key(&own) {
            return own;
        }
        let least = self.all.keys().filter(|shape| shape.holds(&own)).min_by_key(|shape| [shape.rows, shape.pages, shape.sequences, shape.gathered]);
        least.copied().unwrap_or(own)
    }

    /// What is kept of a shape, made now where it was not met yet. The shape that was used the longest ago makes room.
    ///
    /// # Errors
    /// An operation that the backend does not do; no device memory.
    pub fn get(&mut self, session: &mut Session<D>, config: &Config, dtype: DType, shape: Shape, (pools, split): (PoolShape, bool)) -> Result<&mut Bucket<D>> {
        self.clock += 1;
        if !self.all.contains_key(&shape) {
            if self.all.len() >= MOST.max(self.ahead)
                && let Some(oldest) = self.all.iter().min_by_key(|(_, bucket)| bucket.used).map(|(shape, _)| *shape)
            {
                self.all.remove(&oldest);
            }
            let plans = Plans::new(session, config, dtype, shape, pools, split)?;
            self.made += 1;
            self.all.insert(shape, Bucket { plans, graphs: [None, None], warm: [None; 2], used: 0 });
        }
        let bucket = self.all.get_mut(&shape).ok_or_else(|| Error::invalid("step", "plans", "none"))?;
        bucket.used = self.clock;
        Ok(bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_up_by_a_half_at_most() {
        assert_eq!([1, 2, 3, 8, 9, 12, 13, 17, 24, 25, 33, 49, 512].map(rounded), [1, 2, 4, 8, 12, 12, 16, 24, 24, 32, 48, 64, 512]);
    }
}
