//! The state between plans: requests come, tokens are reported, adapters are loaded, requests end.

use super::adapters::Adapters;
use super::queue::Queue;
use super::request::{AdapterId, Finish, Finished, Phase, Request, State};
use crate::error::{Error, Result, ensure};
use crate::llm::cache::{Blocks, Digest};
use crate::llm::step::RequestId;

/// Sizes and policies of a [`Scheduler`].
#[derive(Clone, Debug)]
pub struct Options {
    /// A digest of the model: its configuration, its tensors, and the type of K and V.
    pub model: Digest,
    /// Pages of the pool.
    pub pages: u32,
    /// Tokens of a page.
    pub page: u32,
    /// The most tokens of a sequence, prompt and answer together.
    pub context: usize,
    /// The most tokens of a step; 2,048.
    pub budget: usize,
    /// The most requests that run at once; 256. At most `budget`, so that each of them advances in every step.
    pub seats: u32,
    /// Slots of the pool of adapters; 0, which refuses requests with an adapter.
    pub slots: u32,
    /// The most loads of adapters under way at once; 2.
    pub loads: u32,
    /// Plans that a request waits for a slot before it bars later requests with adapters; 16.
    pub patience: u32,
    /// Tokens to come that a request must have room for when it is let in; 0. From `max_tokens` on, no request is ever preempted.
    pub reserve: usize,
    /// Waiting requests that a plan looks at; 256.
    pub lookahead: usize,
}

impl Options {
    /// The defaults, for a model of `context` tokens and a pool of `pages` pages of `page` tokens.
    pub fn new(model: Digest, pages: u32, page: u32, context: usize) -> Self {
        let (budget, seats, slots, loads) = (2048, 256, 0, 2);
        Self { model, pages, page, context, budget, seats, slots, loads, patience: 16, reserve: 0, lookahead: 256 }
    }
}

/// A token that a step drew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// The request that it belongs to.
    pub request: RequestId,
    /// Its id.
    pub token: u32,
}

/// What a scheduler holds, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that run.
    pub running: usize,
    /// Requests whose last token is drawn and not reported.
    pub ending: usize,
    /// Pages that nobody holds; some have a name and may be hit.
    pub free_pages: usize,
    /// Pages that requests hold.
    pub used_pages: usize,
    /// Adapters that steps may name.
    pub resident: usize,
    /// Adapters that are being loaded.
    pub loading: usize,
    /// Steps that were planned and not reported.
    pub steps: u64,
    /// Preemptions since the start.
    pub preemptions: u64,
}

/// The scheduler. Equal calls in equal order give equal plans: it has no clock, no thread and no random number.
#[derive(Clone, Debug)]
pub struct Scheduler {
    pub(super) options: Options,
    pub(super) blocks: Blocks,
    pub(super) adapters: Adapters,
    pub(super) queue: Queue,
    /// Seats that are free.
    pub(super) seats: Vec<u32>,
    /// Free pages that are kept for running requests.
    pub(super) promised: usize,
    pub(super) plans: u64,
    pub(super) steps: u64,
    pub(super) completed: u64,
    pub(super) preemptions: u64,
    /// Ids that a plan goes through; kept for its memory.
    pub(super) scratch: Vec<RequestId>,
}

impl Scheduler {
    /// A scheduler without requests.
    ///
    /// # Errors
    /// Sizes of 0, or a budget that is smaller than the number of seats.
    pub fn new(options: Options) -> Result<Self> {
        let Options { pages, page, context, budget, seats, loads, lookahead, .. } = options;
        ensure(context > 1, "context", "at least 2 tokens", context)?;
        ensure(seats > 0, "seats", "at least 1", seats)?;
        ensure(budget >= seats as usize, "budget", format_args!("at least {seats}, a token for every seat"), budget)?;
        ensure(loads > 0, "loads", "at least 1", loads)?;
        ensure(lookahead > 0, "lookahead", "at least 1 request", lookahead)?;
        let tokens = u64::from(pages) * u64::from(page);
        ensure(page > 0 && tokens <= i32::MAX as u64, "pages times tokens of a page", "1 to 2147483647", tokens)?;
        Ok(Self {
            blocks: Blocks::new(pages)?,
            adapters: Adapters::new(options.slots, loads),
            queue: Queue::default(),
            seats: (0..seats).rev().collect(),
            promised: 0,
            plans: 0,
            steps: 0,
            completed: 0,
            preemptions: 0,
            scratch: Vec::new(),
            options,
        })
    }

    /// Puts a request last in the queue.
    ///
    /// # Errors
    /// An empty prompt, one that fills the context or is larger than the pool, no tokens to generate, or an adapter where there are no slots.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        if request.adapter.is_some() && self.options.slots == 0 {
            return Err(Error::invalid("request", "no adapter, as the pool of adapters has no slots", "one with an adapter"));
        }
        let Options { model, page, pages, context, .. } = &self.options;
        Ok(self.queue.push(State::new(request, model, *page, *pages, *context)?))
    }

    /// Ends a request for a reason from outside: its caller gave it up, or a stop string came. `None` where it has ended before.
    ///
    /// Tokens that were drawn for it and are not reported are dropped when they are.
    ///
    /// # Errors
    /// A number that no request has had.
    pub fn finish(&mut self, request: RequestId, reason: Finish) -> Result<Option<Finished>> {
        ensure(self.queue.was_given(request), "request", "a number from submit", request.0)?;
        if self.queue.find(request).is_none() {
            return Ok(None);
        }
        self.leave(request)?;
        Ok(self.queue.remove(request).map(|state| state.finished(request, reason)))
    }

    /// Takes the tokens of a step. Steps are reported in their order, each once; later ones may be planned before. Tokens of requests that have
    /// ended are dropped. Requests that end are added to `finished`.
    ///
    /// # Errors
    /// A step out of order, or a token that no step drew. Tokens before it in the list are taken.
    pub fn report(&mut self, step: u64, sampled: &[Sampled], finished: &mut Vec<Finished>) -> Result<()> {
        let expected = self.completed + 1;
        ensure(step == expected && step <= self.steps, "step", format_args!("{expected}, of {} that were planned", self.steps), step)?;
        self.completed = step;
        for Sampled { request, token } in sampled.iter().copied() {
            ensure(self.queue.was_given(request), "request", "a number from submit", request.0)?;
            let Some(state) = self.queue.find(request) else { continue };
            ensure(state.pending > 0, "sampled token", "one of a step's sample rows", format_args!("another of request {}", request.0))?;
            state.pending -= 1;
            state.tokens.push(token);
            let reason = match () {
                () if state.stop.contains(&token) => Some(Finish::Stop),
                () if state.tokens.len() >= state.limit => Some(Finish::Length),
                () => None,
            };
            if let Some(reason) = reason {
                finished.extend(self.finish(request, reason)?);
            }
        }
        Ok(())
    }

    /// Takes that a load is done: steps may name the adapter.
    ///
    /// # Errors
    /// An adapter that no plan asked for.
    pub fn adapter_loaded(&mut self, adapter: AdapterId) -> Result<()> {
        ensure(self.adapters.loaded(adapter, true), "adapter", "one that a plan's loads name", adapter.0)
    }

    /// Takes that a load failed: requests that wait for the adapter end with [`Finish::Error`].
    ///
    /// # Errors
    /// An adapter that no plan asked for.
    pub fn adapter_failed(&mut self, adapter: AdapterId, finished: &mut Vec<Finished>) -> Result<()> {
        ensure(self.adapters.loaded(adapter, false), "adapter", "one that a plan's loads name", adapter.0)?;
        let waiting: Vec<RequestId> = self.queue.waiting().collect();
        for request in waiting {
            if self.queue.get(request)?.adapter == Some(adapter) {
                finished.extend(self.finish(request, Finish::Error)?);
            }
        }
        Ok(())
    }

    /// Forgets every cached prefix. A plan names the pages that its step is to fill: where the step failed, they hold something else.
    pub fn forget_prefixes(&mut self) {
        self.blocks.forget();
    }

    /// What the scheduler holds.
    pub fn usage(&self) -> Usage {
        let (waiting, running) = (self.queue.waiting().len(), self.queue.running().len());
        Usage {
            waiting,
            running,
            ending: self.queue.len() - waiting - running,
            free_pages: self.blocks.free(),
            used_pages: self.blocks.used(),
            resident: self.adapters.resident(),
            loading: self.adapters.loading(),
            steps: self.steps - self.completed,
            preemptions: self.preemptions,
        }
    }

    /// The pool of pages.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Running requests, earliest first.
    pub fn running(&self) -> &[RequestId] {
        self.queue.running()
    }

    /// Takes a running request's pages and seat. A request in another phase has none.
    pub(super) fn leave(&mut self, request: RequestId) -> Result<()> {
        let state = self.queue.get(request)?;
        let Phase::Running { seat, .. } = state.phase else { return Ok(()) };
        self.promised -= state.promise();
        state.table.release(&mut self.blocks)?;
        state.target = 0;
        self.seats.push(seat);
        Ok(())
    }
}
