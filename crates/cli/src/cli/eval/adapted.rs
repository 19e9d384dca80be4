//! How well a model foretells texts with each of its adapters: windows are prompts of an engine, which tells how probable their tokens were.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use trifuse::backends::AnyDevice;
use trifuse::llm::engine::{Engine, EngineOptions, Output as Told, Request};
use trifuse::llm::perplexity::Loss;
use trifuse::{DType, Error, Result};

use super::ppl::Text;
use super::variant::Variant;
use crate::cli::adapters::Found;
use crate::cli::interrupt::Interrupt;
use crate::cli::output::Output;
use crate::cli::progress::Progress;

/// Windows that run at once.
const SEATS: u32 = 32;
/// Tokens of a step, at most.
const BUDGET: usize = 2048;

/// The adapters that a model is scored with.
#[derive(Debug, clap::Args)]
pub struct Adapted {
    /// A bundle of adapters; or adapter folders, as `compress` takes them: [NAME=]DIR (may be given again)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["baseline_model", "drawn"])]
    adapters: Vec<PathBuf>,
    /// An adapter that is scored, by its name (may be given again); by default all
    #[arg(long, value_name = "NAME", requires = "adapters")]
    adapter: Vec<String>,
}

/// An engine of a model, and the names of what its texts are scored with: `None` is the model alone.
pub struct Ready {
    engine: Engine<AnyDevice>,
    names: Vec<Option<String>>,
}

impl Adapted {
    /// Whether any adapters are given.
    pub fn any(&self) -> bool {
        !self.adapters.is_empty()
    }

    /// Puts a model and its adapters on a device, for windows of `length` tokens. An adapter that does not fit is told of, unless it was asked for.
    ///
    /// # Errors
    /// Paths that hold no adapters; a name that none has; a window that leaves no token of the model's context; no device memory.
    pub fn ready(&self, variant: &Variant, device: Arc<AnyDevice>, dtype: DType, length: usize, output: &Output) -> Result<Ready> {
        let config = &variant.files.config;
        if length >= config.context {
            return Err(Error::invalid("--window", format!("fewer than the {} tokens that the model was made for", config.context), length));
        }
        let Found { source, refused, notes } = Found::at(&self.adapters, Path::new(&variant.name), &|path, shape| config.fits(path, shape))?;
        notes.into_iter().for_each(|note| output.note(note));
        let model = variant.model(device, dtype)?;
        let options = EngineOptions::default().with_seats(SEATS).with_budget(length.clamp(SEATS as usize, BUDGET)).with_context(Some(length + 1));
        let engine = Engine::new(model, options, source)?;
        let known: Vec<String> = engine.adapters().map(str::to_owned).collect();
        if let Some(name) = self.adapter.iter().find(|name| !known.contains(name)) {
            let why = refused.get(name).map_or_else(|| format!("{name:?}"), |why| format!("{name:?}, which cannot be used: {why}"));
            return Err(Error::invalid("--adapter", format!("one of {}", known.join(", ")), why));
        }
        refused.iter().for_each(|(name, why)| output.note(format!("adapter {name} is left out: {why}")));
        let asked = if self.adapter.is_empty() { known } else { self.adapter.clone() };
        Ok(Ready { engine, names: [None].into_iter().chain(asked.into_iter().map(Some)).collect() })
    }
}

impl Ready {
    /// Scores the windows of a text without an adapter, and with each. What was not done when it was stopped is left out.
    ///
    /// # Errors
    /// An adapter that cannot be read; a device that fails.
    pub fn score<'a>(&mut self, model: &str, (path, cut): (&'a Path, &[Vec<u32>]), output: &Output, interrupt: &Interrupt) -> Result<Vec<Text<'a>>> {
        let progress = Progress::new(output, "windows", (self.names.len() * cut.len()) as u64);
        let mut scored = Vec::new();
        for name in &self.names {
            let started = Instant::now();
            let Some(losses) = losses(&mut self.engine, name.as_deref(), cut, &progress, interrupt)? else { break };
            scored.push(Text { adapter: name.clone(), seconds: started.elapsed().as_secs_f64(), ..Text::of(model, path, &losses)? });
        }
        Ok(scored)
    }
}

/// The loss of each window with an adapter; `None` where it was stopped before the last.
fn losses(engine: &mut Engine<AnyDevice>, adapter: Option<&str>, cut: &[Vec<u32>], progress: &Progress, interrupt: &Interrupt) -> Result<Option<Vec<Loss>>> {
    let mut places = HashMap::new();
    for (place, window) in cut.iter().enumerate() {
        // One token is drawn, and not looked at: an engine answers each prompt.
        let request = Request::new(window.clone(), 1).with_adapter(adapter.map(str::to_owned)).with_prompt_logprobs(Some(0));
        places.insert(engine.submit(request)?, place);
    }
    let (mut losses, mut told) = (vec![Loss { tokens: 0, nats: 0.0 }; cut.len()], Vec::new());
    while !engine.is_idle() {
        if interrupt.asked() {
            return Ok(None);
        }
        engine.step(0, &mut told)?;
        for told in told.drain(..) {
            match told {
                Told::Prompt { request, choices } => {
                    if let Some(loss) = places.get(&request).and_then(|place| losses.get_mut(*place)) {
                        loss.tokens += choices.len();
                        loss.nats -= choices.iter().map(|choice| choice.log_probability).sum::<f64>();
                    }
                }
                Told::Token { .. } => {}
                Told::Ended { error: Some(error), .. } => return Err(Error::invalid("window", "one that the engine reads", error)),
                Told::Ended { error: None, .. } => progress.step(),
            }
        }
    }
    match losses.iter().find(|loss| !loss.nats.is_finite()) {
        Some(loss) => Err(Error::invalid("losses", "finite numbers; take bf16 or f32", loss.nats)),
        None => Ok(Some(losses)),
    }
}
