//! A model that answers: tokens in, text out as it comes.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use trifuse::backend::Backend;
use trifuse::llm::sample::{History, SamplingParams, choose};
use trifuse::llm::{Context, Files, Grammar, Model, TextStream};
use trifuse::{DType, Result};

use crate::cli::interrupt::Interrupt;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// A token that ends a text, or a stop text.
    Stop,
    /// As many tokens as were asked for, or as there is room for.
    Length,
    /// Ctrl-C.
    Interrupted,
}

/// An answer, and how long it took.
#[derive(Debug, Serialize)]
pub struct Answer {
    pub text: String,
    pub finish: Finish,
    /// Tokens that were read before the first was chosen.
    pub prompt_tokens: usize,
    /// Tokens that were chosen, the one that ends the text among them.
    pub tokens: usize,
    pub first_token_seconds: f64,
    /// Tokens a second behind the first; null where there are none.
    pub tokens_per_second: Option<f64>,
    pub backend: &'static str,
    pub dtype: DType,
}

impl Answer {
    /// The times in a sentence.
    pub fn sentence(&self) -> String {
        let rate = self.tokens_per_second.map_or_else(String::new, |rate| format!(", then {rate:.1} a second"));
        let ends = match self.finish {
            Finish::Stop => "",
            Finish::Length => "; cut at its length",
            Finish::Interrupted => "; interrupted",
        };
        let Self { prompt_tokens, tokens, first_token_seconds, dtype, backend, .. } = self;
        format!("{prompt_tokens} tokens read, the first chosen after {first_token_seconds:.2} s{rate}; {tokens} in all, {dtype} on {backend}{ends}")
    }
}

/// A model, one text, and how tokens are chosen.
pub struct Speaker<'a, D: Backend> {
    pub model: Model<D>,
    pub files: &'a Files,
    pub context: Context<D>,
    /// The tokens of the text, those that the context holds first.
    ids: Vec<u32>,
    sampling: SamplingParams,
    stops: &'a [String],
    /// What answers are held to; `None` is any text.
    pub grammar: Option<Arc<dyn Grammar>>,
}

impl<'a, D: Backend> Speaker<'a, D> {
    /// A speaker with room for a text of `room` tokens.
    ///
    /// # Errors
    /// More room than the model was made for; no device memory.
    pub fn new(mut model: Model<D>, files: &'a Files, room: usize, sampling: SamplingParams, stops: &'a [String]) -> Result<Self> {
        let context = model.context(room)?;
        Ok(Self { model, files, context, ids: Vec::new(), sampling, stops, grammar: None })
    }

    /// Goes on from `prompt`, the whole text so far, with up to `most` tokens. What the text has in common with the one before is not
    /// computed again. `show` is given the text as it comes.
    ///
    /// # Errors
    /// An empty prompt; one that is longer than there is room for; a device that fails; whatever `show` fails with.
    pub fn answer(&mut self, prompt: &[u32], most: usize, interrupt: &Interrupt, show: &mut dyn FnMut(&str) -> Result<()>) -> Result<Answer> {
        let common = self.ids.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(self.context.len()).min(prompt.len().saturating_sub(1));
        self.context.truncate(common);
        let started = Instant::now();
        let mut logits = self.model.run(&mut self.context, &prompt[common..], 1)?;
        self.ids = prompt.to_vec();
        let mut stream = TextStream::new(self.stops)?;
        let mut rule = self.grammar.as_ref().map(|grammar| grammar.begin()).transpose()?;
        let mut mask = vec![0; logits.len().div_ceil(32)];
        let (mut text, mut tokens, mut first) = (String::new(), 0, None);
        let mut tell = |part: String, text: &mut String| {
            text.push_str(&part);
            if part.is_empty() { Ok(()) } else { show(&part) }
        };
        let finish = loop {
            if tokens >= most {
                break Finish::Length;
            }
            let (prompt, answer) = self.ids.split_at(prompt.len());
            let allowed = match &mut rule {
                Some(rule) => {
                    mask.fill(0);
                    rule.allow(&mut mask)?;
                    Some(mask.as_slice())
                }
                None => None,
            };
            let id = choose(&logits, &self.sampling, History { prompt, answer }, allowed)?;
            if let Some(rule) = &mut rule {
                rule.push(id)?;
            }
            first.get_or_insert_with(|| started.elapsed());
            tokens += 1;
            if self.files.ends.contains(&id) {
                break Finish::Stop;
            }
            tell(stream.push(&self.files.tokenizer, id)?, &mut text)?;
            self.ids.push(id);
            if stream.stopped() {
                break Finish::Stop;
            }
            if interrupt.asked() {
                break Finish::Interrupted;
            }
            if tokens >= most || self.context.len() >= self.context.capacity() {
                break Finish::Length;
            }
            logits = self.model.run(&mut self.context, &[id], 1)?;
        };
        let all = started.elapsed();
        tell(stream.finish(&self.files.tokenizer)?, &mut text)?;
        let first = first.unwrap_or(all);
        let later = tokens.saturating_sub(1);
        Ok(Answer {
            text,
            finish,
            prompt_tokens: prompt.len() - common,
            tokens,
            first_token_seconds: first.as_secs_f64(),
            tokens_per_second: (later > 0).then(|| later as f64 / (all - first).as_secs_f64()),
            backend: D::NAME,
            dtype: self.model.dtype(),
        })
    }
}
