//! A model that embeds: its tokenizer, its names, and the thread of its device.

use std::sync::{Arc, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use trifuse::adapters::encoded::EncodedAdapter;
use trifuse::adapters::engine::AdapterId;
use trifuse::model::Text;
use trifuse::{Error, Result};

use crate::embedder::{Embedder, EmbeddingModel, Opened};
use crate::keeper::{Adapters, Holder, Keeper, Names};
use crate::line::{Closed, Line, Sentence};
use crate::metrics::Metrics;
use crate::queueing::admit::Limits;
use crate::queueing::batch::Grid;
use crate::queueing::clock::Clock;
use crate::queueing::gather;
use crate::queueing::ledger::Ledger;
use crate::queueing::queues::Tenant;
use crate::queueing::registry::{Lease, Registry};
use crate::queueing::ticket::{self, Failure, Waiter};
use crate::runner::Runner;

/// What the answer of a request is sent to.
pub type Answer = Box<dyn FnOnce(Result<Vec<Vec<f32>>, Failure>) + Send>;

/// A model that is served.
pub struct Embeddings {
    text: Text,
    keeper: Keeper<AdapterId>,
    line: Arc<Line>,
    ledger: Arc<Ledger>,
    /// Elements of a vector.
    pub width: usize,
    /// Rows of the token table.
    pub vocabulary: u32,
}

/// What all models of a server share.
#[derive(Clone)]
pub struct Shared {
    /// Bounds of what waits.
    pub limits: Limits,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// What is measured.
    pub metrics: Arc<Metrics>,
    /// What becomes of requests.
    pub ledger: Arc<Ledger>,
}

/// What the thread sends once the model is open.
type Ready = (Text, Names<AdapterId>, [usize; 2]);

impl Embeddings {
    /// Opens the model on a thread of its own, and returns once it can answer.
    ///
    /// # Errors
    /// What opening it or its first batch fails with; two adapters of one name.
    pub fn start(model: EmbeddingModel, shared: &Shared) -> Result<(Self, JoinHandle<()>)> {
        let EmbeddingModel { name, open } = model;
        let line = Arc::new(Line::new(shared.limits, Arc::clone(&shared.clock), Arc::clone(&shared.metrics)));
        let (sender, ready) = mpsc::channel::<Result<Ready>>();
        let own = Arc::clone(&line);
        let work = move || match open().and_then(|opened| prepared(&name, opened, &own)) {
            Ok((runner, ready)) => {
                // Nobody waits for it any more where the server is being given up.
                if sender.send(Ok(ready)).is_ok() {
                    runner.run(&own);
                }
            }
            Err(error) => drop(sender.send(Err(error))),
        };
        let thread = std::thread::Builder::new().name("device".into()).spawn(work).map_err(Error::io("thread of the device", "start"))?;
        let failed = |_| Error::device("opening the model", "its thread ended");
        let (text, names, [width, vocabulary]) = ready.recv().map_err(failed)??;
        let vocabulary = u32::try_from(vocabulary).unwrap_or(u32::MAX);
        let keeper = Keeper::new(names, Box::new(Device(Arc::clone(&line))));
        Ok((Self { text, keeper, line, ledger: Arc::clone(&shared.ledger), width, vocabulary }, thread))
    }

    /// The names that are served.
    pub fn registry(&self) -> MutexGuard<'_, Registry<AdapterId>> {
        self.keeper.names()
    }

    /// The adapters, which come and go.
    pub fn adapters(&self) -> &dyn Adapters {
        &self.keeper
    }

    /// How long the batch that runs has been under way.
    pub fn running(&self) -> Option<Duration> {
        self.line.running()
    }

    /// The model's tokenizer.
    pub fn text(&self) -> &Text {
        &self.text
    }

    /// Whether a tenant's request of that many tokens would be let in now.
    ///
    /// # Errors
    /// It would not, and why.
    pub fn ask(&self, tenant: Tenant, tokens: u64, left: Option<Duration>) -> Result<(), Closed> {
        self.line.ask(tenant, tokens, left)
    }

    /// Whether requests are taken at all.
    ///
    /// # Errors
    /// They are not, and why.
    pub fn is_open(&self) -> Result<(), Closed> {
        self.line.is_open()
    }

    /// Puts a request in line, of at least one sentence. Its answer goes to `answer`, exactly once; the request is given up where what is returned is dropped.
    ///
    /// # Errors
    /// The request is not let in. Then `answer` is not called.
    pub fn enter(&self, tenant: Tenant, sentences: Vec<Sentence>, deadline: Option<Duration>, answer: Answer) -> Result<Waiter, Closed> {
        let count = sentences.len();
        self.line.enter(tenant, sentences, deadline, || {
            let (ticket, waiter) = ticket::accept(&self.ledger, answer);
            (gather::parts(ticket, count), waiter)
        })
    }

    /// Takes no more requests; with `now` those that wait fail too.
    pub fn close(&self, now: bool) {
        self.line.close(&Failure::Draining, now);
    }
}

/// What holds adapters on the thread of the device.
struct Device(Arc<Line>);

impl Device {
    /// Has the device's thread answer something.
    fn ask<A: Send + 'static>(&self, of: impl FnOnce(&mut dyn Embedder) -> A + Send + 'static) -> Result<A> {
        let gone = || Error::device("the thread of the device", "it takes no more work");
        let (sender, answer) = mpsc::channel();
        self.0.chore(Box::new(move |embedder| drop(sender.send(of(embedder))))).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())
    }
}

impl Holder<AdapterId> for Device {
    fn add(&self, name: &str, adapter: EncodedAdapter) -> Result<AdapterId> {
        let name = name.to_owned();
        self.ask(move |embedder| embedder.add(&name, adapter))?
    }

    fn sweep(&self) {
        // The thread sweeps behind every chore; one that has ended has nothing left.
        drop(self.0.chore(Box::new(|_| {})));
    }

    fn are_resident(&self, of: &[Lease<AdapterId>]) -> Option<Vec<bool>> {
        let ids: Vec<AdapterId> = of.iter().map(|lease| lease.adapter).collect();
        self.ask(move |embedder| ids.into_iter().map(|id| embedder.is_resident(id)).collect()).ok()
    }
}

/// An open model, ready to run.
fn prepared(name: &str, opened: Opened, line: &Line) -> Result<(Runner, Ready)> {
    let Opened { embedder, text, adapters, width, vocabulary, batch_tokens, warm } = opened;
    let max_tokens = text.max_tokens();
    let mut registry = Registry::new(name);
    for generation in adapters {
        let alias = generation.alias.clone();
        let taken = |_| Error::invalid("adapters", "names of their own, other than the model's", format!("{alias:?} twice"));
        registry.load(generation, false, None).map_err(taken)?;
    }
    let names = Names::new(registry);
    let mut runner = Runner { embedder, grid: Grid::new(batch_tokens, max_tokens), batch_tokens, max_tokens, width, names: names.clone() };
    if warm {
        runner.warm(line)?;
    }
    Ok((runner, (text, names, [width, vocabulary as usize])))
}
