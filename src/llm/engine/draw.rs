//! The tokens that a step draws: on the device where a request's parameters allow it, else on the host.

use std::collections::HashMap;

use super::{Choice, Engine};
use crate::backend::Backend;
use crate::device::Slice;
use crate::error::{Error, Result};
use crate::llm::model::read;
use crate::llm::plans::part;
use crate::llm::sample::{History, SamplingParams, sample};
use crate::llm::step::{RequestId, SampleRow};
use crate::ops::sample::RowParams;
use crate::ops::{Sample, SampleArgs};
use crate::session::{Plan, Session};

/// A token to draw, and the row of the logits that it is drawn from.
pub struct Want {
    pub sample: SampleRow,
    pub row: usize,
}

/// The sampler on the device, for each number of rows.
pub struct Draws<D: Backend> {
    all: HashMap<usize, Draw<D>>,
}

struct Draw<D: Backend> {
    plan: Plan<Sample, D>,
    params: Slice<D>,
    /// Ids, and behind them the logarithms of their probabilities.
    drawn: Slice<D>,
}

impl<D: Backend> Default for Draws<D> {
    fn default() -> Self {
        Self { all: HashMap::new() }
    }
}

/// Whether the device draws such a token. It does not know the tokens before, and tells of no others.
fn on_device(sampling: &SamplingParams) -> bool {
    !sampling.has_penalties() && sampling.bias.is_empty() && sampling.top == 0
}

impl<D: Backend> Draw<D> {
    fn new(session: &Session<D>, op: Sample) -> Result<Self> {
        let rows = op.rows;
        Ok(Self { plan: session.plan(op)?, params: session.alloc(rows * size_of::<RowParams>() as u64)?, drawn: session.alloc(rows * 8)? })
    }

    /// Draws from every row: ids, and the logarithms of their probabilities.
    fn run(&self, session: &mut Session<D>, logits: &Slice<D>, params: &[RowParams]) -> Result<Vec<(i32, f32)>> {
        let rows = params.len();
        session.write(&self.params, bytemuck::cast_slice(params))?;
        let (ids, log_probability) = (part(&self.drawn, 0, rows as u64 * 4)?, part(&self.drawn, rows as u64 * 4, rows as u64 * 4)?);
        session.run(&self.plan, &SampleArgs::new(logits.clone(), self.params.clone(), ids, log_probability))?;
        let words: Vec<u32> = session.download(&self.drawn)?;
        let (ids, logarithms) = words.split_at(rows);
        Ok(ids.iter().zip(logarithms).map(|(&id, &logarithm)| (id as i32, f32::from_bits(logarithm))).collect())
    }
}

impl<D: Backend> Engine<D> {
    /// Draws tokens from the arena's logits, of which `rows` rows were computed.
    pub(super) fn draw(&mut self, wants: &[Want], rows: usize) -> Result<Vec<(RequestId, Result<Choice>)>> {
        let vocabulary = u64::from(self.model.config.vocabulary);
        let (dtype, session) = (self.model.dtype, &mut self.model.session);
        let row_bytes = vocabulary * dtype.size();
        let logits = part(&self.arena.logits, 0, rows as u64 * row_bytes)?;
        let mut params = vec![RowParams::greedy(); rows];
        let mut device = false;
        for want in wants {
            let Some(live) = self.live.get(&want.sample.request).filter(|live| on_device(&live.sampling)) else { continue };
            params[want.row] = live.sampling.row(want.sample.position);
            device = true;
        }
        let mut found = Vec::new();
        if device {
            if !self.draws.all.contains_key(&rows) {
                let op = Sample::new(rows as u64, vocabulary).with_dtype(dtype);
                self.draws.all.insert(rows, Draw::new(session, op)?);
            }
            let draw = self.draws.all.get(&rows).ok_or_else(|| Error::invalid("sampler", "a plan", "none"))?;
            found = draw.run(session, &logits, &params)?;
        }
        let mut drawn = Vec::with_capacity(wants.len());
        for want in wants {
            let request = want.sample.request;
            // A request that was given up since the plan was made has no parameters any more; its token is dropped.
            let Some(live) = self.live.get(&request) else { continue };
            let choice = if on_device(&live.sampling) {
                let (id, log_probability) = found[want.row];
                u32::try_from(id)
                    .map(|token| Choice { token, log_probability: log_probability.into(), top: Vec::new() })
                    .map_err(|_| Error::invalid("logits", "a finite number: where a model's values do not fit f16, take bf16 or f32", "none"))
            } else {
                let own = read(session, dtype, &part(&logits, want.row as u64 * row_bytes, row_bytes)?)?;
                let (prompt, answer) = live.tokens.split_at(live.prompt);
                sample(&own, &live.sampling, History { prompt, answer }, None)
            };
            if let Ok(choice) = &choice {
                self.seats[want.sample.seat as usize] = choice.token;
            }
            drawn.push((request, choice));
        }
        Ok(drawn)
    }
}
