//! A model that embeds: its tokenizer, its names, and the threads of its devices.

mod holder;
mod open;

use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use trifuse::model::Text;
use trifuse::{Error, Result};

use crate::embedder::EmbeddingModel;
use crate::keeper::{Adapters, Keeper};
use crate::line::{Closed, Copies, Line, Sentence};
use crate::metrics::Metrics;
use crate::queueing::admit::Limits;
use crate::queueing::clock::{Clock, Monotonic};
use crate::queueing::gather;
use crate::queueing::ledger::Ledger;
use crate::queueing::queues::Tenant;
use crate::queueing::registry::Registry;
use crate::queueing::ticket::{self, Failure, Waiter};
use crate::replica::Replica;
use holder::Devices;
use open::{Opening, Ready};

/// What the answer of a request is sent to.
pub type Answer = Box<dyn FnOnce(Result<Vec<Vec<f32>>, Failure>) + Send>;

/// A model that is served.
pub struct Embeddings {
    text: Text,
    keeper: Keeper<Copies>,
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

impl Shared {
    /// What work shares that is asked for by its own process, without a server.
    pub fn alone(limits: Limits) -> Self {
        let ledger = Arc::<Ledger>::default();
        Self { limits, clock: Arc::new(Monotonic::default()), metrics: Arc::new(Metrics::new(Arc::clone(&ledger))), ledger }
    }
}

impl Embeddings {
    /// Opens the model on every device, each on a thread of its own, and returns once all of them can answer.
    ///
    /// # Errors
    /// What opening it or its first batch fails with; two adapters of one name; devices with other adapters.
    pub fn start(model: EmbeddingModel, shared: &Shared) -> Result<(Self, Vec<JoinHandle<()>>)> {
        let EmbeddingModel { name, devices } = model;
        let (replicas, opens): (Vec<Arc<Replica>>, Vec<_>) = devices.into_iter().map(|(device, open)| (Replica::new(device), open)).unzip();
        let line = Arc::new(Line::new(shared.limits, Arc::clone(&shared.clock), Arc::clone(&shared.metrics), &replicas));
        let opening = opens.into_iter().enumerate().map(|(number, open)| Opening::start(number, open, &line)).collect::<Result<Vec<Opening>>>()?;
        let opened = opening.into_iter().map(Opening::wait).collect::<Result<Vec<_>>>()?;
        let (mut ready, threads): (Vec<Ready>, Vec<JoinHandle<()>>) = opened.into_iter().unzip();
        let names = open::name(&name, &mut ready)?;
        let first = ready.into_iter().next().ok_or_else(|| Error::invalid("devices", "at least one", "none"))?;
        let Ready { text, width, vocabulary, .. } = first;
        shared.metrics.tell_of(&name, &replicas);
        let keeper = Keeper::new(names, Box::new(Devices { line: Arc::clone(&line), replicas }));
        Ok((Self { text, keeper, line, ledger: Arc::clone(&shared.ledger), width, vocabulary }, threads))
    }

    /// The names that are served.
    pub fn registry(&self) -> MutexGuard<'_, Registry<Copies>> {
        self.keeper.names()
    }

    /// The adapters, which come and go.
    pub fn adapters(&self) -> &dyn Adapters {
        &self.keeper
    }

    /// How long all devices that work have been busy with the batches that they run.
    pub fn running(&self) -> Option<Duration> {
        self.line.running()
    }

    /// Gives up each device that has been at one batch for longer than `most`, as long as another works.
    pub fn watch(&self, most: Duration) {
        self.line.watch(most);
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
