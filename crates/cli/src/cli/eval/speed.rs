//! How fast a model reads prompts and writes answers, by the number of requests that run at once.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use trifuse::adapters::engine::AdapterSource;
use trifuse::backends::AnyDevice;
use trifuse::llm::Model;
use trifuse::llm::engine::{Engine, EngineOptions, Output};
use trifuse::{Error, Result};

use super::drawn::Adapters;
use super::launches::Timed;
use super::load::{Load, submit};
use crate::cli::interrupt::Interrupt;
use crate::cli::start::Starting;

/// What a number of requests took.
#[derive(Debug, Serialize)]
pub struct Speed {
    pub model: String,
    /// Requests that ran at once.
    pub batch: u32,
    /// Adapters that they had in turn.
    pub adapters: u32,
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

/// Measures every batch of `load` with every number of adapters that it has room for, each twice: the second time counts. `starting` is told of the
/// first token. Behind each batch the launches of its steps are timed, with a prompt's where the batch is the largest.
///
/// # Errors
/// Prompts and answers that are longer than the model's context; targets that the model does not have; a device that fails.
pub fn measure(
    name: &str,
    mut model: Model<AnyDevice>,
    load: &Load,
    (starting, timed): (&mut Starting, &mut Timed),
    interrupt: &Interrupt,
) -> Result<Vec<Speed>> {
    starting.loaded(model.loading());
    let device = Arc::clone(model.session().device());
    let seats = load.batch.iter().copied().max().unwrap_or(1);
    let context = load.prompt as usize + load.answer as usize;
    let most = load.drawn_adapters.iter().copied().max().unwrap_or(0);
    let options = EngineOptions::default().with_seats(seats).with_budget((load.budget as usize).max(seats as usize)).with_context(Some(context));
    let options = options.with_adapters(most.max(1)).with_invariant(load.invariant).with_page(load.page);
    let adapters = if most > 0 { Some(Box::new(Adapters::new(model.config(), most, load.rank, &load.targets)?) as Box<dyn AdapterSource>) } else { None };
    let mut engine = Engine::new(model, options, adapters)?;
    let mut found = Vec::new();
    // No more adapters than requests: the others would not be used.
    let runs = load.drawn_adapters.iter().flat_map(|&adapters| load.batch.iter().map(move |&batch| (batch, adapters)));
    for (number, (batch, adapters)) in runs.filter(|(batch, adapters)| adapters <= batch).enumerate() {
        let mut time = |salt| run((name, &mut engine), load, (batch, adapters), salt, (&mut *starting, interrupt));
        // Who interrupts keeps what was measured.
        if time(2 * number as u64)?.is_none() {
            break;
        }
        let Some(speed) = time(2 * number as u64 + 1)? else { break };
        found.push(speed);
        if load.launches > 0 {
            // A salt of neither run.
            let how = (u64::MAX - number as u64, batch == seats);
            timed.measure((name, &device, &mut engine), load, (batch, adapters), how, interrupt)?;
        }
    }
    Ok(found)
}

/// Runs a batch to its end; `None` where that was interrupted.
fn run(
    (name, engine): (&str, &mut Engine<AnyDevice>),
    load: &Load,
    (batch, adapters): (u32, u32),
    salt: u64,
    (starting, interrupt): (&mut Starting, &Interrupt),
) -> Result<Option<Speed>> {
    let started = Instant::now();
    starting.asked(engine.counters());
    submit(engine, load, (batch, adapters), salt)?;
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
        if tokens > 0 {
            starting.ended(engine.counters());
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
        adapters,
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
