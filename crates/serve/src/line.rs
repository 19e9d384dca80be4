//! What waits for a device: who is let in, and what goes next.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use trifuse::adapters::engine::AdapterId;
use trifuse::model::Row;

use crate::embedder::Embedder;
use crate::metrics::Metrics;
use crate::queueing::admit::{Admission, Limits, Refused};
use crate::queueing::batch::{Batch, Grid, Shape, take};
use crate::queueing::clock::Clock;
use crate::queueing::gather::Part;
use crate::queueing::queues::{Queues, Tenant};
use crate::queueing::registry::Lease;
use crate::queueing::ticket::Failure;

/// One sentence that waits for the device.
#[derive(Debug)]
pub struct Sentence {
    /// Rows of the token table.
    pub ids: Vec<i32>,
    /// The adapter, held until the sentence is done; `None` for the base.
    pub adapter: Option<Lease<AdapterId>>,
}

/// What a line is made of.
pub trait Work: Send {
    /// What comes of it.
    type Answer: Send;

    /// What does it, on the thread of a device.
    type Host: ?Sized + 'static;

    /// What it costs, in the unit of its line: tokens, where sentences wait.
    fn cost(&self) -> u64;

    /// A number that tells its turns from those of others of the same tenant.
    fn lane(&self) -> u64;
}

impl Work for Sentence {
    type Answer = Vec<f32>;
    type Host = dyn Embedder;

    fn cost(&self) -> u64 {
        self.ids.len() as u64
    }

    fn lane(&self) -> u64 {
        // A lease's address tells generations apart as long as somebody holds it.
        self.adapter.as_ref().map_or(0, |lease| Arc::as_ptr(lease) as u64)
    }
}

/// Work with what its answer needs.
#[derive(Debug)]
pub struct Job<W: Work = Sentence> {
    /// What is to be done.
    pub work: W,
    deadline: Option<Duration>,
    /// When it was let in.
    pub queued: Duration,
    /// Its place in the answer.
    pub part: Part<W::Answer>,
}

impl Job {
    /// The number of its tokens.
    pub fn tokens(&self) -> usize {
        self.work.ids.len()
    }

    /// The sentence as the encoder takes it.
    pub fn row(&self) -> Row<'_> {
        Row { ids: &self.work.ids, adapter: self.work.adapter.as_ref().map(|lease| lease.adapter) }
    }
}

/// Something other than a batch that is done on the device's thread.
pub type Chore<W> = Box<dyn FnOnce(&mut <W as Work>::Host) + Send>;

struct Waiting<W: Work> {
    queues: Queues<Job<W>>,
    chores: Vec<Chore<W>>,
    admission: Admission,
    /// When the batch that runs was taken.
    taken: Option<Duration>,
    /// Why nothing more is taken, once that is so.
    closed: Option<Failure>,
}

impl<W: Work> Waiting<W> {
    /// The tokens that run, and those that have their turn before another request of the tenant.
    fn ahead(&self, tenant: Tenant) -> u64 {
        self.admission.tokens().saturating_sub(self.queues.cost()) + self.queues.ahead(tenant)
    }
}

/// What the thread of a device and those who ask share.
pub struct Line<W: Work = Sentence> {
    waiting: Mutex<Waiting<W>>,
    changed: Condvar,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    /// What waits and runs, as it is told to others.
    told: Gauge,
}

/// Why a request is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// There is too much before it.
    Busy(Refused),
    /// Nothing is taken any more.
    For(Failure),
}

impl<W: Work> Line<W> {
    /// A line with nobody in it.
    pub fn new(limits: Limits, clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> Self {
        let waiting = Waiting { queues: Queues::default(), chores: Vec::new(), admission: Admission::new(limits), taken: None, closed: None };
        let told = metrics.queued_tokens.clone();
        Self { waiting: Mutex::new(waiting), changed: Condvar::new(), clock, metrics, told }
    }

    /// The line, whose length is told by another gauge than that of tokens.
    #[must_use]
    pub fn told_by(self, told: Gauge) -> Self {
        Self { told, ..self }
    }

    /// The time, by the clock of deadlines.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// What is measured.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<W>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether requests are taken at all.
    ///
    /// # Errors
    /// They are not, and why.
    pub fn is_open(&self) -> Result<(), Closed> {
        self.lock().closed.clone().map_or(Ok(()), |failure| Err(Closed::For(failure)))
    }

    /// Has the device do something before its next batch.
    ///
    /// # Errors
    /// The device does nothing any more.
    pub fn chore(&self, chore: Chore<W>) -> Result<(), Closed> {
        let mut waiting = self.lock();
        if let Some(failure) = &waiting.closed {
            return Err(Closed::For(failure.clone()));
        }
        waiting.chores.push(chore);
        drop(waiting);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes what is to be done besides batches.
    pub fn take_chores(&self) -> Vec<Chore<W>> {
        std::mem::take(&mut self.lock().chores)
    }

    /// How long the batch that runs has been under way.
    pub fn running(&self) -> Option<Duration> {
        let taken = self.lock().taken?;
        Some(self.clock.now().saturating_sub(taken))
    }

    /// Whether a tenant's request of that many tokens would be let in now; it takes no place.
    ///
    /// # Errors
    /// It would not, and why.
    pub fn ask(&self, tenant: Tenant, tokens: u64, left: Option<Duration>) -> Result<(), Closed> {
        let waiting = self.lock();
        match &waiting.closed {
            Some(failure) => Err(Closed::For(failure.clone())),
            None => waiting.admission.clone().admit_behind(waiting.ahead(tenant), tokens, left).map_err(Closed::Busy),
        }
    }

    /// Puts the works of one request in line. `accept` makes the places of their answers, as many as there are works; it is called where
    /// the request is let in.
    ///
    /// # Errors
    /// The request is not let in.
    pub fn enter<H>(&self, tenant: Tenant, works: Vec<W>, deadline: Option<Duration>, accept: impl FnOnce() -> (Vec<Part<W::Answer>>, H)) -> Result<H, Closed> {
        let now = self.clock.now();
        let cost: u64 = works.iter().map(Work::cost).sum();
        let mut waiting = self.lock();
        if let Some(failure) = &waiting.closed {
            return Err(Closed::For(failure.clone()));
        }
        let left = deadline.map(|deadline| deadline.saturating_sub(now));
        let ahead = waiting.ahead(tenant);
        waiting.admission.admit_behind(ahead, cost, left).map_err(Closed::Busy)?;
        let (parts, waiter) = accept();
        for (work, part) in works.into_iter().zip(parts) {
            waiting.queues.push(tenant, work.lane(), work.cost(), Job { work, deadline, queued: now, part });
        }
        self.told(&waiting);
        drop(waiting);
        self.changed.notify_one();
        Ok(waiter)
    }

    /// Takes nothing more. What waits is still done, unless `now` is set: then it fails for the same reason.
    pub fn close(&self, reason: &Failure, now: bool) {
        let mut waiting = self.lock();
        waiting.closed.get_or_insert_with(|| reason.clone());
        let mut left = Vec::new();
        while let Some(job) = if now { waiting.queues.pop() } else { None } {
            waiting.admission.leave(job.work.cost());
            left.push(job);
        }
        let chores = if now { std::mem::take(&mut waiting.chores) } else { Vec::new() };
        self.told(&waiting);
        drop(waiting);
        // Who waits for one learns that it is not done.
        drop(chores);
        // Without the lock: an answer runs the caller's code.
        left.into_iter().for_each(|job| job.part.fail(reason.clone()));
        self.changed.notify_all();
    }

    fn told(&self, waiting: &Waiting<W>) {
        self.told.set(i64::try_from(waiting.admission.tokens()).unwrap_or(i64::MAX));
    }

    /// The next batch, which `take` takes out of the queues, and which is empty where there are chores alone; `None` once the line is closed and empty. What `take` asks to keep and does not get back
    /// has been dealt with.
    pub fn next_by(&self, take: impl FnOnce(&mut Queues<Job<W>>, &mut dyn FnMut(Job<W>) -> Option<Job<W>>) -> Batch<Job<W>>) -> Option<Batch<Job<W>>> {
        let mut waiting = self.lock();
        loop {
            if !waiting.queues.is_empty() || !waiting.chores.is_empty() {
                break;
            }
            if waiting.closed.is_some() {
                return None;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        let now = self.clock.now();
        let mut expired = Vec::new();
        let batch = take(&mut waiting.queues, &mut |job: Job<W>| match job.deadline {
            _ if job.part.is_cancelled() => {
                expired.push((job, Failure::Forgotten));
                None
            }
            Some(deadline) if deadline <= now => {
                expired.push((job, Failure::Expired));
                None
            }
            _ => Some(job),
        });
        waiting.admission.leave(batch.spared as u64);
        waiting.taken = (!batch.items.is_empty()).then_some(now);
        self.told(&waiting);
        drop(waiting);
        // Nobody waits for what was cancelled, so that its failure is told to nobody.
        expired.into_iter().for_each(|(job, failure)| job.part.fail(failure));
        Some(batch)
    }

    /// Learns that a batch is done: what leaves by it, and how fast the device was.
    pub fn done(&self, tokens: usize, computed: usize, took: Duration) {
        let mut waiting = self.lock();
        waiting.admission.leave(tokens as u64);
        waiting.admission.measured(computed as u64, took);
        waiting.taken = None;
        self.told(&waiting);
    }
}

impl Line {
    /// The next batch of sentences, and the shape in which they run; `None` once the line is closed and empty.
    pub fn next(&self, grid: &Grid) -> Option<(Vec<Job>, usize, Option<Shape>)> {
        self.next_by(|queues, keep| take(queues, grid, keep)).map(|batch| (batch.items, batch.tokens, batch.shape))
    }
}

/// Closes a line however the thread of its device ends.
pub struct Ending<'a, W: Work>(pub &'a Line<W>);

impl<W: Work> Drop for Ending<'_, W> {
    fn drop(&mut self) {
        self.0.close(&Failure::DeviceLost, true);
    }
}
