//! Turns at a language model: its engine has no more prompts than seats, and the others wait here, so that who asks for much waits behind themselves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::metrics::gauge::Gauge;
use trifuse::Result;
use trifuse::llm::{Grammar, Message, Structure};

use crate::generate::{Accept, Generate, NotLetIn, Prompt, Tokens};
use crate::keeper::Keeper;
use crate::line::Closed;
use crate::queueing::admit::Refused;
use crate::queueing::queues::{Queues, Tenant};
use crate::queueing::ticket::Failure;
use crate::replica::Replica;

/// The most prompts of a tenant that wait.
const MOST: usize = 1024;
/// The most that wait together.
const MOST_OF_ALL: usize = 8 * MOST;
/// After what time a caller who was refused may ask again.
const AGAIN: Duration = Duration::from_secs(1);

/// A prompt that waits for its turn.
struct Waiting {
    prompt: Prompt,
    tokens: Tokens,
    /// Until when it must have reached the engine.
    until: Option<Instant>,
}

#[derive(Default)]
struct State {
    queues: Queues<Waiting>,
    /// How many wait, by tenant.
    of: HashMap<u32, usize>,
    /// Prompts that the engine has.
    running: usize,
    /// Whether somebody hands prompts to the engine already.
    handing: bool,
    closed: bool,
}

impl State {
    /// The next prompt, and those before it that nobody wants any more or whose time is over.
    fn next(&mut self, now: Instant) -> (Option<Waiting>, Vec<Waiting>) {
        let mut over = Vec::new();
        while let Some(waiting) = self.queues.pop() {
            self.left(waiting.prompt.tenant);
            if !waiting.is_over(now) {
                return (Some(waiting), over);
            }
            over.push(waiting);
        }
        (None, over)
    }

    fn left(&mut self, tenant: Tenant) {
        if let Some(count) = self.of.get_mut(&tenant.number) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&tenant.number);
            }
        }
    }
}

impl Waiting {
    fn is_over(&self, now: Instant) -> bool {
        self.tokens.is_cancelled() || self.until.is_some_and(|until| until <= now)
    }
}

struct Inner {
    generator: Arc<dyn Generate>,
    state: Mutex<State>,
    /// How many prompts the engine has, and how many wait, as it is told to others.
    told: [Gauge; 2],
}

/// A place at the engine, which is free again when this is dropped.
struct Place(Arc<Inner>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
        Inner::hand_on(&self.0);
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The seats of the engine, which are fewer once a device of it is lost.
    fn seats(&self) -> usize {
        self.generator.seats().max(1)
    }

    fn tell(&self, state: &State) {
        let [running, waiting] = &self.told;
        running.set(i64::try_from(state.running).unwrap_or(i64::MAX));
        waiting.set(i64::try_from(state.queues.len()).unwrap_or(i64::MAX));
    }

    /// Puts a prompt in line: behind the others of its lane, or before them where it had its turn.
    fn wait(&self, state: &mut State, waiting: Waiting, had_its_turn: bool) {
        let prompt = &waiting.prompt;
        let (tenant, lane) = (prompt.tenant, prompt.adapter.as_ref().map_or(0, |lease| Arc::as_ptr(lease) as u64));
        // What it may take: tokens that are not drawn in the end were asked for all the same.
        let room = self.generator.max_tokens().saturating_sub(prompt.ids.len());
        let cost = prompt.ids.len().saturating_add(prompt.max_tokens.unwrap_or(room).min(room)) as u64;
        *state.of.entry(tenant.number).or_default() += 1;
        if had_its_turn {
            state.queues.push_front(tenant, lane, cost, waiting);
        } else {
            state.queues.push(tenant, lane, cost, waiting);
        }
    }

    /// Hands prompts to the engine, as many as it has free seats. Nothing is done with the lock that runs the code of others.
    fn hand_on(this: &Arc<Self>) {
        let mut state = this.lock();
        // Who does so already goes on; a place that is given back meanwhile is seen.
        if !std::mem::replace(&mut state.handing, true) {
            let mut full = false;
            while !full && state.running < this.seats() && !state.queues.is_empty() {
                let now = Instant::now();
                let (next, over) = state.next(now);
                state.running += usize::from(next.is_some());
                drop(state);
                over.into_iter().for_each(|waiting| waiting.tokens.fail(Failure::Expired));
                full = next.is_some_and(|next| !Self::hand(this, next, now));
                state = this.lock();
            }
            state.handing = false;
        }
        this.tell(&state);
    }

    /// Hands a prompt to the engine; whether it had room for it. One that it has no room for waits again.
    fn hand(this: &Arc<Self>, waiting: Waiting, now: Instant) -> bool {
        let Waiting { mut prompt, tokens, until } = waiting;
        prompt.timeout = until.map(|until| until.saturating_duration_since(now));
        let accept = Accept::again(tokens).with(Place(Arc::clone(this)));
        let Err(refused) = this.generator.submit(prompt.clone(), accept) else { return true };
        let NotLetIn { closed, accept } = *refused;
        match (closed, accept.back()) {
            (Closed::Busy(_), Some(tokens)) => {
                let mut state = this.lock();
                if state.closed {
                    drop(state);
                    tokens.fail(Failure::Draining);
                } else {
                    this.wait(&mut state, Waiting { prompt, tokens, until }, true);
                }
                false
            }
            (Closed::For(failure), Some(tokens)) => {
                tokens.fail(failure);
                true
            }
            (_, None) => true,
        }
    }
}

/// A language model that is asked in turns: a deficit round robin over tenants by their shares, and over the adapters of each, as before a model that embeds.
pub struct Turns(Arc<Inner>);

impl Turns {
    /// Turns at an engine. The gauges tell how many prompts it has, and how many wait.
    pub fn new(generator: Arc<dyn Generate>, told: [Gauge; 2]) -> Self {
        Self(Arc::new(Inner { generator, state: Mutex::default(), told }))
    }

    /// Ends the prompts that nobody waits for or whose time is over, wherever they stand, and asks an engine again that had no room.
    fn sweep(&self) {
        let now = Instant::now();
        let mut state = self.0.lock();
        if state.queues.is_empty() {
            return;
        }
        let over = state.queues.take_those(|waiting| waiting.is_over(now));
        over.iter().for_each(|waiting| state.left(waiting.prompt.tenant));
        self.0.tell(&state);
        drop(state);
        over.into_iter().for_each(|waiting| waiting.tokens.fail(Failure::Expired));
        Inner::hand_on(&self.0);
    }
}

impl Generate for Turns {
    fn keeper(&self) -> &Keeper<String> {
        self.0.generator.keeper()
    }

    fn max_tokens(&self) -> usize {
        self.0.generator.max_tokens()
    }

    fn vocabulary(&self) -> usize {
        self.0.generator.vocabulary()
    }

    fn encode(&self, text: &str, marks: bool) -> Result<Vec<u32>> {
        self.0.generator.encode(text, marks)
    }

    fn render(&self, messages: &[Message]) -> Result<String> {
        self.0.generator.render(messages)
    }

    fn decode(&self, ids: &[u32]) -> Vec<u8> {
        self.0.generator.decode(ids)
    }

    fn grammar(&self, structure: &Structure) -> Result<Arc<dyn Grammar>> {
        self.0.generator.grammar(structure)
    }

    fn submit(&self, prompt: Prompt, accept: Accept) -> Result<(), Box<NotLetIn>> {
        let mut state = self.0.lock();
        if state.closed {
            return Err(accept.refuse(Closed::For(Failure::Draining)));
        }
        if state.running < self.0.seats() && state.queues.is_empty() {
            state.running += 1;
            self.0.tell(&state);
            drop(state);
            return self.0.generator.submit(prompt, accept.with(Place(Arc::clone(&self.0))));
        }
        if let Err(closed) = self.0.generator.is_open() {
            return Err(accept.refuse(closed));
        }
        let own = state.of.get(&prompt.tenant.number).copied().unwrap_or(0);
        if own >= MOST || state.queues.len() >= MOST_OF_ALL {
            return Err(accept.refuse(Closed::Busy(Refused { retry_after: AGAIN })));
        }
        let until = prompt.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.0.wait(&mut state, Waiting { prompt, tokens: accept.accept(), until }, false);
        drop(state);
        Inner::hand_on(&self.0);
        Ok(())
    }

    fn seats(&self) -> usize {
        self.0.seats()
    }

    fn cache_use(&self) -> Option<f64> {
        self.0.generator.cache_use()
    }

    fn close(&self, now: bool) {
        let mut state = self.0.lock();
        state.closed = true;
        let left: Vec<Waiting> = if now { std::iter::from_fn(|| state.queues.pop()).collect() } else { Vec::new() };
        left.iter().for_each(|waiting| state.left(waiting.prompt.tenant));
        self.0.tell(&state);
        drop(state);
        left.into_iter().for_each(|waiting| waiting.tokens.fail(Failure::Draining));
        self.0.generator.close(now);
    }

    fn is_open(&self) -> Result<(), Closed> {
        self.0.generator.is_open()
    }

    fn running(&self) -> Option<Duration> {
        self.0.generator.running()
    }

    fn replicas(&self) -> Vec<Arc<Replica>> {
        self.0.generator.replicas()
    }

    fn watch(&self, most: Duration) {
        self.sweep();
        self.0.generator.watch(most);
    }
}

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.0.lock();
        write!(f, "{} prompts at {} seats, {} wait", state.running, self.0.seats(), state.queues.len())
    }
}
