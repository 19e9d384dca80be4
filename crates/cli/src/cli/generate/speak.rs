//! A model that answers: tokens in, text out as it comes.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use trifuse::backends::AnyDevice;
use trifuse::llm::engine::{Engine, Output, Request};
use trifuse::llm::sample::SamplingParams;
use trifuse::llm::schedule::Finish as Reason;
use trifuse::llm::{Files, Grammar, TextStream};
use trifuse::{DType, Error, Result};

use crate::cli::interrupt::Interrupt;
use crate::cli::start::{Start, Starting};

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
    /// What the time from the start of the command to its first token went into.
    pub start: Option<Start>,
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

/// A model, and how tokens are chosen. Texts that begin alike share what was computed of them.
pub struct Speaker<'a> {
    pub files: &'a Files,
    engine: Engine<AnyDevice>,
    backend: &'static str,
    how: How,
    stops: &'a [String],
    starting: Starting,
}

/// How answers are made.
#[derive(Debug, Default)]
pub struct How {
    pub sampling: SamplingParams,
    /// What answers are held to; `None` is any text.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// The adapter's name; `None` is the model alone.
    pub adapter: Option<String>,
}

impl<'a> Speaker<'a> {
    /// A speaker that answers by an engine of the model on a backend of that name, with what is known of the start until now.
    pub fn new((engine, backend): (Engine<AnyDevice>, &'static str), files: &'a Files, how: How, stops: &'a [String], mut starting: Starting) -> Self {
        starting.loaded(engine.model().loading());
        Self { files, engine, backend, how, stops, starting }
    }

    /// Tokens that there is room for.
    pub fn room(&self) -> usize {
        self.engine.context()
    }

    /// Goes on from `prompt`, the whole text so far, with up to `most` tokens. `show` is given the text as it comes.
    ///
    /// # Errors
    /// An empty prompt; one that leaves no room; a device that fails; whatever `show` fails with.
    pub fn answer(&mut self, prompt: &[u32], most: usize, interrupt: &Interrupt, show: &mut dyn FnMut(&str) -> Result<()>) -> Result<Answer> {
        let started = Instant::now();
        self.starting.asked(self.engine.counters());
        let How { sampling, grammar, adapter } = &self.how;
        let asked = Request::new(prompt.to_vec(), most).with_sampling(sampling.clone()).with_stop(self.files.ends.clone());
        let request = self.engine.submit(asked.with_grammar(grammar.clone()).with_adapter(adapter.clone()))?;
        let mut stream = TextStream::new(self.stops)?;
        let (mut text, mut tokens, mut first, mut outputs) = (String::new(), 0_usize, None, Vec::new());
        let mut tell = |part: String, text: &mut String| {
            text.push_str(&part);
            if part.is_empty() { Ok(()) } else { show(&part) }
        };
        let (finish, cached) = loop {
            self.engine.step(0, &mut outputs)?;
            let mut ended = None;
            for output in outputs.drain(..) {
                match output {
                    Output::Token { choice, .. } => {
                        first.get_or_insert_with(|| started.elapsed());
                        self.starting.ended(self.engine.counters());
                        tokens += 1;
                        if !self.files.ends.contains(&choice.token) {
                            tell(stream.push(&self.files.tokenizer, choice.token)?, &mut text)?;
                        }
                    }
                    Output::Ended { error: Some(error), .. } => return Err(Error::invalid("answer", "one that can be computed", error)),
                    Output::Ended { finished, error: None } => ended = Some(finished),
                    Output::Prompt { .. } => {}
                }
            }
            let early =
                if stream.stopped() { Some((Finish::Stop, Reason::Stop)) } else { interrupt.asked().then_some((Finish::Interrupted, Reason::Cancelled)) };
            match (ended, early) {
                (Some(finished), early) => {
                    let late = if finished.reason == Reason::Stop { Finish::Stop } else { Finish::Length };
                    break (early.map_or(late, |(finish, _)| if stream.stopped() { finish } else { late }), finished.cached);
                }
                (None, Some((finish, reason))) => break (finish, self.engine.finish(request, reason)?.map_or(0, |finished| finished.cached)),
                (None, None) => {}
            }
        };
        let all = started.elapsed();
        tell(stream.finish(&self.files.tokenizer)?, &mut text)?;
        let first = first.unwrap_or(all);
        let later = tokens.saturating_sub(1);
        Ok(Answer {
            text,
            finish,
            prompt_tokens: prompt.len().saturating_sub(cached),
            tokens,
            first_token_seconds: first.as_secs_f64(),
            tokens_per_second: (later > 0).then(|| later as f64 / (all - first).as_secs_f64()),
            backend: self.backend,
            dtype: self.engine.model().dtype(),
            start: self.starting.told(),
        })
    }
}
