//! An engine on a thread of its own: requests from any thread, and each one's tokens as they come.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::batching::Engine;
use super::options::Request;
use super::output::Output;
use crate::adapters::encoded::EncodedAdapter;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::llm::schedule::{Finish, Usage};
use crate::llm::step::RequestId;

/// How long the thread waits for news where it has requests and none can go on.
const PAUSE: Duration = Duration::from_millis(1);

/// What gets the outputs of a request, on the engine's thread: it has to be quick. An error comes at most once, alone, where the request was
/// refused or the engine ended. Where it returns false, the request is given up. One that is dropped before an end or an error is told will not be told.
pub type Sink = Box<dyn FnMut(Result<Output>) -> bool + Send>;

/// The number of a request that was handed to a [`Service`]. None is given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call(u64);

enum Command {
    Submit(Call, Box<Request>, Sink),
    Cancel(Call),
    Usage(Sender<Usage>),
    AddAdapter(String, Box<EncodedAdapter>, Sender<Result<()>>),
    RemoveAdapter(String, Option<Sender<Result<()>>>),
    /// Which of these adapters are on the device.
    Resident(Vec<String>, Sender<Vec<bool>>),
    /// No more requests come. Those that run end by themselves, or are given up.
    Stop {
        drain: bool,
    },
}

/// What the thread shows without being asked.
#[derive(Debug, Default)]
struct State {
    /// Whether the device has failed for good.
    lost: AtomicBool,
    /// When the present step began, in milliseconds since the start and one more; 0 between steps.
    began: AtomicU64,
    /// The bits of the part of the pages of K and V that requests hold.
    cache: AtomicU64,
}

/// A thread that runs an engine. Dropping it gives up what runs.
#[derive(Debug)]
pub struct Service {
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
    calls: AtomicU64,
    state: Arc<State>,
    started: Instant,
}

impl Service {
    /// Starts the thread. Deadlines of requests are milliseconds from now on.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn start<D: Backend>(engine: Engine<D>) -> Result<Self> {
        let (commands, inbox) = channel();
        let (state, started) = (Arc::new(State::default()), Instant::now());
        let running = Running { engine, inbox, sinks: HashMap::new(), calls: HashMap::new(), stopping: false, state: Arc::clone(&state), started };
        let thread = std::thread::Builder::new().name("trifuse engine".into()).spawn(move || running.run());
        let thread = thread.map_err(|error| Error::device("the engine's thread", error))?;
        Ok(Self { commands, thread: Some(thread), calls: AtomicU64::new(0), state, started })
    }

    /// Hands a request to the engine. Does not block.
    ///
    /// # Errors
    /// An engine that has ended.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<Call> {
        let call = Call(self.calls.fetch_add(1, Ordering::Relaxed));
        self.send(Command::Submit(call, request.into(), sink))?;
        Ok(call)
    }

    /// Gives a request up. Its sink is told of the end, unless it ended before.
    ///
    /// # Errors
    /// An engine that has ended.
    pub fn cancel(&self, call: Call) -> Result<()> {
        self.send(Command::Cancel(call))
    }

    /// Hands a request to the engine, and gives its outputs as they come. Dropping them gives the request up.
    ///
    /// # Errors
    /// An engine that has ended.
    pub fn stream(&self, request: Request) -> Result<Outputs> {
        let (sender, outputs) = channel();
        self.submit(request, Box::new(move |output| sender.send(output).is_ok()))?;
        Ok(Outputs { outputs, ended: false })
    }

    /// What the engine's scheduler holds, after its present step.
    ///
    /// # Errors
    /// An engine that has ended.
    pub fn usage(&self) -> Result<Usage> {
        self.ask(Command::Usage)
    }

    /// Adds an adapter, after the present step.
    ///
    /// # Errors
    /// The errors of [`Engine::add_adapter`]; an engine that has ended.
    pub fn add_adapter(&self, name: &str, adapter: EncodedAdapter) -> Result<()> {
        self.ask(|sender| Command::AddAdapter(name.to_owned(), adapter.into(), sender))?
    }

    /// Forgets an adapter, after the present step. Requests that have it keep it to their end.
    ///
    /// # Errors
    /// The errors of [`Engine::remove_adapter`]; an engine that has ended.
    pub fn remove_adapter(&self, name: &str) -> Result<()> {
        self.ask(|sender| Command::RemoveAdapter(name.to_owned(), Some(sender)))?
    }

    /// Forgets an adapter as [`remove_adapter`](Self::remove_adapter) does, and does not wait for it. A name that no adapter has is passed over.
    ///
    /// # Errors
    /// An engine that has ended.
    pub fn forget_adapter(&self, name: &str) -> Result<()> {
        self.send(Command::RemoveAdapter(name.to_owned(), None))
    }

    /// Whether each of these adapters is on the device, after the present step.
    ///
    /// # Errors
    /// An engine that has ended.
    pub fn are_resident(&self, names: Vec<String>) -> Result<Vec<bool>> {
        self.ask(|sender| Command::Resident(names, sender))
    }

    /// Whether the device has failed, so that no request is answered any more.
    pub fn is_lost(&self) -> bool {
        self.state.lost.load(Ordering::Acquire)
    }

    /// How long the present step has been under way; nothing between steps. A device that hangs shows in it.
    pub fn stepping(&self) -> Option<Duration> {
        let began = self.state.began.load(Ordering::Acquire).checked_sub(1)?;
        Some(self.started.elapsed().saturating_sub(Duration::from_millis(began)))
    }

    /// The part of the pages of K and V that requests hold, from 0 to 1, as of the last step. It waits for nothing.
    pub fn cache_use(&self) -> f64 {
        f64::from_bits(self.state.cache.load(Ordering::Relaxed))
    }

    /// Sends a command that is answered.
    fn ask<A>(&self, command: impl FnOnce(Sender<A>) -> Command) -> Result<A> {
        let (sender, answer) = channel();
        self.send(command(sender))?;
        answer.recv().map_err(|_| ended())
    }

    /// Takes no more requests, and waits for those that run.
    pub fn drain(mut self) {
        self.end(true);
    }

    fn send(&self, command: Command) -> Result<()> {
        self.commands.send(command).map_err(|_| ended())
    }

    fn end(&mut self, drain: bool) {
        // An error says that the thread has ended before.
        let _ = self.send(Command::Stop { drain });
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end(false);
    }
}

fn ended() -> Error {
    Error::invalid("engine", "one that runs", "one that has ended: see its first error")
}

/// The outputs of a request: tokens, and at last its end.
#[derive(Debug)]
pub struct Outputs {
    outputs: Receiver<Result<Output>>,
    ended: bool,
}

impl Iterator for Outputs {
    type Item = Result<Output>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.outputs.recv().unwrap_or_else(|_| Err(ended()));
        self.ended = !matches!(next, Ok(Output::Prompt { .. } | Output::Token { .. }));
        Some(next)
    }
}

/// The state of the thread.
struct Running<D: Backend> {
    engine: Engine<D>,
    inbox: Receiver<Command>,
    sinks: HashMap<RequestId, (Call, Sink)>,
    calls: HashMap<Call, RequestId>,
    stopping: bool,
    state: Arc<State>,
    started: Instant,
}

impl<D: Backend> Running<D> {
    fn run(mut self) {
        let mut outputs = Vec::new();
        while self.take_commands() {
            let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
            self.state.began.store(now + 1, Ordering::Release);
            let stepped = self.engine.step(now, &mut outputs);
            self.state.began.store(0, Ordering::Release);
            self.show_cache_use();
            let (idle, lost) = (matches!(stepped, Ok(false)), matches!(stepped, Err(Error::Device { .. })));
            if lost {
                self.state.lost.store(true, Ordering::Release);
            }
            let told = !outputs.is_empty();
            // Who fails is told in the outputs. The others go on, unless the device itself is gone.
            outputs.drain(..).for_each(|output| self.tell(output));
            if lost {
                return self.fail_all();
            }
            if idle && !told && !self.engine.is_idle() && !self.engine.is_loading() {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn show_cache_use(&self) {
        let Usage { used_pages, free_pages, .. } = self.engine.usage();
        let part = used_pages as f64 / (used_pages + free_pages).max(1) as f64;
        self.state.cache.store(part.to_bits(), Ordering::Relaxed);
    }

    /// Takes what came; waits where there is nothing else to do. False where the thread is to end.
    fn take_commands(&mut self) -> bool {
        loop {
            let idle = self.engine.is_idle();
            if idle && self.stopping {
                return false;
            }
            let next = match self.inbox.try_recv() {
                Err(TryRecvError::Empty) if idle => {
                    // Requests that were given up have left pages since the last step.
                    self.show_cache_use();
                    self.inbox.recv().ok()
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => None,
                Ok(command) => Some(command),
            };
            match next {
                Some(Command::Submit(call, request, sink)) => self.submit(call, *request, sink),
                Some(Command::Cancel(call)) => self.cancel(call),
                Some(Command::Usage(sender)) => drop(sender.send(self.engine.usage())),
                Some(Command::AddAdapter(name, adapter, sender)) => drop(sender.send(self.engine.add_adapter(&name, *adapter))),
                Some(Command::RemoveAdapter(name, sender)) => {
                    let removed = self.engine.remove_adapter(&name);
                    drop(sender.map(|sender| sender.send(removed)));
                }
                Some(Command::Resident(names, sender)) => drop(sender.send(names.iter().map(|name| self.engine.is_resident(name)).collect())),
                Some(Command::Stop { drain: true }) => self.stopping = true,
                Some(Command::Stop { drain: false }) | None => {
                    self.give_up_all();
                    return false;
                }
            }
        }
    }

    fn submit(&mut self, call: Call, request: Request, mut sink: Sink) {
        let submitted =
            if self.stopping { Err(Error::invalid("engine", "one that takes requests", "one that is ending")) } else { self.engine.submit(request) };
        match submitted {
            Ok(id) => {
                self.calls.insert(call, id);
                self.sinks.insert(id, (call, sink));
            }
            Err(error) => drop(sink(Err(error))),
        }
    }

    fn tell(&mut self, output: Output) {
        let (request, ended) = match &output {
            Output::Prompt { request, .. } | Output::Token { request, .. } => (*request, false),
            Output::Ended { finished, .. } => (finished.request, true),
        };
        let Some((call, sink)) = self.sinks.get_mut(&request) else { return };
        let listens = sink(Ok(output));
        if ended || !listens {
            self.calls.remove(call);
            self.sinks.remove(&request);
        }
        if !ended && !listens {
            // The number is one that the engine gave.
            let _ = self.engine.finish(request, Finish::Cancelled);
        }
    }

    fn cancel(&mut self, call: Call) {
        // A request that has ended has no number here any more, and those that have one are the engine's.
        let Some(request) = self.calls.get(&call).copied() else { return };
        if let Ok(Some(finished)) = self.engine.finish(request, Finish::Cancelled) {
            self.tell(Output::Ended { finished, error: None });
        }
    }

    /// Tells all requests that the device is gone.
    fn fail_all(&mut self) {
        for (_, mut sink) in std::mem::take(&mut self.sinks).into_values() {
            sink(Err(Error::device("the engine", "it failed at another request, and takes no more work")));
        }
    }

    fn give_up_all(&mut self) {
        self.calls.keys().copied().collect::<Vec<Call>>().into_iter().for_each(|call| self.cancel(call));
    }
}
