//! What the server asks of a language model's engine. The engine takes prompts as ids, and sends tokens as they come.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use trifuse::llm::sample::SamplingParams;
use trifuse::llm::schedule::Finish;
use trifuse::llm::{Grammar, Message, Structure};
use trifuse::{Error, Result};

use crate::keeper::Keeper;
use crate::line::Closed;
use crate::queueing::ledger::Ledger;
use crate::queueing::queues::Tenant;
use crate::queueing::registry::Lease;
use crate::queueing::ticket::{self, Failure, Ticket, Waiter};
use crate::replica::Replica;

/// The most tokens that wait for a caller who is slow to take them.
const CAPACITY: usize = 64;

/// A prompt to go on with.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Ids of the prompt's tokens; at least one.
    pub ids: Vec<u32>,
    /// The most tokens to generate; `None` for as many as the context has room for.
    pub max_tokens: Option<usize>,
    /// How tokens are drawn.
    pub params: SamplingParams,
    /// Whether to send how probable the prompt's tokens were, from the second on and before any other, each with as many of the most probable ones.
    pub prompt_logprobs: Option<u32>,
    /// The adapter, to be held until the answer has ended; `None` for the base.
    pub adapter: Option<Lease<String>>,
    /// What the answer is held to; `None` is any text.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// Who asks.
    pub tenant: Tenant,
    /// The most time until the prompt reaches the device; behind it the engine fails it as [`Failure::Expired`].
    pub timeout: Option<Duration>,
}

/// One token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// The token's id.
    pub id: u32,
    /// Whether it is one of the prompt's.
    pub of_prompt: bool,
    /// The logarithm of its probability, where [`SamplingParams::top`] asks for any.
    pub logprob: f32,
    /// The most probable tokens and the logarithms of their probabilities, as many as [`SamplingParams::top`].
    pub top: Vec<(u32, f32)>,
}

/// A language model's engine.
pub trait Generate: Send + Sync {
    /// The model's name, and its adapters by theirs.
    fn keeper(&self) -> &Keeper<String>;

    /// The most tokens of a prompt and its answer together.
    fn max_tokens(&self) -> usize;

    /// The tokens of the vocabulary.
    fn vocabulary(&self) -> usize;

    /// The ids of a text. With `marks` they begin with what the model puts before a text; the text of a chat has that already.
    ///
    /// # Errors
    /// A text that has no tokens: a fault of the model's files.
    fn encode(&self, text: &str, marks: bool) -> Result<Vec<u32>>;

    /// The text of a chat, with the start of the assistant's turn: by the template of `adapter`, where it has one of its own.
    ///
    /// # Errors
    /// No template, or one that refuses the chat.
    fn render(&self, messages: &[Message], adapter: Option<&Lease<String>>) -> Result<String>;

    /// The bytes of some ids that stand side by side. Ids that are no text, as those that end one, have none.
    fn decode(&self, ids: &[u32]) -> Vec<u8>;

    /// The grammar of a structure.
    ///
    /// # Errors
    /// A structure that cannot be followed, or any where the engine holds answers to none.
    fn grammar(&self, structure: &Structure) -> Result<Arc<dyn Grammar>> {
        let _ = structure;
        Err(Error::unsupported("structured answers", "this model's engine has none"))
    }

    /// Takes a prompt, and sends its tokens from another thread to what `accept` gives.
    ///
    /// # Errors
    /// There is too much before it, or nothing is taken any more: see [`Accept::refuse`].
    fn submit(&self, prompt: Prompt, accept: Accept) -> Result<(), Box<NotLetIn>>;

    /// The most prompts that it works on at once. The server hands over no more, and lets the others wait in turns.
    fn seats(&self) -> usize {
        usize::MAX
    }

    /// The part of the pages of K and V that requests hold, from 0 to 1, where it is known. It waits for nothing.
    fn cache_use(&self) -> Option<f64> {
        None
    }

    /// The adapters of the prompts that it works on, and of those that wait for their turn, where it tells of them.
    fn adapters_asked(&self) -> [Vec<String>; 2] {
        Default::default()
    }

    /// Takes no more prompts; with `now` those under way fail as [`Failure::Draining`].
    fn close(&self, now: bool);

    /// Whether prompts are taken at all.
    ///
    /// # Errors
    /// They are not, and why.
    fn is_open(&self) -> Result<(), Closed> {
        Ok(())
    }

    /// How long the step that runs has been under way; of several devices all have to be at one, and the one that began last counts.
    fn running(&self) -> Option<Duration> {
        None
    }

    /// The devices that it runs on, where it tells of them.
    fn replicas(&self) -> Vec<Arc<Replica>> {
        Vec::new()
    }

    /// Gives up each device that has been at one step for longer than `most`, as long as another works.
    fn watch(&self, most: Duration) {
        let _ = most;
    }
}

/// The right to answer a prompt, which the engine takes up by [`Accept::accept`] if it lets the prompt in.
pub struct Accept {
    to: To,
    place: Option<Place>,
}

/// Where the answer goes.
enum To {
    /// To a caller who does not know yet whether the prompt is let in.
    New { ledger: Arc<Ledger>, ready: oneshot::Sender<Coming> },
    /// To a caller who waits for the first token.
    Waits(Tokens),
}

/// What is held until the answer has ended.
type Place = Box<dyn std::any::Any + Send + Sync>;

/// A prompt that is not let in: why, and the right to answer it, which goes back to who asked.
pub struct NotLetIn {
    /// Why it is not let in.
    pub closed: Closed,
    /// The right to answer it.
    pub accept: Accept,
}

impl std::fmt::Debug for NotLetIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not let in: {:?}", self.closed)
    }
}

/// A pair of the right to answer a prompt, and of the place where its answer comes.
pub fn answer(ledger: &Arc<Ledger>) -> (Accept, Pending) {
    let (ready, pending) = oneshot::channel();
    (Accept { to: To::New { ledger: Arc::clone(ledger), ready }, place: None }, Pending(pending))
}

impl Accept {
    /// Lets the prompt in.
    pub fn accept(self) -> Tokens {
        let Self { to, place } = self;
        match to {
            To::New { ledger, ready } => {
                let (sender, receiver) = mpsc::channel(CAPACITY);
                let (end, ended) = oneshot::channel();
                let (ticket, waiter) = ticket::accept(&ledger, move |result| drop(end.send(result)));
                // Where nobody is there any more the waiter is dropped, and the ticket knows.
                drop(ready.send(Coming { tokens: receiver, ended, waiter }));
                Tokens { ticket, sender, place }
            }
            To::Waits(tokens) => Tokens { place, ..tokens },
        }
    }

    /// Does not let the prompt in, and says why.
    pub fn refuse(self, closed: Closed) -> Box<NotLetIn> {
        Box::new(NotLetIn { closed, accept: self })
    }

    /// The right to answer a prompt that was let in before, and that its engine has not had yet.
    pub(crate) fn again(tokens: Tokens) -> Self {
        Self { to: To::Waits(tokens), place: None }
    }

    /// The same, and something to be held until the answer has ended.
    pub(crate) fn with(self, place: impl std::any::Any + Send + Sync) -> Self {
        Self { place: Some(Box::new(place)), ..self }
    }

    /// Where the tokens of a prompt go that was let in before; the place that was held is free again.
    pub(crate) fn back(self) -> Option<Tokens> {
        match self.to {
            To::New { .. } => None,
            To::Waits(tokens) => Some(tokens),
        }
    }
}

/// What became of a token that was sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Sent {
    /// The caller will have it.
    Taken,
    /// The caller is slow: send it again later, and generate no more meanwhile.
    Full(Token),
    /// The caller is gone: end it.
    Gone,
}

/// Where an engine sends the tokens of one answer. Dropped without an end, it tells the caller that the server failed.
#[derive(Debug)]
pub struct Tokens {
    ticket: Ticket<Finish>,
    sender: mpsc::Sender<Token>,
    /// What is held until the answer has ended; it goes behind the ticket.
    place: Option<Place>,
}

impl Tokens {
    /// Sends a token; it never waits.
    pub fn send(&self, token: Token) -> Sent {
        match self.sender.try_send(token) {
            _ if self.is_cancelled() => Sent::Gone,
            Ok(()) => Sent::Taken,
            Err(mpsc::error::TrySendError::Full(token)) => Sent::Full(token),
            Err(mpsc::error::TrySendError::Closed(_)) => Sent::Gone,
        }
    }

    /// Gives the seat up: the engine is done, and the caller only has to take what is there.
    pub fn free_seat(&mut self) {
        self.place = None;
    }

    /// Whether the caller is gone.
    pub fn is_cancelled(&self) -> bool {
        self.ticket.is_cancelled()
    }

    /// Ends the answer.
    pub fn finish(self, reason: Finish) {
        self.ticket.finish(reason);
        drop(self.place);
    }

    /// Ends the answer by a failure.
    pub fn fail(self, failure: Failure) {
        self.ticket.fail(failure);
        drop(self.place);
    }
}

/// Where the answer of a prompt comes, once the engine has let it in.
pub struct Pending(oneshot::Receiver<Coming>);

impl Pending {
    /// The answer as it comes.
    ///
    /// # Errors
    /// The engine took the prompt and never let it in.
    pub async fn begin(self) -> Result<Coming, Failure> {
        self.0.await.map_err(|_| Failure::Forgotten)
    }
}

/// An answer as it comes. The engine stops where this is dropped.
#[derive(Debug)]
pub struct Coming {
    tokens: mpsc::Receiver<Token>,
    ended: oneshot::Receiver<Result<Finish, Failure>>,
    waiter: Waiter,
}

impl Coming {
    /// The next token; `None` after the last.
    pub async fn token(&mut self) -> Option<Token> {
        self.tokens.recv().await
    }

    /// Wants no more of it: the engine stops, and the request counts as finished.
    pub fn satisfied(&self) {
        self.waiter.satisfied();
    }

    /// How the answer ended, after its last token.
    ///
    /// # Errors
    /// It failed.
    pub async fn end(&mut self) -> Result<Finish, Failure> {
        (&mut self.ended).await.unwrap_or(Err(Failure::Forgotten))
    }
}
