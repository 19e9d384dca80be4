//! The text of an answer as it comes: tokens in, pieces of text out, ended by a stop string or by the engine.

use std::sync::Arc;
use std::time::Instant;

use trifuse::llm::schedule::Finish;
use trifuse::llm::tokens::Detokenizer;

use super::meters::Meter;
use crate::account::Account;
use crate::generate::{Coming, Generate, Token};
use crate::metrics::{Finished, Metrics};
use crate::queueing::ticket::Failure;

/// A text that is being written.
pub struct Speech {
    coming: Coming,
    text: Detokenizer,
    generator: Arc<dyn Generate>,
    metrics: Arc<Metrics>,
    /// When the prompt was handed to the engine.
    began: Instant,
    /// Whether how it ended was counted.
    ended: bool,
    /// When the last token came, or before the first one when the prompt was handed to the engine.
    since: Instant,
    /// Tokens that no part has had yet. They stay where nobody waits for the next part to its end.
    fresh: Vec<Token>,
    /// The number of its tokens so far.
    pub tokens: usize,
    of: Of,
}

/// What a text belongs to.
pub struct Of {
    /// The tokens of its prompt.
    pub prompt: usize,
    /// What is known of its request, which has not ended before the text has.
    pub account: Account,
    /// What its key has asked for, where that is bounded.
    pub meter: Option<Arc<Meter>>,
}

/// A part of a text.
#[derive(Debug)]
pub struct Part {
    /// What can be shown now.
    pub text: String,
    /// The tokens that came since the part before.
    pub tokens: Vec<Token>,
    /// Why the text ends with this part, where it does.
    pub finish: Option<&'static str>,
}

impl Speech {
    /// The text of `coming`, whose prompt of so many tokens the engine got at `since`.
    pub fn new(coming: Coming, text: Detokenizer, generator: Arc<dyn Generate>, metrics: Arc<Metrics>, since: Instant, of: Of) -> Self {
        Self { coming, text, generator, metrics, began: since, ended: false, since, fresh: Vec::new(), tokens: 0, of }
    }

    /// The next part. Behind one that ends the text there is none.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn next(&mut self) -> Result<Part, Failure> {
        while let Some(token) = self.coming.token().await {
            if token.of_prompt {
                self.fresh.push(token);
                continue;
            }
            let now = Instant::now();
            let written = &self.metrics.written;
            if self.tokens == 0 {
                self.of.account.begun(now - self.since);
            }
            let times = if self.tokens == 0 { &written.first_token } else { &written.next_token };
            times.observe((now - self.since).as_secs_f64());
            self.since = now;
            self.tokens += 1;
            let generator = &self.generator;
            let piece = self.text.push(&|ids: &[u32]| generator.decode(ids), token.id);
            self.fresh.push(token);
            if piece.stop.is_some() {
                self.coming.satisfied();
                self.end(Finished::Stop);
                return Ok(self.part(piece.text, Some("stop")));
            }
            if !piece.text.is_empty() {
                return Ok(self.part(piece.text, None));
            }
        }
        let finish = match self.coming.end().await {
            Ok(Finish::Stop) => Ok(Finished::Stop),
            Ok(Finish::Length) => Ok(Finished::Length),
            Ok(Finish::Deadline) => Err(Failure::Expired),
            Ok(other) => Err(Failure::Internal(format!("the engine ended by {other:?}"))),
            Err(failure) => Err(failure),
        };
        self.end(*finish.as_ref().unwrap_or(&Finished::Error));
        let finish = finish?;
        let text = self.text.finish().text;
        Ok(self.part(text, Some(finish.name())))
    }

    /// Counts how it ended, once.
    fn end(&mut self, how: Finished) {
        if !std::mem::replace(&mut self.ended, true) {
            self.metrics.written.end(how, self.began.elapsed());
            self.of.account.has(self.of.prompt, self.tokens);
            if matches!(how, Finished::Abort | Finished::Error) {
                self.of.account.failed(how.name());
            }
            if let Some(meter) = &self.of.meter {
                meter.wrote(self.tokens);
            }
        }
    }

    fn part(&mut self, text: String, finish: Option<&'static str>) -> Part {
        Part { text, tokens: std::mem::take(&mut self.fresh), finish }
    }

    /// The whole text, its tokens, and why it ended.
    ///
    /// # Errors
    /// The engine failed.
    pub async fn whole(&mut self) -> Result<(Part, &'static str), Failure> {
        let mut whole = Part { text: String::new(), tokens: Vec::new(), finish: None };
        loop {
            let part = self.next().await?;
            whole.text += &part.text;
            whole.tokens.extend(part.tokens);
            if let Some(finish) = part.finish {
                return Ok((whole, finish));
            }
        }
    }
}

impl Drop for Speech {
    fn drop(&mut self) {
        // Where it has not ended its caller is gone.
        self.end(Finished::Abort);
    }
}
