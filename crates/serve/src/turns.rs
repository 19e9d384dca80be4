//! Turns at a language model: its engine has no more prompts than seats, and the others wait here, so that who asks for much waits behind themselves.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trifuse::Result;
use trifuse::llm::{Grammar, Message, Structure};

use crate::generate::{Accept, Generate, NotLetIn, Prompt, Tokens};
use crate::keeper::Keeper;
use crate::line::Closed;
use crate::metrics::Written;
use crate::queueing::admit::Refused;
use crate::queueing::queues::{Queues, Tenant};
use crate::queueing::registry::Lease;
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
    /// When it came.
    since: Instant,
}

/// Where a prompt is.
#[derive(Clone, Copy)]
enum At {
    /// At the engine.
    Engine,
    /// In its line.
    Line,
}

/// How many prompts an adapter has at the engine and in line.
#[derive(Default)]
struct Adapters(BTreeMap<String, [usize; 2]>);

impl Adapters {
    fn come(&mut self, at: At, adapter: Option<&str>) {
        let Some(adapter) = adapter else { return };
        match self.0.get_mut(adapter) {
            Some(counts) => counts[at as usize] += 1,
            None => self.0.entry(adapter.to_owned()).or_default()[at as usize] += 1,
        }
    }

    fn go(&mut self, at: At, adapter: Option<&str>) {
        let Some((adapter, counts)) = adapter.and_then(|adapter| Some((adapter, self.0.get_mut(adapter)?))) else { return };
        counts[at as usize] -= 1;
        if *counts == [0; 2] {
            self.0.remove(adapter);
        }
    }

    fn names(&self, at: At) -> Vec<String> {
        self.0.iter().filter(|(_, counts)| counts[at as usize] > 0).map(|(name, _)| name.clone()).collect()
    }
}

/// The name of a prompt's adapter.
fn adapter(prompt: &Prompt) -> Option<&str> {
    prompt.adapter.as_ref().map(|lease| lease.alias.as_str())
}

#[derive(Default)]
struct State {
    queues: Queues<Waiting>,
    /// How many wait, by tenant.
    of: HashMap<u32, usize>,
    /// Prompts that the engine has.
    running: usize,
    adapters: Adapters,
    /// Whether somebody hands prompts to the engine already.
    handing: bool,
    closed: bool,
}

impl State {
    /// The next prompt, and those before it that nobody wants any more or whose time is over.
    fn next(&mut self, now: Instant) -> (Option<Waiting>, Vec<Waiting>) {
        let mut over = Vec::new();
        while let Some(waiting) = self.queues.pop() {
            self.left(&waiting.prompt);
            if !waiting.is_over(now) {
                return (Some(waiting), over);
            }
            over.push(waiting);
        }
        (None, over)
    }

    fn left(&mut self, prompt: &Prompt) {
        let Tenant { number, .. } = prompt.tenant;
        if let Some(count) = self.of.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&number);
            }
        }
        self.adapters.go(At::Line, adapter(prompt));
    }

    fn sits_down(&mut self, prompt: &Prompt) {
        self.running += 1;
        self.adapters.come(At::Engine, adapter(prompt));
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
    /// How many prompts the engine has, how many wait and for how long, as it is told to others.
    told: Arc<Written>,
}

/// A place at the engine, which is free again when this is dropped.
struct Place {
    inner: Arc<Inner>,
    adapter: Option<String>,
}

impl Place {
    fn new(inner: &Arc<Inner>, prompt: &Prompt) -> Self {
        Self { inner: Arc::clone(inner), adapter: adapter(prompt).map(str::to_owned) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        state.running -= 1;
        state.adapters.go(At::Engine, self.adapter.as_deref());
        drop(state);
        Inner::hand_on(&self.inner);
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
        let Written { running, waiting, .. } = &*self.told;
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
        state.adapters.come(At::Line, adapter(prompt));
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
                if let Some(next) = &next {
                    state.sits_down(&next.prompt);
                }
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
        let Waiting { mut prompt, tokens, until, since } = waiting;
        prompt.timeout = until.map(|until| until.saturating_duration_since(now));
        let accept = Accept::again(tokens).with(Place::new(this, &prompt));
        let Err(refused) = this.generator.submit(prompt.clone(), accept) else {
            this.told.turn.observe((now - since).as_secs_f64());
            return true;
        };
        let NotLetIn { closed, accept } = *refused;
        match (closed, accept.back()) {
            (Closed::Busy(_), Some(tokens)) => {
                let mut state = this.lock();
                if state.closed {
                    drop(state);
                    tokens.fail(Failure::Draining);
                } else {
                    this.wait(&mut state, Waiting { prompt, tokens, until, since }, true);
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
    /// Turns at an engine, of which `told` tells.
    pub fn new(generator: Arc<dyn Generate>, told: Arc<Written>) -> Self {
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
        over.iter().for_each(|waiting| state.left(&waiting.prompt));
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

    fn render(&self, messages: &[Message], adapter: Option<&Lease<String>>) -> Result<String> {
        self.0.generator.render(messages, adapter)
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
            state.sits_down(&prompt);
            self.0.tell(&state);
            drop(state);
            let place = Place::new(&self.0, &prompt);
            self.0.generator.submit(prompt, accept.with(place))?;
            self.0.told.turn.observe(0.0);
            return Ok(());
        }
        if let Err(closed) = self.0.generator.is_open() {
            return Err(accept.refuse(closed));
        }
        let own = state.of.get(&prompt.tenant.number).copied().unwrap_or(0);
        if own >= MOST || state.queues.len() >= MOST_OF_ALL {
            return Err(accept.refuse(Closed::Busy(Refused { retry_after: AGAIN })));
        }
        let since = Instant::now();
        let until = prompt.timeout.and_then(|timeout| since.checked_add(timeout));
        self.0.wait(&mut state, Waiting { prompt, tokens: accept.accept(), until, since }, false);
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

    fn adapters_asked(&self) -> [Vec<String>; 2] {
        let state = self.0.lock();
        [At::Engine, At::Line].map(|at| state.adapters.names(at))
    }

    fn close(&self, now: bool) {
        let mut state = self.0.lock();
        state.closed = true;
        let left: Vec<Waiting> = if now { std::iter::from_fn(|| state.queues.pop()).collect() } else { Vec::new() };
        left.iter().for_each(|waiting| state.left(&waiting.prompt));
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
