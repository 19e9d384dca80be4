//! How fast a model reads prompts and writes answers, by the number of requests that run at once.

use std::time::Instant;

use serde::Serialize;
use trifuse::backend::Backend;
use trifuse::llm::Model;
use trifuse::llm::engine::{Engine, EngineOptions, Output, Request};
use trifuse::{Error, Result};

use crate::cli::interrupt::Interrupt;

/// What is measured.
#[derive(Debug, clap::Args)]
pub struct Load {
    /// Requests that run at once, for the suite speed
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64], value_name = "N,N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Vec<u32>,
    /// Tokens of each prompt, for the suite speed
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    prompt: u32,
    /// Tokens of each answer, for the suite speed
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    answer: u32,
    /// Tokens of a step, at most, for the suite speed
    #[arg(long, default_value_t = 2048, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    budget: u32,
}

/// What a number of requests took.
#[derive(Debug, Serialize)]
pub struct Speed {
    pub model: String,
    /// Requests that ran at once.
    pub batch: u32,
    /// Tokens of each prompt, and of each answer.
    pub prompt: u32,
    pub answer: u32,
    /// From the first request to the last one's first token.
    pub prefill_seconds: f64,
    pub prefill_tokens_per_second: f64,
    /// Steps in which each request got a token.
    pub decode_steps: usize,
    /// Milliseconds of such a step: the median, and what 95 of 100 do not exceed.
    pub step_ms_p50: f64,
    pub step_ms_p95: f64,
    pub decode_tokens_per_second: f64,
}

/// Measures every batch of `load`, each twice: the second time counts.
///
/// # Errors
/// Prompts and answers that are longer than the model's context; a device that fails.
pub fn measure<B: Backend>(name: &str, model: Model<B>, load: &Load, interrupt: &Interrupt) -> Result<Vec<Speed>> {
    let seats = load.batch.iter().copied().max().unwrap_or(1);
    let context = load.prompt as usize + load.answer as usize;
    let options = EngineOptions::default().with_seats(seats).with_budget((load.budget as usize).max(seats as usize)).with_context(Some(context));
    let mut engine = Engine::new(model, options, None)?;
    let mut found = Vec::new();
    for (number, &batch) in load.batch.iter().enumerate() {
        let mut time = |salt| run((name, &mut engine), load, batch, salt, interrupt);
        // Who interrupts keeps what was measured.
        if time(2 * number as u64)?.is_none() {
            break;
        }
        let Some(speed) = time(2 * number as u64 + 1)? else { break };
        found.push(speed);
    }
    Ok(found)
}

/// Runs a batch to its end; `None` where that was interrupted. A salt of its own keeps it from the pages of those before.
fn run<B: Backend>((name, engine): (&str, &mut Engine<B>), load: &Load, batch: u32, salt: u64, interrupt: &Interrupt) -> Result<Option<Speed>> {
    let vocabulary = engine.model().config().vocabulary;
    let mut state = 0x9E37_79B9_7F4A_7C15 ^ salt;
    let mut id = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % u64::from(vocabulary)) as u32
    };
    let started = Instant::now();
    for _ in 0..batch {
        let prompt = (0..load.prompt).map(|_| id()).collect();
        engine.submit(Request::new(prompt, load.answer as usize).with_salt(Some(salt.to_le_bytes().to_vec())))?;
    }
    let (mut first, mut begun, mut steps, mut outputs) = (None, 0, Vec::new(), Vec::new());
    while !engine.is_idle() {
        if interrupt.asked() {
            return Ok(None);
        }
        let before = Instant::now();
        engine.step(0, &mut outputs)?;
        let took = before.elapsed();
        let tokens = outputs.iter().filter(|output| matches!(output, Output::Token { .. })).count();
        let failed = outputs.drain(..).find_map(|output| if let Output::Ended { error, .. } = output { error } else { None });
        if let Some(error) = failed {
            return Err(Error::invalid("request", "an answer", error));
        }
        if begun == batch && tokens == batch as usize {
            steps.push(took.as_secs_f64());
        }
        // Who has one token goes on with one a step: the prompts are read when all have theirs.
        if begun < batch {
            begun = begun.max(tokens as u32);
            if begun == batch {
                first = Some(started.elapsed());
            }
        }
    }
    steps.sort_by(f64::total_cmp);
    let at = |share: f64| steps.get(((steps.len() as f64 - 1.0) * share) as usize).copied().unwrap_or(f64::NAN);
    let prefill = first.unwrap_or_else(|| started.elapsed()).as_secs_f64();
    Ok(Some(Speed {
        model: name.to_owned(),
        batch,
        prompt: load.prompt,
        answer: load.answer,
        prefill_seconds: prefill,
        prefill_tokens_per_second: f64::from(batch) * f64::from(load.prompt) / prefill,
        decode_steps: steps.len(),
        step_ms_p50: 1e3 * at(0.5),
        step_ms_p95: 1e3 * at(0.95),
        decode_tokens_per_second: f64::from(batch) / at(0.5),
    }))
}
