//! `serve`: a model and its adapters over HTTP, until the program is asked to end.

mod again;
mod args;
mod contents;
mod renewal;
mod speech;
#[cfg(all(test, feature = "cpu"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use serde::Serialize;
use trifuse::adapters::engine::AdapterId;
use trifuse::backends::{AnyDevice, Choice};
use trifuse::device::{Device, Kind};
use trifuse::model::{Encoder, EncoderOptions, Text, find};
use trifuse::{DType, Error, Result};
use trifuse_serve::operations::{Operate, OperationsModel, Operator};
use trifuse_serve::queueing::ledger::Outcome as End;
use trifuse_serve::{AdapterRoot, Config, EmbeddingModel, Handle, Keys, Models, Opened, Server};

use super::Outcome;
use super::adapters::Adapters;
use super::interrupt::Interrupt;
use super::output::{Output, Page, Report};
use super::values::{Devices, device_name};
pub use args::Args;
use args::Compat;
use contents::{about, generations};
use renewal::Renewal;

/// How often a signal is looked for.
const STEP: Duration = Duration::from_millis(50);
/// Tokens of a batch on devices that name no number: few, so that nobody waits long for a batch that has begun.
const BATCH_TOKENS: u32 = 2048;

/// What came of a run.
#[derive(Debug, Serialize)]
struct Served {
    listen: SocketAddr,
    model: String,
    accepted: u64,
    finished: u64,
    failed: u64,
    cancelled: u64,
    expired: u64,
}

/// Serves until a signal comes, and then until what is under way has ended.
pub fn run(args: &Args, devices: &Devices, output: &Output) -> Result<Outcome> {
    args.on_device_loss.check()?;
    let interrupt = Interrupt::listen()?;
    let renewal = Renewal::of(args.api_key_file.as_deref())?;
    let mut config = Config::new(args.listen);
    #[cfg(feature = "grpc")]
    {
        config.grpc_listen = args.grpc_listen;
    }
    #[cfg(feature = "otlp")]
    {
        config.traces.clone_from(&args.otlp_endpoint);
    }
    config.keys = args.api_key_file.as_deref().map(Keys::open).transpose()?.unwrap_or_default();
    config.metrics_key = args.metrics_key;
    config.adapter_root = args.adapter_root.as_deref().map(AdapterRoot::open).transpose()?;
    config.on_demand = args.load_on_demand.then_some(args.adapter_room as usize);
    config.threads = args.threads.map_or(config.threads, usize::from);
    config.queue.max_wait = Duration::from_secs_f64(args.max_wait);
    config.limits.drain_delay = Duration::from_secs_f64(args.drain_delay);
    config.limits.drain_timeout = Duration::from_secs_f64(args.drain_timeout);
    config.client_shm = args.allow_client_shm;
    config.vllm_metrics = args.metrics_compat == Some(Compat::Vllm);
    let (notes, told) = channel();
    let mut models = Models::default();
    let mut names = Vec::new();
    if let Some(model) = &args.model {
        let name = args.name.clone().map_or_else(|| name_of(model), Ok)?;
        if speech::is_speaker(model)? {
            models.generator = Some(Arc::new(speech::open(args, devices, model, &name, &notes)?));
        } else {
            let room = args.room();
            let open = |device: &Choice| {
                let (model, adapters, notes) = (model.clone(), args.adapters.clone(), notes.clone());
                let job = Open { model, adapters, room, dtype: args.dtype, batch_tokens: args.batch_tokens, warm: args.warm, notes };
                let own = device.clone();
                let open: trifuse_serve::Open = Box::new(move || job.on(own.open_any()?));
                Ok((device_name(device)?, open))
            };
            let devices = devices.all().iter().map(open).collect::<Result<Vec<_>>>()?;
            models.embeddings = Some(EmbeddingModel { name: name.clone(), devices });
        }
        names.push(name);
    }
    if args.operations {
        // Regions lie on one device, so that operations have the first alone.
        let first = devices.all().first().cloned().unwrap_or(Choice::Auto);
        let device = device_name(&first)?;
        let open = Box::new(move || operator(first.open_any()?, &notes));
        models.operations = Some(OperationsModel { device, open, region_bytes: args.region_bytes });
        names.push("op.attention".into());
    }
    let name = names.join(", ");
    let handle = Server::serve(config, models)?;
    let began = Instant::now();
    told.try_iter().for_each(|note| output.note(note));
    output.note(format_args!("{name} is served on http://{}", handle.addr()));
    #[cfg(feature = "grpc")]
    if let Some(addr) = handle.grpc_addr() {
        output.note(format_args!("gRPC is spoken on {addr}"));
    }
    let ended = until_ended(&handle, || {
        renewal.step(&handle, output);
        interrupt.asked()
    });
    let ledger = handle.ledger();
    let [finished, failed, cancelled, expired] = End::ALL.map(|end| ledger.ended(end));
    let served = Served { listen: handle.addr(), model: name, accepted: ledger.accepted(), finished, failed, cancelled, expired };
    handle.wait();
    if ended.is_err() && args.on_device_loss.reopens(began.elapsed()) {
        output.note("all devices are lost; the server begins anew");
        return Err(again::begin());
    }
    ended?;
    output.report(&served)?;
    Ok(Outcome::Right)
}

/// Waits until the server has ended, which it does once that is asked or no device is left, and what is under way is answered.
fn until_ended(handle: &Handle, asked: impl Fn() -> bool) -> Result<()> {
    let mut lost = false;
    while !handle.is_finished() {
        lost |= handle.is_lost();
        if asked() || lost {
            handle.drain();
        }
        std::thread::sleep(STEP);
    }
    if lost { Err(Error::device("serving", "it takes no more work; start the server again")) } else { Ok(()) }
}

/// The name by which a model is asked for: `organisation/name` as it is, of a folder its last part.
fn name_of(model: &Path) -> Result<String> {
    let last = if model.is_dir() { model.canonicalize().map_err(Error::io(model, "read"))?.file_name().map(PathBuf::from) } else { Some(model.into()) };
    // The name as it was given is taken before what it may be a link to.
    let given = if model.is_dir() { model.file_name().map(PathBuf::from) } else { None };
    let name = given.or(last).and_then(|name| name.to_str().map(|name| name.trim_start_matches('.').to_owned()));
    name.filter(|name| !name.is_empty()).ok_or_else(|| Error::invalid("--name", "a name for the model, as its folder has none in UTF-8", "none"))
}

/// Opens the model on the thread of its device.
struct Open {
    model: PathBuf,
    adapters: Vec<PathBuf>,
    /// Adapters that may come while it runs and need no growth, where any may come.
    room: Option<u32>,
    dtype: Option<DType>,
    batch_tokens: Option<u32>,
    /// Whether it is to have run in every shape before the first request.
    warm: bool,
    /// What is to be told of it.
    notes: Sender<String>,
}

impl Open {
    fn on(self, device: AnyDevice) -> Result<Opened> {
        let note = |text: String| drop(self.notes.send(text));
        let (backend, hints) = (device.backend(), device.hints());
        let dtype = self.dtype.or(hints.dtype).unwrap_or(DType::F32);
        let warm = self.warm || device.caps().kind != Kind::Cpu;
        let folder = find(&self.model)?;
        let reserve = self.room.unwrap_or(0);
        let mut encoder = Encoder::open(Arc::new(device), &folder, EncoderOptions { dtype, reserve, ..EncoderOptions::default() })?;
        let text = Text::open(&folder, encoder.config())?;
        let attached = Adapters::attach(&mut encoder, &self.model, &self.adapters, self.room.is_some())?;
        attached.notes().iter().for_each(|text| note(text.clone()));
        attached.refused().for_each(|(name, reason)| note(format!("adapter {name} is left out: {reason}")));
        let about = |id: &AdapterId| encoder.engine().and_then(|engine| about(&*engine.encoded(*id).ok()?));
        let adapters = generations(attached.attached(), &about, &self.adapters)?;
        note(format!("{dtype} on {backend}, {} adapters", adapters.len()));
        let (width, vocabulary) = (encoder.config().hidden as usize, encoder.config().vocabulary);
        let batch_tokens = self.batch_tokens.or(hints.batch_tokens).unwrap_or(BATCH_TOKENS) as usize;
        Ok(Opened { embedder: Box::new(encoder), text, adapters, width, vocabulary, batch_tokens, warm })
    }
}

/// What runs operations on a device, and tells of it.
fn operator(device: AnyDevice, notes: &Sender<String>) -> Result<Box<dyn Operate>> {
    drop(notes.send(format!("operations on {}, {}", device.backend(), device.caps().name)));
    Ok(Box::new(Operator::new(Arc::new(device))?))
}

impl Report for Served {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let Self { accepted, finished, failed, cancelled, expired, .. } = self;
        page.line(format_args!("{accepted} requests: {finished} answered, {failed} failed, {cancelled} given up by their callers, {expired} too late"))
    }
}
