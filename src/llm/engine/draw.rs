//! The tokens that a step draws: on the device where a request's parameters allow it, else on the host.

use super::batching::{Engine, Live};
use super::flight::Want;
use super::masks::Masks;
use super::sampler::Drawn;
use crate::backend::Backend;
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::llm::part::part;
use crate::llm::sample::{Choice, History, SamplingParams, sample};
use crate::llm::step::RequestId;
use crate::ops::Sample;
use crate::ops::sample::RowParams;

/// Whether the device draws such a token. It does not know the tokens before, and tells of no others.
fn on_device(sampling: &SamplingParams) -> bool {
    !sampling.has_penalties() && sampling.bias.is_empty() && sampling.top == 0
}

/// Whether the host needs nothing of a request's token before its next one is computed.
pub fn is_free(live: &Live) -> bool {
    on_device(&live.sampling) && live.rule.is_none()
}

/// Why no token of a row may be drawn.
fn nothing(ruled: bool) -> Error {
    let rule = if ruled { ", and a token that the answer's grammar allows" } else { "" };
    Error::invalid("logits", format!("a finite number: where a model's values do not fit f16, take bf16 or f32{rule}"), "none")
}

impl<D: Backend> Engine<D> {
    /// Draws tokens from the arena's logits, of which `rows` rows were computed.
    pub(super) fn draw(&mut self, wants: &[Want], rows: usize) -> Result<Vec<(RequestId, Result<Choice>)>> {
        let masks = self.masks(wants, rows);
        let drawn = self.begin_draw(wants, rows, &masks.bits, false)?;
        self.chosen(wants, rows, drawn.as_ref(), masks)
    }

    /// Puts the draws of those tokens into the queue that the device draws; none where it draws none. `later` says that other work may follow before
    /// they are read.
    pub(super) fn begin_draw(&mut self, wants: &[Want], rows: usize, mask: &[u32], later: bool) -> Result<Option<Drawn<D>>> {
        let mut params = vec![RowParams::greedy(); rows];
        let mut device = false;
        for want in wants {
            let Some(live) = self.live.get(&want.sample.request).filter(|live| on_device(&live.sampling)) else { continue };
            params[want.row] = live.sampling.row(want.sample.position);
            device = true;
        }
        if !device {
            return Ok(None);
        }
        let vocabulary = u64::from(self.model.config.vocabulary);
        let op = Sample::new(rows as u64, vocabulary);
        let logits = self.logits(rows)?;
        let drawn = self.draws.run(&mut self.model.session, op, &logits, &params, mask, later)?;
        if later {
            wants.iter().for_each(|want| self.seats[want.sample.seat as usize] = Some(want.row));
            self.last = Some(drawn.ids.clone());
        }
        Ok(Some(drawn))
    }

    /// The first rows of the arena's logits.
    fn logits(&self, rows: usize) -> Result<Slice<D>> {
        part(&self.arena.logits, 0, rows as u64 * u64::from(self.model.config.vocabulary) * DType::F32.size())
    }

    /// The tokens of `wants`: those that the device drew, and those that are drawn now from the arena's logits.
    pub(super) fn chosen(&mut self, wants: &[Want], rows: usize, device: Option<&Drawn<D>>, mut masks: Masks) -> Result<Vec<(RequestId, Result<Choice>)>> {
        let logits = self.logits(rows)?;
        let row_bytes = logits.len() / rows.max(1) as u64;
        let session = &mut self.model.session;
        let found = device.map_or_else(|| Ok(Vec::new()), |device| device.read(session))?;
        let mut drawn = Vec::with_capacity(wants.len());
        for want in wants {
            let request = want.sample.request;
            // A request that has ended since the plan was made has no parameters any more; its token is dropped.
            let Some(live) = self.live.get_mut(&request) else { continue };
            let ruled = live.rule.is_some();
            let choice = if let Some(error) = masks.failed.remove(&request) {
                Err(error)
            } else if on_device(&live.sampling) {
                let (id, log_probability) = found[want.row];
                u32::try_from(id).map(|token| Choice { token, log_probability: log_probability.into(), top: Vec::new() }).map_err(|_| nothing(ruled))
            } else {
                let own: Vec<f32> = session.download(&part(&logits, want.row as u64 * row_bytes, row_bytes)?)?;
                let (prompt, answer) = live.tokens.split_at(live.prompt);
                let mask = if ruled { masks.row(want.row) } else { None };
                sample(&own, &live.sampling, History { prompt, answer }, mask)
            };
            let choice = choice.and_then(|choice| match &mut live.rule {
                Some(rule) => rule.push(choice.token).map(|()| choice),
                None => Ok(choice),
            });
            drawn.push((request, choice));
        }
        Ok(drawn)
    }
}
