//! A language model behind the server's routes: an engine on a thread of its own, and one more thread that hands its tokens to callers.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use trifuse::adapters::encoded::EncodedAdapter;
use trifuse::backend::Backend;
use trifuse::llm::engine::{Call, Engine, Output, Request, Service};
use trifuse::llm::sample::Choice;
use trifuse::llm::schedule::Finish;
use trifuse::llm::{ChatTemplate, Grammar, Message, Structure, Structures, Tokenizer};
use trifuse::{Error, Result};

use crate::generate::{Accept, Generate, Prompt, Sent, Token, Tokens};
use crate::keeper::{Holder, Keeper, Names};
use crate::line::Closed;
use crate::queueing::admit::Refused;
use crate::queueing::registry::{Generation, Lease, Registry};
use crate::queueing::ticket::Failure;

/// The most answers under way, those that wait among them.
const MOST: usize = 1024;
/// After what time a caller who was refused may ask again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often callers who are slow, who went away, or whose time is up are looked for.
const STEP: Duration = Duration::from_millis(5);

/// What a language model is called and how its text is made.
pub struct Speech {
    /// The model's name.
    pub name: String,
    /// Ids from text, and text from ids.
    pub tokenizer: Tokenizer,
    /// The template of a chat, where the model has one.
    pub template: Option<ChatTemplate>,
    /// Tokens at each of which an answer ends.
    pub ends: Vec<u32>,
    /// The adapters, by the names that the engine has for them.
    pub adapters: Vec<Generation<String>>,
}

/// A language model that is served.
pub struct LanguageModel {
    speech: Speech,
    keeper: Keeper<String>,
    /// What makes grammars, from the first request on that wants one.
    structures: OnceLock<Result<Structures, String>>,
    context: usize,
    vocabulary: usize,
    service: Arc<Service>,
    heard: Sender<Heard>,
    next: AtomicU64,
    open: Arc<AtomicUsize>,
    closed: AtomicBool,
}

impl LanguageModel {
    /// Starts the threads of an engine.
    ///
    /// # Errors
    /// Two adapters of one name; the operating system gives no thread.
    pub fn start<D: Backend>(engine: Engine<D>, mut speech: Speech) -> Result<Self> {
        let mut registry = Registry::new(&speech.name);
        for generation in speech.adapters.drain(..) {
            let alias = generation.alias.clone();
            let taken = |_| Error::invalid("adapters", "names of their own, other than the model's", format!("{alias:?} twice"));
            registry.load(generation, false, None).map_err(taken)?;
        }
        let names = Names::new(registry);
        let (context, vocabulary) = (engine.context(), engine.model().config().vocabulary as usize);
        let service = Arc::new(Service::start(engine)?);
        let (heard, inbox) = channel();
        let open = Arc::new(AtomicUsize::new(0));
        let holder = EngineHolder { service: Arc::clone(&service), names: names.clone() };
        let speaker = Speaker { service: Arc::clone(&service), inbox, live: HashMap::new(), open: Arc::clone(&open), holder: holder.clone() };
        let thread = std::thread::Builder::new().name("trifuse speaker".into()).spawn(move || speaker.run());
        thread.map_err(|error| Error::device("the thread that hands out tokens", error))?;
        let keeper = Keeper::new(names, Box::new(holder));
        Ok(Self {
            speech,
            keeper,
            structures: OnceLock::new(),
            context,
            vocabulary,
            service,
            heard,
            next: AtomicU64::new(0),
            open,
            closed: AtomicBool::new(false),
        })
    }
}

impl Generate for LanguageModel {
    fn keeper(&self) -> &Keeper<String> {
        &self.keeper
    }

    fn max_tokens(&self) -> usize {
        self.context
    }

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn encode(&self, text: &str, marks: bool) -> Result<Vec<u32>> {
        self.speech.tokenizer.encode(text, marks)
    }

    fn render(&self, messages: &[Message]) -> Result<String> {
        match &self.speech.template {
            Some(template) => template.render(messages, true),
            None => Err(Error::invalid("chat", "a model with a chat template", "one without: ask for a completion")),
        }
    }

    fn decode(&self, ids: &[u32]) -> Vec<u8> {
        let text: Vec<u32> = ids.iter().copied().filter(|id| !self.speech.ends.contains(id)).collect();
        self.speech.tokenizer.bytes(&text)
    }

    fn grammar(&self, structure: &Structure) -> Result<Arc<dyn Grammar>> {
        let make = || Structures::new(&self.speech.tokenizer, u32::try_from(self.vocabulary).unwrap_or(u32::MAX), &self.speech.ends);
        match self.structures.get_or_init(|| make().map_err(|error| error.to_string())) {
            Ok(structures) => structures.grammar(structure),
            Err(error) => Err(Error::unsupported("structured answers", error.clone())),
        }
    }

    fn submit(&self, prompt: Prompt, accept: Accept) -> Result<(), Closed> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Closed::For(Failure::Draining));
        }
        self.is_open()?;
        if self.open.fetch_add(1, Ordering::Relaxed) >= MOST {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return Err(Closed::Busy(Refused { retry_after: AGAIN }));
        }
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let Prompt { ids, max_tokens, params, prompt_logprobs, adapter, grammar, tenant: _, timeout } = prompt;
        let room = self.context.saturating_sub(ids.len()).max(1);
        let own = adapter.as_ref().map(|lease| lease.adapter.clone());
        let request = Request::new(ids, max_tokens.unwrap_or(room)).with_sampling(params).with_stop(self.speech.ends.clone());
        let request = request.with_adapter(own).with_grammar(grammar).with_prompt_logprobs(prompt_logprobs);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let begun = Heard::Begun { key, tokens: Box::new(accept.accept()), adapter, deadline };
        let mut ear = Ear { key, heard: self.heard.clone() };
        // A speaker that is gone drops what it had, and so tells every caller.
        drop(self.heard.send(begun));
        let sink = Box::new(move |output| ear.hear(output));
        let submitted = self.service.submit(request, sink);
        drop(self.heard.send(Heard::Submitted { key, call: submitted.ok() }));
        Ok(())
    }

    fn close(&self, now: bool) {
        self.closed.store(true, Ordering::Relaxed);
        if now {
            drop(self.heard.send(Heard::Closed));
        }
    }

    fn is_open(&self) -> Result<(), Closed> {
        if self.service.is_lost() { Err(Closed::For(Failure::DeviceLost)) } else { Ok(()) }
    }

    fn running(&self) -> Option<Duration> {
        self.service.stepping()
    }
}

/// What holds adapters in the engine.
#[derive(Clone)]
struct EngineHolder {
    service: Arc<Service>,
    names: Names<String>,
}

impl Holder<String> for EngineHolder {
    fn add(&self, name: &str, adapter: EncodedAdapter) -> Result<String> {
        self.service.add_adapter(name, adapter).map(|()| name.to_owned())
    }

    fn sweep(&self) {
        for generation in self.names.lock().take_unused() {
            // An engine that has ended holds none.
            drop(self.service.forget_adapter(&generation.adapter));
        }
    }

    fn are_resident(&self, of: &[Lease<String>]) -> Option<Vec<bool>> {
        self.service.are_resident(of.iter().map(|lease| lease.adapter.clone()).collect()).ok()
    }
}

/// Where the engine tells of one request. Its end without a word tells that the engine is gone.
struct Ear {
    key: u64,
    heard: Sender<Heard>,
}

impl Ear {
    fn hear(&mut self, output: Result<Output>) -> bool {
        self.heard.send(Heard::Output { key: self.key, output }).is_ok()
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        drop(self.heard.send(Heard::Silence { key: self.key }));
    }
}

/// What the speaker is told.
enum Heard {
    /// A prompt was let in.
    Begun { key: u64, tokens: Box<Tokens>, adapter: Option<Lease<String>>, deadline: Option<Instant> },
    /// The prompt has a number at the engine; without one the engine has ended.
    Submitted { key: u64, call: Option<Call> },
    /// Something came of it.
    Output { key: u64, output: Result<Output> },
    /// Nothing more comes of it.
    Silence { key: u64 },
    /// All answers under way are to end.
    Closed,
}

/// An answer under way.
struct Answer {
    tokens: Tokens,
    /// Tokens for which the caller had no room.
    waiting: VecDeque<Token>,
    /// How it ended at the engine.
    end: Option<Result<Finish, Failure>>,
    call: Option<Call>,
    /// The adapter, which stays as long as the answer.
    _adapter: Option<Lease<String>>,
    /// Until when its first token has to be there.
    deadline: Option<Instant>,
}

/// A token as callers get it.
fn token(choice: Choice, of_prompt: bool) -> Token {
    let top = choice.top.into_iter().map(|(id, logprob)| (id, logprob as f32)).collect();
    Token { id: choice.token, of_prompt, logprob: choice.log_probability as f32, top }
}

/// What is to become of an answer.
enum Next {
    Stays,
    Goes,
    Ends(Result<Finish, Failure>),
}

impl Answer {
    /// Hands out what there is room for.
    fn flush(&mut self, now: Instant) -> Next {
        while let Some(token) = self.waiting.pop_front() {
            match self.tokens.send(token) {
                Sent::Taken => self.deadline = None,
                Sent::Full(token) => {
                    self.waiting.push_front(token);
                    return Next::Stays;
                }
                Sent::Gone => return Next::Goes,
            }
        }
        match self.end.take() {
            _ if self.tokens.is_cancelled() => Next::Goes,
            Some(end) => Next::Ends(end),
            None if self.deadline.is_some_and(|deadline| deadline <= now) => Next::Ends(Err(Failure::Expired)),
            None => Next::Stays,
        }
    }
}

/// The thread between the engine and callers: the engine never waits for one of them.
struct Speaker {
    service: Arc<Service>,
    inbox: Receiver<Heard>,
    live: HashMap<u64, Answer>,
    open: Arc<AtomicUsize>,
    holder: EngineHolder,
}

impl Speaker {
    fn run(mut self) {
        loop {
            let next = if self.live.is_empty() { self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected) } else { self.inbox.recv_timeout(STEP) };
            match next {
                Ok(heard) => {
                    self.hear(heard);
                    while let Ok(heard) = self.inbox.try_recv() {
                        self.hear(heard);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = Instant::now();
            let done: Vec<(u64, Next)> = self.live.iter_mut().map(|(key, answer)| (*key, answer.flush(now))).collect();
            for (key, next) in done {
                match next {
                    Next::Stays => {}
                    Next::Goes => self.end(key, None),
                    Next::Ends(end) => self.end(key, Some(end)),
                }
            }
        }
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Begun { key, tokens, adapter, deadline } => {
                self.live.insert(key, Answer { tokens: *tokens, waiting: VecDeque::new(), end: None, call: None, _adapter: adapter, deadline });
            }
            Heard::Submitted { key, call } => match (self.live.get_mut(&key), call) {
                (Some(answer), Some(call)) => answer.call = Some(call),
                (Some(answer), None) => answer.end = Some(Err(Failure::DeviceLost)),
                // The answer has ended already, and its caller may have gone before it had a number.
                (None, Some(call)) => drop(self.service.cancel(call)),
                (None, None) => {}
            },
            Heard::Output { key, output } => {
                let Some(answer) = self.live.get_mut(&key) else { return };
                match output {
                    Ok(Output::Prompt { choices, .. }) => answer.waiting.extend(choices.into_iter().map(|choice| token(choice, true))),
                    Ok(Output::Token { choice, .. }) => answer.waiting.push_back(token(choice, false)),
                    Ok(Output::Ended { finished, error }) => {
                        answer.end = Some(match error {
                            Some(_) if self.service.is_lost() => Err(Failure::DeviceLost),
                            Some(error) => Err(Failure::Internal(error)),
                            None => Ok(finished.reason),
                        });
                    }
                    Err(Error::Device { .. }) => answer.end = Some(Err(Failure::DeviceLost)),
                    Err(error) => answer.end = Some(Err(Failure::Internal(error.to_string()))),
                }
            }
            Heard::Silence { key } => {
                if let Some(answer) = self.live.get_mut(&key) {
                    answer.end.get_or_insert(Err(Failure::DeviceLost));
                }
            }
            Heard::Closed => {
                let all: Vec<u64> = self.live.keys().copied().collect();
                all.into_iter().for_each(|key| self.end(key, Some(Err(Failure::Draining))));
            }
        }
    }

    /// Ends an answer, also at the engine; without an end its caller is gone.
    fn end(&mut self, key: u64, end: Option<Result<Finish, Failure>>) {
        let Some(answer) = self.live.remove(&key) else { return };
        self.open.fetch_sub(1, Ordering::Relaxed);
        if let Some(call) = answer.call {
            // An engine that has ended has given up all.
            drop(self.service.cancel(call));
        }
        let Answer { tokens, _adapter: adapter, .. } = answer;
        match end {
            Some(Ok(reason)) => tokens.finish(reason),
            Some(Err(failure)) => tokens.fail(failure),
            None => drop(tokens),
        }
        if adapter.is_some() {
            drop(adapter);
            self.holder.sweep();
        }
    }
}

impl std::fmt::Debug for LanguageModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} answers under way", self.speech.name, self.open.load(Ordering::Relaxed))
    }
}
