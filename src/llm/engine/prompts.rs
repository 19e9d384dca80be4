//! How probable the tokens of prompts were, for requests that ask.

use std::ops::Range;

use rayon::prelude::*;

use super::batching::Engine;
use crate::backend::Backend;
use crate::dtype::DType;
use crate::error::Result;
use crate::llm::part::part;
use crate::llm::sample::{Choice, describe};
use crate::llm::step::{RequestId, Step};

/// A row of a step whose logits tell of the token behind it.
struct Asked {
    row: usize,
    request: RequestId,
    /// The token that stands there in the prompt.
    token: u32,
    top: usize,
}

impl<D: Backend> Engine<D> {
    /// Works out what a step's rows tell of the prompts' tokens behind them, from the states of its pass. What was told before, as of a
    /// request that was preempted, is not told again.
    pub(super) fn prompts(&mut self, step: &Step) -> Result<()> {
        let mut asked: Vec<Asked> = Vec::new();
        for span in &step.sequences {
            let Some(live) = self.live.get_mut(&span.request) else { continue };
            let Some(top) = live.prompt_logprobs else { continue };
            let Range { start, end } = span.rows.clone();
            for row in start..end {
                let place = step.rows[row].position as usize + 1;
                if place < live.prompt && place > live.told {
                    live.told = place;
                    asked.push(Asked { row, request: span.request, token: live.tokens[place], top: top as usize });
                }
            }
        }
        let vocabulary = self.model.config.vocabulary as usize;
        for some in asked.chunks(self.arena.heads) {
            let rows: Vec<usize> = some.iter().map(|one| one.row).collect();
            self.logits_of(&rows)?;
            let bytes = (some.len() * vocabulary) as u64 * DType::F32.size();
            let logits: Vec<f32> = self.model.session.download(&part(&self.arena.logits, 0, bytes)?)?;
            let choices: Vec<Choice> =
                some.par_iter().zip(logits.par_chunks_exact(vocabulary)).map(|(one, logits)| describe(logits, one.token, one.top)).collect();
            for (one, choice) in some.iter().zip(choices) {
                match self.read.last_mut() {
                    Some((request, choices)) if *request == one.request => choices.push(choice),
                    _ => self.read.push((one.request, vec![choice])),
                }
            }
        }
        Ok(())
    }
}
