//! A language model for the server: its files, its engine, its adapters.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use trifuse::adapters::engine::ForModel;
use trifuse::backends::AnyDevice;
use trifuse::device::Device;
use trifuse::llm::engine::{Engine, EngineOptions};
use trifuse::llm::{Files, Model};
use trifuse::model::find;
use trifuse::session::Counters;
use trifuse::{DType, Error, Result};
use trifuse_serve::{EngineOn, LanguageModel, Speech};

use super::args::Args;
use super::contents::{about, generations};
use crate::cli::adapters::Found;
use crate::cli::start::Starting;
use crate::cli::values::{Devices, device_name};

/// Tokens of a prompt and its answer together, where nobody says how many: more take memory that few requests use.
const CONTEXT: usize = 4096;
/// The longest configuration, in bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Whether a model is a language model, and no encoder: a GGUF file, or a configuration of a decoder.
///
/// # Errors
/// A folder that is not there; a configuration that cannot be read.
pub fn is_speaker(model: &Path) -> Result<bool> {
    if model.is_file() {
        return Ok(true);
    }
    let path = find(model)?.join("config.json");
    if !path.is_file() {
        return Ok(true);
    }
    let bytes = trifuse::read::read_file(&path, MAX_CONFIG_BYTES)?;
    let config: serde_json::Value = serde_json::from_slice(&bytes).map_err(|error| Error::input(&path, error.to_string()))?;
    Ok(config["model_type"].as_str().is_some_and(|kind| kind != "bert"))
}

/// Opens a language model on each of the devices.
///
/// # Errors
/// Files that are no such model; a device that is not there, or has no room.
pub fn open(args: &Args, devices: &Devices, model: &Path, name: &str, notes: &Sender<String>) -> Result<LanguageModel> {
    let (mut engines, mut speech) = (Vec::new(), None);
    for device in devices.all() {
        let mut starting = Starting::now();
        let opened = starting.open(device)?;
        let (engine, own) = Open { args, model, name, at: device_name(device)?, starting, notes }.on(opened)?;
        engines.push(engine);
        speech.get_or_insert(own);
    }
    LanguageModel::start(engines, speech.ok_or_else(|| Error::invalid("--backend", "at least one device", "none"))?)
}

/// Opens a language model on one device.
struct Open<'a> {
    args: &'a Args,
    model: &'a Path,
    name: &'a str,
    /// The device's name.
    at: String,
    starting: Starting,
    /// What is to be told of it.
    notes: &'a Sender<String>,
}

impl Open<'_> {
    fn on(self, device: AnyDevice) -> Result<(EngineOn, Speech)> {
        let Self { args, model, name, at, mut starting, notes } = self;
        let note = |text: String| drop(notes.send(text));
        let (backend, hints) = (device.backend(), device.hints());
        let dtype = args.dtype.or(hints.dtype).unwrap_or(DType::F32);
        let files = Files::open(model)?;
        let found = Found::at(&args.adapters, model, &|path, shape| files.config.fits(path, shape))?;
        found.notes.iter().for_each(|text| note(text.clone()));
        found.refused.iter().for_each(|(name, reason)| note(format!("adapter {name} is left out: {reason}")));
        let most = files.config.context;
        let context = args.context.map_or(most.min(CONTEXT), |context| context as usize);
        let budget = args.batch_tokens.map_or(EngineOptions::default().budget, |tokens| tokens as usize).max(args.seats as usize);
        let mut options = EngineOptions::default().with_seats(args.seats).with_budget(budget).with_context(Some(context)).with_invariant(args.invariant);
        let mut source = found.source;
        if let Some(room) = args.room() {
            options = options.with_reserve(room);
            source = Some(Box::new(ForModel::new(source, (0..files.config.layers).flat_map(|layer| files.config.projections(layer)))));
        }
        let mut engine = Engine::new(Model::open(Arc::new(device), &files, dtype)?, options, source)?;
        let known = |name: &String| about(&*engine.encoded_adapter(name).ok()?);
        let adapters = generations(engine.adapters().map(|name| (name, name.to_owned())), &known, &args.adapters)?;
        note(format!("{dtype} on {backend}, {} adapters, {} requests of {context} tokens at once", adapters.len(), args.seats));
        if args.warm {
            let (began, before) = (Instant::now(), engine.counters());
            engine.warm_up()?;
            let Counters { plans, graphs, bytes, .. } = engine.counters() - before;
            note(format!("warm after {:.1} s: {plans} plans, {graphs} graphs, {bytes} bytes", began.elapsed().as_secs_f64()));
        }
        starting.loaded(engine.model().loading());
        starting.ended(engine.counters());
        starting.told().into_iter().for_each(|start| note(start.sentence("the first request")));
        let Files { tokenizer, template, ends, .. } = files;
        let engine = EngineOn::start(at, engine)?;
        Ok((engine, Speech { name: name.to_owned(), tokenizer, template, ends, adapters }))
    }
}
