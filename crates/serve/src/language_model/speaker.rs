//! The thread between engines and callers: an engine never waits for one of them, and a prompt whose engine fails before its first token gets another.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use trifuse::llm::engine::{Call, Output, Request};
use trifuse::llm::sample::Choice;
use trifuse::llm::schedule::Finish;
use trifuse::{Error, Result};

use super::engines::{EngineHolder, Engines};
use crate::generate::{Sent, Token, Tokens};
use crate::keeper::Holder;
use crate::queueing::registry::Lease;
use crate::queueing::ticket::Failure;

/// How often callers who are slow, who went away, or whose time is up are looked for.
const STEP: Duration = Duration::from_millis(5);

/// Where an engine tells of one request. Its end without a word tells that the engine is gone.
struct Ear {
    from: Link,
    heard: Sender<Heard>,
}

impl Ear {
    fn hear(&mut self, output: Result<Output>) -> bool {
        self.heard.send(Heard::Output { from: self.from, output }).is_ok()
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        drop(self.heard.send(Heard::Silence { from: self.from }));
    }
}

/// An answer, and the engine that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The answer's number.
    pub key: u64,
    /// The engine's number.
    pub engine: usize,
}

/// What the speaker is told.
pub enum Heard {
    /// A prompt was let in.
    Begun { from: Link, begun: Box<Begun> },
    /// The prompt has a number at the engine; without one the engine has ended.
    Submitted { from: Link, call: Option<Call> },
    /// Something came of it.
    Output { from: Link, output: Result<Output> },
    /// Nothing more comes of it.
    Silence { from: Link },
    /// An engine was given up.
    Lost { engine: usize },
    /// All answers under way are to end.
    Closed,
}

/// A prompt that was let in.
pub struct Begun {
    /// Where its tokens go.
    pub tokens: Tokens,
    /// The adapter, which stays as long as the answer.
    pub adapter: Option<Lease<String>>,
    /// Until when its first token has to be there.
    pub deadline: Option<Instant>,
    /// What is asked of another engine should its own fail; `None` where there is no other.
    pub again: Option<Again>,
}

/// A request that can be made once more.
pub struct Again {
    /// The request, with the seed of its draws: another engine draws the same tokens.
    pub request: Request,
    /// Where engines tell.
    pub heard: Sender<Heard>,
}

/// Hands a request to an engine, which tells the speaker of it.
pub fn submit(engines: &Engines, from: Link, request: Request, heard: &Sender<Heard>) {
    let mut ear = Ear { from, heard: heard.clone() };
    let submitted = engines.all()[from.engine].service.submit(request, Box::new(move |output| ear.hear(output)));
    // A speaker that is gone has told every caller.
    drop(heard.send(Heard::Submitted { from, call: submitted.ok() }));
}

/// An answer under way.
struct Answer {
    begun: Begun,
    /// The engine that makes it.
    engine: usize,
    /// Tokens for which the caller had no room.
    waiting: VecDeque<Token>,
    /// How it ended at the engine.
    end: Option<Result<Finish, Failure>>,
    call: Option<Call>,
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
    /// Takes tokens of the engine. From the first one on no other engine can go on with the answer.
    fn take(&mut self, tokens: impl Iterator<Item = Token>) {
        self.begun.again = None;
        self.waiting.extend(tokens);
    }

    /// Hands out what there is room for.
    fn flush(&mut self, now: Instant) -> Next {
        if self.end.is_some() {
            self.begun.tokens.free_seat();
        }
        while let Some(token) = self.waiting.pop_front() {
            match self.begun.tokens.send(token) {
                Sent::Taken => self.begun.deadline = None,
                Sent::Full(token) => {
                    self.waiting.push_front(token);
                    return Next::Stays;
                }
                Sent::Gone => return Next::Goes,
            }
        }
        match self.end.take() {
            _ if self.begun.tokens.is_cancelled() => Next::Goes,
            Some(end) => Next::Ends(end),
            None if self.begun.deadline.is_some_and(|deadline| deadline <= now) => Next::Ends(Err(Failure::Expired)),
            None => Next::Stays,
        }
    }
}

/// The thread's state.
pub struct Speaker {
    /// The engines.
    pub engines: Engines,
    /// What it is told.
    pub inbox: Receiver<Heard>,
    /// How many answers are under way.
    pub open: Arc<AtomicUsize>,
    /// What holds adapters.
    pub holder: EngineHolder,
}

impl Speaker {
    /// Hands tokens out until nobody can ask any more.
    pub fn run(self) {
        let mut live = HashMap::new();
        loop {
            let next = if live.is_empty() { self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected) } else { self.inbox.recv_timeout(STEP) };
            match next {
                Ok(heard) => {
                    self.hear(&mut live, heard);
                    while let Ok(heard) = self.inbox.try_recv() {
                        self.hear(&mut live, heard);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = Instant::now();
            let done: Vec<(u64, Next)> = live.iter_mut().map(|(key, answer)| (*key, answer.flush(now))).collect();
            for (key, next) in done {
                let end = match next {
                    Next::Stays => continue,
                    Next::Goes => None,
                    Next::Ends(end) => Some(end),
                };
                if let Some(answer) = live.remove(&key) {
                    self.end(answer, end);
                }
            }
        }
    }

    fn hear(&self, live: &mut HashMap<u64, Answer>, heard: Heard) {
        match heard {
            Heard::Begun { from, begun } => {
                live.insert(from.key, Answer { begun: *begun, engine: from.engine, waiting: VecDeque::new(), end: None, call: None });
            }
            Heard::Submitted { from, call } => match (answer_of(live, from), call) {
                (Some(answer), Some(call)) => answer.call = Some(call),
                (Some(answer), None) => self.lost(from.key, answer),
                // The answer has ended already, and its caller may have gone before it had a number.
                (None, Some(call)) => drop(self.engines.all()[from.engine].service.cancel(call)),
                (None, None) => {}
            },
            Heard::Output { from, output } => {
                let Some(answer) = answer_of(live, from) else { return };
                let engine = &self.engines.all()[from.engine];
                match output {
                    Ok(Output::Prompt { choices, .. }) => answer.take(choices.into_iter().map(|choice| token(choice, true))),
                    Ok(Output::Token { choice, .. }) => {
                        engine.replica.did(0, 1);
                        answer.take(std::iter::once(token(choice, false)));
                    }
                    Ok(Output::Ended { error: Some(_), .. }) if engine.service.is_lost() => self.lost(from.key, answer),
                    Ok(Output::Ended { finished, error }) => answer.end = Some(error.map_or(Ok(finished.reason), |error| Err(Failure::Internal(error)))),
                    Err(Error::Device { .. }) => self.lost(from.key, answer),
                    Err(error) => answer.end = Some(Err(Failure::Internal(error.to_string()))),
                }
            }
            Heard::Silence { from } => {
                if let Some(answer) = answer_of(live, from).filter(|answer| answer.end.is_none()) {
                    self.lost(from.key, answer);
                }
            }
            Heard::Lost { engine } => {
                let its = live.iter_mut().filter(|(_, answer)| answer.engine == engine && answer.end.is_none());
                its.for_each(|(key, answer)| self.lost(*key, answer));
            }
            Heard::Closed => {
                for (_, answer) in live.drain() {
                    self.end(answer, Some(Err(Failure::Draining)));
                }
            }
        }
    }

    /// Deals with an answer whose engine is gone: another engine makes it, once, where no token of it was seen.
    fn lost(&self, key: u64, answer: &mut Answer) {
        let lost = &self.engines.all()[answer.engine].replica;
        lost.lose();
        let Some(Again { request, heard }) = answer.begun.again.take() else {
            answer.end = Some(Err(Failure::DeviceLost));
            return;
        };
        let Some(engine) = self.engines.take() else {
            answer.end = Some(Err(Failure::DeviceLost));
            return;
        };
        lost.handed_on(1);
        self.engines.leave(answer.engine);
        if let Some(call) = answer.call.take() {
            // One that hangs may go on some day, and is to do nothing for nobody.
            drop(self.engines.all()[answer.engine].service.cancel(call));
        }
        answer.engine = engine;
        submit(&self.engines, Link { key, engine }, request, &heard);
    }

    /// Ends an answer, also at the engine; without an end its caller is gone.
    fn end(&self, answer: Answer, end: Option<Result<Finish, Failure>>) {
        let Answer { begun, engine, call, .. } = answer;
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.engines.leave(engine);
        if let Some(call) = call {
            // An engine that has ended has given up all.
            drop(self.engines.all()[engine].service.cancel(call));
        }
        let Begun { tokens, adapter, .. } = begun;
        match end {
            Some(Ok(reason)) => {
                self.engines.all()[engine].replica.did(1, 0);
                tokens.finish(reason);
            }
            Some(Err(failure)) => tokens.fail(failure),
            None => drop(tokens),
        }
        if adapter.is_some() {
            drop(adapter);
            self.holder.sweep();
        }
    }
}

/// The answer that an engine tells of. What it says of one that another engine has now is passed over.
fn answer_of(live: &mut HashMap<u64, Answer>, from: Link) -> Option<&mut Answer> {
    live.get_mut(&from.key).filter(|answer| answer.engine == from.engine)
}
