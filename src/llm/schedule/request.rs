//! A request: what is asked for, how far it is, and how it ended.

use crate::error::{Error, Result, ensure};
use crate::llm::cache::{Blocks, Digest, Table, seed};
use crate::llm::step::RequestId;

/// The number of an adapter. Another content gets another number, so that an adapter can be replaced while requests use the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterId(pub u64);

/// An adapter as a request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// The number by which it is loaded.
    pub id: AdapterId,
    /// A digest of its tensors. Requests share pages only where it is equal.
    pub content: Digest,
}

/// What is asked for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// Ids of the prompt's tokens; at least one.
    pub prompt: Vec<u32>,
    /// The most tokens to generate; at least one.
    pub max_tokens: usize,
    /// Ids that end the text, such as the model's end-of-text tokens. The id itself counts as generated.
    pub stop: Vec<u32>,
    /// The adapter; `None` is the base model.
    pub adapter: Option<Adapter>,
    /// A salt that keeps the request's pages from requests without it: see [`seed`].
    pub salt: Option<Vec<u8>>,
    /// The time from which on the request has ended, in the unit of the time that [`plan`](super::Scheduler::plan) gets.
    pub deadline: Option<u64>,
}

impl Request {
    /// A request of the base model that ends after `max_tokens` tokens alone. Set its fields for more.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self { prompt, max_tokens, stop: Vec::new(), adapter: None, salt: None, deadline: None }
    }
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// One of its stop tokens came, or a stop string.
    Stop,
    /// It has `max_tokens` tokens, or the context or the pool of pages is full.
    Length,
    /// Its caller gave it up.
    Cancelled,
    /// Its deadline came.
    Deadline,
    /// Its adapter could not be loaded, or the device failed.
    Error,
}

impl Finish {
    /// The reason's name in reports and protocols.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Deadline => "deadline",
            Self::Error => "error",
        }
    }
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The request that ended.
    pub request: RequestId,
    /// Why it ended.
    pub reason: Finish,
    /// Tokens that it generated and that were reported, a stop token included.
    pub generated: usize,
    /// Tokens of the prompt that it took from the cache when it was first let in.
    pub cached: usize,
    /// How often it was preempted.
    pub preemptions: u32,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The request holds nothing.
    Waiting,
    /// The request holds pages, a seat, and its adapter's slot.
    Running { seat: u32, slot: Option<u32> },
    /// The request's last token is drawn and not reported. It holds nothing.
    Ending,
}

/// A request that has not ended.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// Ids that the host knows, the prompt's first.
    pub tokens: Vec<u32>,
    pub prompt: usize,
    /// Tokens that were drawn and are not reported.
    pub pending: usize,
    /// Tokens whose K and V are computed or in the queue.
    pub computed: usize,
    /// Tokens at which the request ends with [`Finish::Length`].
    pub limit: usize,
    pub stop: Vec<u32>,
    pub adapter: Option<AdapterId>,
    pub deadline: Option<u64>,
    pub phase: Phase,
    pub table: Table,
    /// Pages up to which the pool keeps room for it.
    pub target: usize,
    /// Plans in which all slots of adapters were taken.
    pub waited: u32,
    pub cached: Option<usize>,
    pub preemptions: u32,
}

impl State {
    /// `page` is in tokens, `pages` is the pool's size.
    pub fn new(request: Request, model: &Digest, page: u32, pages: u32, context: usize) -> Result<Self> {
        let Request { prompt, max_tokens, stop, adapter, salt, deadline } = request;
        ensure(!prompt.is_empty(), "prompt", "at least 1 token", 0)?;
        ensure(max_tokens > 0, "max_tokens", "at least 1", max_tokens)?;
        ensure(prompt.len() < context, "prompt", format_args!("less than the context of {context} tokens"), prompt.len())?;
        let room = pages as usize * page as usize;
        if prompt.len() > room {
            let expected = format!("at most {room} tokens, which is all of the pool: {pages} pages of {page}");
            return Err(Error::invalid("prompt", expected, prompt.len()));
        }
        // K and V of the last token are never needed: it may be one more than the pool holds.
        let limit = prompt.len().saturating_add(max_tokens).min(context).min(room + 1);
        let mut table = Table::new(page, seed(model, adapter.as_ref().map(|adapter| &adapter.content), salt.as_deref()))?;
        table.reserve(limit);
        let mut tokens = prompt;
        let prompt = tokens.len();
        tokens.reserve_exact(limit - prompt);
        let adapter = adapter.map(|adapter| adapter.id);
        let phase = Phase::Waiting;
        Ok(Self { tokens, prompt, pending: 0, computed: 0, limit, stop, adapter, deadline, phase, table, target: 0, waited: 0, cached: None, preemptions: 0 })
    }

    /// Tokens that have an id, be it on the device alone.
    pub fn known(&self) -> usize {
        self.tokens.len() + self.pending
    }

    /// Tokens that are known and not computed.
    pub fn left(&self) -> usize {
        self.known() - self.computed
    }

    /// Pages that the pool keeps for the request and that it has not taken.
    pub fn promise(&self) -> usize {
        self.target.saturating_sub(self.table.pages().len())
    }

    /// Names its full pages of tokens that the host knows.
    pub fn name(&mut self, blocks: &mut Blocks) -> Result<()> {
        let named = self.computed.min(self.tokens.len());
        self.table.name(blocks, &self.tokens[..named])
    }

    /// The request's end.
    pub fn finished(&self, request: RequestId, reason: Finish) -> Finished {
        let (generated, cached) = (self.tokens.len() - self.prompt, self.cached.unwrap_or(0));
        Finished { request, reason, generated, cached, preemptions: self.preemptions }
    }
}
