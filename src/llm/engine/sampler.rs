//! The device's sampler, its memory, and what it has drawn.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::backend::Backend;
use crate::device::Slice;
use crate::error::Result;
use crate::llm::part::part;
use crate::ops::sample::RowParams;
use crate::ops::{Sample, SampleArgs};
use crate::session::{Event, Plan, Session};

/// The sampler on the device, for each number of rows.
pub struct Draws<D: Backend> {
    /// By the number of rows, and whether there is a mask.
    all: HashMap<(usize, bool), Draw<D>>,
}

/// The sampler of one number of rows.
pub struct Draw<D: Backend> {
    plan: Plan<Sample, D>,
    params: Slice<D>,
    mask: Option<Slice<D>>,
    /// Ids, and behind them the logarithms of their probabilities.
    drawn: Slice<D>,
    /// Where they are copied on the host, in turn, where they may be read while later work runs.
    hosts: Option<[Slice<D>; 2]>,
    turn: bool,
}

/// Tokens that are drawn once the device comes to it.
pub struct Drawn<D: Backend> {
    /// The ids, on the device.
    pub ids: Slice<D>,
    /// Where ids and logarithms are read, and after which moment; none where nothing follows before they are read.
    words: Slice<D>,
    after: Option<Event<D>>,
}

impl<D: Backend> Drawn<D> {
    /// The ids, and the logarithms of their probabilities. Blocks.
    pub fn read(&self, session: &mut Session<D>) -> Result<Vec<(i32, f32)>> {
        let words: Vec<u32> = match &self.after {
            Some(event) => session.read_after(event, &self.words)?,
            None => session.download(&self.words)?,
        };
        let (ids, logarithms) = words.split_at(words.len() / 2);
        Ok(ids.iter().zip(logarithms).map(|(&id, &logarithm)| (id as i32, f32::from_bits(logarithm))).collect())
    }
}

impl<D: Backend> Default for Draws<D> {
    fn default() -> Self {
        Self { all: HashMap::new() }
    }
}

impl<D: Backend> Draws<D> {
    /// Draws from every row of `logits`, of which there is one for each of `params`. Where `mask` is not empty it has a row of bits for each. `later`
    /// says that other work may follow before what was drawn is read.
    ///
    /// # Errors
    /// A backend without a sampler; no device memory; a device that fails.
    pub fn run(&mut self, session: &mut Session<D>, op: Sample, logits: &Slice<D>, params: &[RowParams], mask: &[u32], later: bool) -> Result<Drawn<D>> {
        let op = op.with_mask(!mask.is_empty());
        self.make(session, op, later)?.run(session, logits, params, mask, later)
    }

    /// Makes the sampler of an operation where there is none yet, with memory of the host where what it draws is read later.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    pub fn make(&mut self, session: &Session<D>, op: Sample, later: bool) -> Result<&mut Draw<D>> {
        let (rows, key) = (op.rows, (op.rows as usize, op.mask));
        let draw = match self.all.entry(key) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(room) => room.insert(Draw::new(session, op)?),
        };
        if later && draw.hosts.is_none() {
            draw.hosts = Some([session.alloc_host(rows * 8)?, session.alloc_host(rows * 8)?]);
        }
        Ok(draw)
    }
}

impl<D: Backend> Draw<D> {
    fn new(session: &Session<D>, op: Sample) -> Result<Self> {
        let rows = op.rows;
        let mask = if op.mask { Some(session.alloc(rows * op.mask_words() * 4)?) } else { None };
        let (params, drawn) = (session.alloc(rows * size_of::<RowParams>() as u64)?, session.alloc(rows * 8)?);
        Ok(Self { plan: session.plan(op)?, params, mask, drawn, hosts: None, turn: false })
    }

    fn run(&mut self, session: &mut Session<D>, logits: &Slice<D>, params: &[RowParams], mask: &[u32], later: bool) -> Result<Drawn<D>> {
        let rows = params.len() as u64;
        session.write(&self.params, bytemuck::cast_slice(params))?;
        if let Some(own) = &self.mask {
            session.write(own, bytemuck::cast_slice(mask))?;
        }
        let (ids, log_probability) = (part(&self.drawn, 0, rows * 4)?, part(&self.drawn, rows * 4, rows * 4)?);
        session.run(&self.plan, &SampleArgs::new(logits.clone(), self.params.clone(), ids.clone(), log_probability).with_mask(self.mask.clone()))?;
        let Some(hosts) = self.hosts.as_ref().filter(|_| later) else {
            return Ok(Drawn { ids, words: self.drawn.clone(), after: None });
        };
        let words = hosts[usize::from(self.turn)].clone();
        self.turn = !self.turn;
        session.copy(&self.drawn, &words)?;
        Ok(Drawn { ids, words, after: Some(session.record_event()?) })
    }
}
