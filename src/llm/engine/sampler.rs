//! The device's sampler, and its memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::backend::Backend;
use crate::device::Slice;
use crate::error::Result;
use crate::llm::part::part;
use crate::ops::sample::RowParams;
use crate::ops::{Sample, SampleArgs};
use crate::session::{Plan, Session};

/// The sampler on the device, for each number of rows.
pub struct Draws<D: Backend> {
    /// By the number of rows, and whether there is a mask.
    all: HashMap<(usize, bool), Draw<D>>,
}

struct Draw<D: Backend> {
    plan: Plan<Sample, D>,
    params: Slice<D>,
    mask: Option<Slice<D>>,
    /// Ids, and behind them the logarithms of their probabilities.
    drawn: Slice<D>,
}

impl<D: Backend> Default for Draws<D> {
    fn default() -> Self {
        Self { all: HashMap::new() }
    }
}

impl<D: Backend> Draws<D> {
    /// Draws from every row of `logits`, of which there is one for each of `params`: ids, and the logarithms of their probabilities. Where `mask` is not
    /// empty it has a row of bits for each.
    ///
    /// # Errors
    /// A backend without a sampler; no device memory; a device that fails.
    pub fn run(&mut self, session: &mut Session<D>, op: Sample, logits: &Slice<D>, params: &[RowParams], mask: &[u32]) -> Result<Vec<(i32, f32)>> {
        let op = op.with_mask(!mask.is_empty());
        let draw = match self.all.entry((params.len(), op.mask)) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(room) => room.insert(Draw::new(session, op)?),
        };
        draw.run(session, logits, params, mask)
    }
}

impl<D: Backend> Draw<D> {
    fn new(session: &Session<D>, op: Sample) -> Result<Self> {
        let rows = op.rows;
        let mask = if op.mask { Some(session.alloc(rows * op.mask_words() * 4)?) } else { None };
        Ok(Self { plan: session.plan(op)?, params: session.alloc(rows * size_of::<RowParams>() as u64)?, mask, drawn: session.alloc(rows * 8)? })
    }

    /// Draws from every row: ids, and the logarithms of their probabilities.
    fn run(&self, session: &mut Session<D>, logits: &Slice<D>, params: &[RowParams], mask: &[u32]) -> Result<Vec<(i32, f32)>> {
        let rows = params.len();
        session.write(&self.params, bytemuck::cast_slice(params))?;
        if let Some(own) = &self.mask {
            session.write(own, bytemuck::cast_slice(mask))?;
        }
        let (ids, log_probability) = (part(&self.drawn, 0, rows as u64 * 4)?, part(&self.drawn, rows as u64 * 4, rows as u64 * 4)?);
        session.run(&self.plan, &SampleArgs::new(logits.clone(), self.params.clone(), ids, log_probability).with_mask(self.mask.clone()))?;
        let words: Vec<u32> = session.download(&self.drawn)?;
        let (ids, logarithms) = words.split_at(rows);
        Ok(ids.iter().zip(logarithms).map(|(&id, &logarithm)| (id as i32, f32::from_bits(logarithm))).collect())
    }
}
