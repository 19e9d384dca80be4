//! A language model behind the server's routes: engines on threads of their own, and one more thread that hands their tokens to callers.

mod engines;
mod speaker;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use trifuse::llm::engine::Request;
use trifuse::llm::{ChatTemplate, Grammar, Message, Structure, Structures, Tokenizer};
use trifuse::{Error, Result};

use crate::generate::{Accept, Generate, NotLetIn, Prompt};
use crate::keeper::{Keeper, Names};
use crate::line::Closed;
use crate::queueing::admit::Refused;
use crate::queueing::registry::{Generation, Lease, Registry};
use crate::queueing::ticket::Failure;
use crate::replica::Replica;
pub use engines::EngineOn;
use engines::{EngineHolder, Engines};
use speaker::{Again, Begun, Heard, Link, Speaker, submit};

/// The most answers under way, unless there are more seats.
const MOST: usize = 1024;
/// After what time a caller who was refused may ask again.
const AGAIN: Duration = Duration::from_secs(1);

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
    engines: Engines,
    heard: Sender<Heard>,
    next: AtomicU64,
    open: Arc<AtomicUsize>,
    closed: AtomicBool,
}

impl LanguageModel {
    /// Serves a model by its engines, one a device. All of them have the adapters that `speech` names.
    ///
    /// # Errors
    /// No engine, or engines of different models; two adapters of one name; the operating system gives no thread.
    pub fn start(engines: Vec<EngineOn>, mut speech: Speech) -> Result<Self> {
        let mut registry = Registry::new(&speech.name);
        for generation in speech.adapters.drain(..) {
            let alias = generation.alias.clone();
            let taken = |_| Error::invalid("adapters", "names of their own, other than the model's", format!("{alias:?} twice"));
            registry.load(generation, false, None).map_err(taken)?;
        }
        let (names, engines) = (Names::new(registry), Engines::new(engines)?);
        let (context, vocabulary) = engines.all().first().map_or((0, 0), |engine| (engine.context, engine.vocabulary));
        let (heard, inbox) = channel();
        let open = Arc::new(AtomicUsize::new(0));
        let holder = EngineHolder { engines: engines.clone(), names: names.clone() };
        let speaker = Speaker { engines: engines.clone(), inbox, open: Arc::clone(&open), holder: holder.clone() };
        let thread = std::thread::Builder::new().name("trifuse speaker".into()).spawn(move || speaker.run());
        thread.map_err(|error| Error::device("the thread that hands out tokens", error))?;
        let keeper = Keeper::new(names, Box::new(holder));
        Ok(Self {
            speech,
            keeper,
            structures: OnceLock::new(),
            context,
            vocabulary,
            engines,
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

    fn render(&self, messages: &[Message], adapter: Option<&Lease<String>>) -> Result<String> {
        let own = adapter.and_then(|lease| lease.beside.get::<ChatTemplate>());
        match (own, &self.speech.template) {
            (Some(own), model) => own.render_for(model.as_ref(), messages, true),
            (None, Some(template)) => template.render(messages, true),
            (None, None) => Err(Error::invalid("chat", "a model with a chat template", "one without: ask for a completion")),
        }
    }

    fn decode(&self, ids: &[u32]) -> Vec<u8> {
        let text: Vec<u32> = ids.iter().copied().filter(|id| !self.speech.ends.contains(id)).collect();
        self.speech.tokenizer.bytes(&text)
    }

    fn grammar(&self, structure: &Structure) -> Result<Arc<dyn Grammar>> {
        let make = || Structures::new(&self.speech.tokenizer, u32::try_from(self.vocabulary).unwrap_or(u32::MAX), &self.speech.ends);
        match self.structures.get_or_init(|| make().map_err(|error| error.to_string())) {
            Ok(structures) => begun(structures.grammar(structure)?, self.vocabulary),
            Err(error) => Err(Error::unsupported("structured answers", error.clone())),
        }
    }

    fn submit(&self, prompt: Prompt, accept: Accept) -> Result<(), Box<NotLetIn>> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(accept.refuse(Closed::For(Failure::Draining)));
        }
        if self.open.fetch_add(1, Ordering::Relaxed) >= MOST.max(self.seats()) {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return Err(accept.refuse(Closed::Busy(Refused { retry_after: AGAIN })));
        }
        let Some(engine) = self.engines.take() else {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return Err(accept.refuse(Closed::For(Failure::DeviceLost)));
        };
        let from = Link { key: self.next.fetch_add(1, Ordering::Relaxed), engine };
        let Prompt { ids, max_tokens, params, prompt_logprobs, adapter, grammar, tenant: _, timeout } = prompt;
        let room = self.context.saturating_sub(ids.len()).max(1);
        let own = adapter.as_ref().map(|lease| lease.adapter.clone());
        let request = Request::new(ids, max_tokens.unwrap_or(room)).with_sampling(params).with_stop(self.speech.ends.clone());
        let request = request.with_adapter(own).with_grammar(grammar).with_prompt_logprobs(prompt_logprobs);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let again = (self.engines.all().len() > 1).then(|| Again { request: request.clone(), heard: self.heard.clone() });
        let begun = Box::new(Begun { tokens: accept.accept(), adapter, deadline, again });
        // A speaker that is gone drops what it had, and so tells every caller.
        drop(self.heard.send(Heard::Begun { from, begun }));
        submit(&self.engines, from, request, &self.heard);
        Ok(())
    }

    fn seats(&self) -> usize {
        self.engines.seats()
    }

    fn cache_use(&self) -> Option<f64> {
        self.engines.cache_use()
    }

    fn close(&self, now: bool) {
        self.closed.store(true, Ordering::Relaxed);
        if now {
            drop(self.heard.send(Heard::Closed));
        }
    }

    fn is_open(&self) -> Result<(), Closed> {
        if self.engines.working().next().is_some() { Ok(()) } else { Err(Closed::For(Failure::DeviceLost)) }
    }

    fn running(&self) -> Option<Duration> {
        self.engines.stepping()
    }

    fn replicas(&self) -> Vec<Arc<Replica>> {
        self.engines.all().iter().map(|engine| Arc::clone(&engine.replica)).collect()
    }

    fn watch(&self, most: Duration) {
        for engine in self.engines.give_up_hanging(most) {
            drop(self.heard.send(Heard::Lost { engine }));
        }
    }
}

impl std::fmt::Debug for LanguageModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} answers under way", self.speech.name, self.open.load(Ordering::Relaxed))
    }
}

/// Gives a grammar back that some token of the vocabulary begins. With another the engine would fail at the first token, as if that were the server's fault.
fn begun(grammar: Arc<dyn Grammar>, vocabulary: usize) -> Result<Arc<dyn Grammar>> {
    let mut mask = vec![0; vocabulary.div_ceil(32)];
    grammar.begin()?.allow(&mut mask)?;
    let any = mask.iter().any(|word| *word != 0);
    if any { Ok(grammar) } else { Err(Error::invalid("structure", "one that the model's tokens can write", "one that none of them begins")) }
}
