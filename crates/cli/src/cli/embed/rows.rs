//! One window of lines: tokens, batches sorted by length, and results in the order of the lines.

use trifuse::Result;
use trifuse::adapters::engine::AdapterId;
use trifuse::backends::AnyDevice;
use trifuse::model::{Encoder, Row, Text};

use super::input::Request;
use crate::cli::adapters::Adapters;

/// What does the work.
pub struct Worker<'a> {
    pub encoder: Encoder<AnyDevice>,
    pub text: Text,
    pub adapters: Adapters,
    /// The adapter of lines that name none.
    pub default: Option<&'a str>,
    pub truncate: bool,
    pub batch_tokens: usize,
}

/// What came of one line.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// The adapter that was used, where one was named.
    pub adapter: Option<String>,
    pub tokens: usize,
    /// Whether the end of the text was left out.
    pub cut: bool,
    /// The vector, or why there is none.
    pub result: Result<Vec<f32>, String>,
}

/// A line that the model can take.
struct Ready {
    line: usize,
    ids: Vec<i32>,
    adapter: Option<AdapterId>,
}

impl Worker<'_> {
    /// The adapter that a line is for, by its own word or by default.
    fn named(&self, request: &Request) -> Option<String> {
        request.adapter.clone().or_else(|| self.default.map(str::to_owned))
    }

    /// The embeddings of `lines`, in their order; `done` is called with how many there are so far.
    ///
    /// # Errors
    /// What is not one line's fault: the device's; what `done` gives.
    pub fn rows(&mut self, lines: &[Result<Request, String>], done: &mut dyn FnMut(usize) -> Result<()>) -> Result<Vec<Embedding>> {
        let texts: Vec<&str> = lines.iter().flatten().map(|request| request.text.as_str()).collect();
        let mut tokens = self.text.tokens_each(&texts).into_iter();
        let mut rows = Vec::with_capacity(lines.len());
        let mut ready = Vec::new();
        for (line, request) in lines.iter().enumerate() {
            let mut row = Embedding { adapter: None, tokens: 0, cut: false, result: Ok(Vec::new()) };
            match (request, request.is_ok().then(|| tokens.next()).flatten()) {
                (Ok(request), Some(Err(error))) => {
                    row.adapter = self.named(request);
                    row.result = Err(format!("text: {error}"));
                }
                (Ok(request), Some(Ok(tokens))) => {
                    row.adapter = self.named(request);
                    row.cut = tokens.cut;
                    let adapter = row.adapter.as_deref().map(|name| self.adapters.get(name)).transpose();
                    match adapter {
                        Err(reason) => row.result = Err(reason),
                        // Nothing but what the tokenizer leaves out, where it sets no marks at the ends.
                        Ok(_) if tokens.ids.is_empty() => row.result = Err("text: expected at least one token, found none".into()),
                        Ok(_) if tokens.cut && !self.truncate => {
                            let most = self.text.max_tokens();
                            row.result = Err(format!("text: expected at most {most} tokens, found more; --truncate leaves out the end"));
                        }
                        Ok(adapter) => {
                            row.tokens = tokens.ids.len();
                            ready.push(Ready { line, ids: tokens.ids, adapter });
                        }
                    }
                }
                (Err(reason), _) => row.result = Err(reason.clone()),
                (Ok(_), None) => row.result = Err("text: expected tokens, found none".into()),
            }
            rows.push(row);
        }
        // Sentences of like length lie in one batch: attention then has few empty tiles.
        ready.sort_by_key(|ready| std::cmp::Reverse(ready.ids.len()));
        let mut finished = rows.len() - ready.len();
        let batches = batches(&ready, self.batch_tokens);
        let sentences = batches.iter().map(|batch| batch.iter().map(|ready| Row { ids: &ready.ids, adapter: ready.adapter }).collect());
        let mut taken = batches.iter();
        self.encoder.embed_each(sentences, &mut |values| {
            let Some(batch) = taken.next() else { return Ok(()) };
            for (ready, vector) in batch.iter().zip(values.chunks_exact(values.len() / batch.len())) {
                rows[ready.line].result = match vector.iter().all(|value| value.is_finite()) {
                    true => Ok(vector.to_vec()),
                    false => Err("the embedding is not finite: try --dtype bf16 or f32".into()),
                };
            }
            finished += batch.len();
            done(finished)
        })?;
        Ok(rows)
    }
}

/// Runs of `lines` of at most that many tokens, or one line each.
fn batches(lines: &[Ready], most: usize) -> Vec<&[Ready]> {
    let mut batches = Vec::new();
    let mut rest = lines;
    while !rest.is_empty() {
        let mut sum = 0;
        let fitting = rest.iter().take_while(|ready| {
            sum += ready.ids.len();
            sum <= most
        });
        let (batch, later) = rest.split_at(fitting.count().max(1));
        batches.push(batch);
        rest = later;
    }
    batches
}
