//! The engine: what it holds, and who comes and goes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::adapted::Adapted;
use super::buckets::{Buckets, FEW};
use super::flight::Flight;
use super::gather::Gather;
use super::options::{EngineOptions, Request};
use super::sampler::Draws;
use super::timed::Timed;
use crate::adapters::encoded::EncodedAdapter;
use crate::adapters::engine::{AdapterId, AdapterSource, EngineOptions as AdapterOptions};
use crate::backend::Backend;
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result, ensure};
use crate::llm::cache::Digest;
use crate::llm::files::Files;
use crate::llm::grammar::Rule;
use crate::llm::head::Head;
use crate::llm::model::Model;
use crate::llm::plans::Arena;
use crate::llm::pools::{Pools, buffer_bytes, token_bytes};
use crate::llm::sample::{Choice, SamplingParams};
use crate::llm::schedule::{self, Finish, Finished, Options, Plan, Scheduler, Usage};
use crate::llm::shape::PoolShape;
use crate::llm::step::RequestId;

/// Memory for K and V where the device does not tell how much it has.
const CACHE_BYTES: u64 = 1 << 30;
/// The most rows whose logits are computed together.
const HEAD_ROWS: usize = 256;

/// A request that has not ended.
pub(super) struct Live {
    pub(super) sampling: SamplingParams,
    /// The prompt and the answer so far.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt: usize,
    adapter: Option<AdapterId>,
    /// Where the prompt's tokens are told of, with how many others each.
    pub(super) prompt_logprobs: Option<u32>,
    /// The last place of the prompt that was told of.
    pub(super) told: usize,
    /// Where the answer is held to a grammar, how far it has come.
    pub(super) rule: Option<Box<dyn Rule>>,
}

/// A model that answers many requests at once.
pub struct Engine<D: Backend> {
    pub(super) model: Model<D>,
    pub(super) pools: Pools<D>,
    pub(super) arena: Arena<D>,
    pub(super) buckets: Buckets<D>,
    pub(super) heads: HashMap<usize, Head<D>>,
    pub(super) gathers: HashMap<usize, Gather<D>>,
    pub(super) draws: Draws<D>,
    pub(super) adapted: Option<Adapted<D>>,
    pub(super) scheduler: Scheduler,
    /// The most rows, sequences and pages of a sequence that a step has.
    pub(super) most: [usize; 3],
    pub(super) context: usize,
    pub(super) invariant: bool,
    /// Whether a step may be launched before the tokens of the one before it are read.
    pub(super) ahead: bool,
    pub(super) live: HashMap<RequestId, Live>,
    /// The step in the device's queue whose tokens are not read.
    pub(super) flight: Option<Flight<D>>,
    /// A plan that is done with, for its memory.
    pub(super) spare: Plan,
    /// Whether the last plan asked for adapters.
    pub(super) loading: bool,
    pub(super) steps_ahead: u64,
    pub(super) finished: Vec<Finished>,
    /// What the last step told of prompts.
    pub(super) read: Vec<(RequestId, Vec<Choice>)>,
    /// Why requests failed that are to be told as ended.
    pub(super) errors: HashMap<RequestId, String>,
    /// Where the token of each seat is among the ids that were drawn last.
    pub(super) seats: Vec<Option<usize>>,
    /// The ids that were drawn last, on the device.
    pub(super) last: Option<Slice<D>>,
    /// The times of the launches of a step, where somebody asked for them.
    pub(super) timed: Timed,
}

impl<D: Backend> Engine<D> {
    /// Puts a model on `device`, computing in `dtype`, with room for its requests.
    ///
    /// # Errors
    /// The errors of [`Model::open`]; options of 0, or a budget of fewer tokens than seats; no device memory.
    pub fn open(device: Arc<D>, files: &Files, dtype: DType, options: EngineOptions) -> Result<Self> {
        Self::new(Model::open(device, files, dtype)?, options, None)
    }

    /// An engine of a model, and of adapters of its projections, where there are any.
    ///
    /// # Errors
    /// Options of 0, or a budget of fewer tokens than seats; adapters of another model; no device memory.
    pub fn new(mut model: Model<D>, options: EngineOptions, adapters: Option<Box<dyn AdapterSource>>) -> Result<Self> {
        options.validate()?;
        let (config, dtype) = (model.config.clone(), model.dtype);
        let context = options.context.unwrap_or(config.context);
        ensure(context <= config.context, "engine: context", format_args!("at most the {} tokens that the model was made for", config.context), context)?;
        let session = &mut model.session;
        let adapted = match adapters {
            None => None,
            Some(source) => {
                let own = AdapterOptions::new(dtype).with_reserve(options.reserve).with_batch_invariant(options.invariant);
                Some(Adapted::new(session, source, own, &config, options.adapters)?)
            }
        };
        let split = adapted.is_some() || options.invariant;
        // Whole multiples, so that no tile of rows at the end has few.
        let [rows, seats] = [options.budget, options.seats as usize].map(|count| count.next_multiple_of(FEW));
        let heads = HEAD_ROWS.min(seats);
        let arena = Arena::new(session, &config, dtype, [rows, heads], split)?;
        let hints = session.device().hints();
        let (page, ahead) = (options.page_of(config.kv_heads, hints), options.ahead.unwrap_or(hints.beside_host));
        let page_bytes = token_bytes(&config, dtype, adapted.is_some()) * u64::from(page);
        let context_pages = (context as u64).div_ceil(page.into());
        let half = session.caps().memory_bytes.map_or(CACHE_BYTES, |bytes| bytes / 2);
        let buffer_bytes = buffer_bytes(&config, dtype, adapted.is_some()) * u64::from(page);
        let most = (session.caps().max_buffer_bytes / buffer_bytes.max(1)).min(i32::MAX as u64 / u64::from(page));
        let pages = options.cache_bytes.unwrap_or(half) / page_bytes.max(1);
        let pages = pages.min(context_pages.saturating_mul(options.seats.into())).min(most);
        ensure(pages > 0, "engine: cache_bytes", format_args!("at least {page_bytes}, a page of {page} tokens"), options.cache_bytes.unwrap_or(half))?;
        let shape = PoolShape { page, pages: u32::try_from(pages).unwrap_or(u32::MAX), filled: adapted.is_some() };
        let pools = Pools::new(session, &config, dtype, shape)?;
        let digest = Digest::of(format!("{config:?} {dtype}").as_bytes());
        let scheduler = Scheduler::new(Options {
            budget: options.budget,
            seats: options.seats,
            slots: adapted.as_ref().map_or(0, Adapted::slots),
            ..Options::new(digest, shape.pages, shape.page, context)
        })?;
        let most = [rows, seats, context_pages.min(pages) as usize];
        Ok(Self {
            model,
            pools,
            arena,
            buckets: Buckets::default(),
            heads: HashMap::new(),
            gathers: HashMap::new(),
            draws: Draws::default(),
            adapted,
            scheduler,
            most,
            context,
            invariant: options.invariant,
            ahead,
            live: HashMap::new(),
            flight: None,
            spare: Plan::default(),
            loading: false,
            steps_ahead: 0,
            finished: Vec::new(),
            read: Vec::new(),
            errors: HashMap::new(),
            seats: vec![None; options.seats as usize],
            last: None,
            timed: Timed::default(),
        })
    }

    /// The model.
    pub fn model(&self) -> &Model<D> {
        &self.model
    }

    /// The names of the adapters that requests may have, sorted.
    pub fn adapters(&self) -> impl Iterator<Item = &str> {
        self.adapted.iter().flat_map(|adapted| adapted.engine.adapters().map(|(name, _)| name))
    }

    /// The most tokens of a sequence, prompt and answer together.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The most requests that run at once.
    pub fn seats(&self) -> usize {
        self.seats.len()
    }

    /// What the scheduler holds.
    pub fn usage(&self) -> Usage {
        self.scheduler.usage()
    }

    /// Whether no request is left.
    pub fn is_idle(&self) -> bool {
        self.live.is_empty()
    }

    /// Whether the last plan asked for adapters: the next step may go on with them.
    pub fn is_loading(&self) -> bool {
        self.loading
    }

    /// How many times plans of a step's shape were made. It stays equal where all shapes were met.
    pub fn plans_made(&self) -> u64 {
        self.buckets.made
    }

    /// How many steps were launched before the tokens of the step before were read.
    pub fn steps_ahead(&self) -> u64 {
        self.steps_ahead
    }

    /// Puts a request last in the queue.
    ///
    /// # Errors
    /// An empty prompt, one that fills the context or is larger than all pages; an id that is not in the vocabulary; no tokens to generate; sampling
    /// parameters out of range; a name that no adapter has.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        let Request { prompt, max_tokens, sampling, stop, adapter, salt, prompt_logprobs, grammar, deadline } = request;
        let rule = grammar.map(|grammar| grammar.begin()).transpose()?;
        let vocabulary = self.model.config.vocabulary;
        sampling.validate(vocabulary as usize)?;
        let strange = prompt.iter().find(|&&id| id >= vocabulary);
        strange.map_or(Ok(()), |id| Err(Error::invalid("prompt", format!("ids below {vocabulary}"), id)))?;
        let (own, adapter) = match (adapter, &mut self.adapted) {
            (None, _) => (None, None),
            (Some(name), Some(adapted)) => adapted.named(&name).map(|(own, adapter)| (Some(own), Some(adapter)))?,
            (Some(name), None) => return Err(without(name)),
        };
        let live = Live { sampling, prompt: prompt.len(), tokens: prompt.clone(), adapter: own, prompt_logprobs, told: 0, rule };
        let top = prompt_logprobs.unwrap_or(0);
        ensure(top <= vocabulary, "prompt_logprobs", format_args!("at most the vocabulary of {vocabulary}"), top)?;
        // What is told of is computed: such a request shares its pages with none but itself.
        let salt = prompt_logprobs.map_or(salt, |_| Some(own_salt()));
        let asked = schedule::Request { stop, adapter, salt, deadline, ..schedule::Request::new(prompt, max_tokens) };
        let id = self.scheduler.submit(asked)?;
        if let (Some(own), Some(adapted)) = (own, &mut self.adapted) {
            adapted.take(own);
        }
        self.live.insert(id, live);
        Ok(id)
    }

    /// Adds an adapter, while requests run.
    ///
    /// # Errors
    /// An engine that was opened without adapters: [`ForModel`](crate::adapters::engine::ForModel) is a source of none that takes any; a name that is
    /// taken; a projection that the source does not have; no device memory.
    pub fn add_adapter(&mut self, name: &str, adapter: EncodedAdapter) -> Result<()> {
        match &mut self.adapted {
            Some(adapted) => adapted.add(&mut self.model.session, &self.model.config, name, adapter),
            None => Err(without(name)),
        }
    }

    /// Forgets an adapter. Requests that have it keep it to their end. Its name is free at once.
    ///
    /// # Errors
    /// A name that no adapter has.
    pub fn remove_adapter(&mut self, name: &str) -> Result<()> {
        self.adapted.as_mut().map_or_else(|| Err(without(name)), |adapted| adapted.remove(name))
    }

    /// An adapter as it is encoded.
    ///
    /// # Errors
    /// A name that no adapter has; what the source fails with.
    pub fn encoded_adapter(&self, name: &str) -> Result<Arc<EncodedAdapter>> {
        let Some(adapted) = &self.adapted else { return Err(without(name)) };
        adapted.encoded(name)
    }

    /// Whether the adapter of that name is on the device.
    pub fn is_resident(&self, name: &str) -> bool {
        self.adapted.as_ref().is_some_and(|adapted| adapted.engine.adapter(name).is_ok_and(|id| adapted.engine.is_resident(id)))
    }

    /// Forgets a request that has ended.
    pub(super) fn forget(&mut self, request: RequestId) {
        let adapter = self.live.remove(&request).and_then(|live| live.adapter);
        if let (Some(adapter), Some(adapted)) = (adapter, &mut self.adapted) {
            adapted.release(adapter);
        }
    }

    /// Ends a request for a reason from outside: its caller gave it up, or a stop string came. `None` where it has ended before.
    ///
    /// # Errors
    /// A number that no request has had.
    pub fn finish(&mut self, request: RequestId, reason: Finish) -> Result<Option<Finished>> {
        let finished = self.scheduler.finish(request, reason)?;
        self.forget(request);
        self.ground()?;
        Ok(finished)
    }
}

/// A salt that no other request has.
fn own_salt() -> Vec<u8> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    [b"a prompt that is told of ".as_slice(), &NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes()].concat()
}

/// The refusal of an adapter where there can be none.
fn without(name: impl std::fmt::Display) -> Error {
    Error::invalid("adapter", "none: the engine was opened without adapters", name)
}

impl<D: Backend> std::fmt::Debug for Engine<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an engine of {:?}, {:?}", self.model, self.usage())
    }
}
