//! What waits for a device: who is let in, and what goes next.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use trifuse::adapters::engine::AdapterId;
use trifuse::model::Row;

use crate::metrics::Metrics;
use crate::queueing::admit::{Admission, Limits, Refused};
use crate::queueing::batch::{Grid, Shape, take};
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

/// A sentence with what its answer needs.
#[derive(Debug)]
pub struct Job {
    sentence: Sentence,
    deadline: Option<Duration>,
    /// When it was let in.
    pub queued: Duration,
    /// Its place in the answer.
    pub part: Part<Vec<f32>>,
}

impl Job {
    /// The number of its tokens.
    pub fn tokens(&self) -> usize {
        self.sentence.ids.len()
    }

    /// The sentence as the encoder takes it.
    pub fn row(&self) -> Row<'_> {
        Row { ids: &self.sentence.ids, adapter: self.sentence.adapter.as_ref().map(|lease| lease.adapter) }
    }
}

struct Waiting {
    queues: Queues<Job>,
    admission: Admission,
    /// Why nothing more is taken, once that is so.
    closed: Option<Failure>,
}

impl Waiting {
    /// The tokens that run, and those that have their turn before another request of the tenant.
    fn ahead(&self, tenant: Tenant) -> u64 {
        self.admission.tokens().saturating_sub(self.queues.cost()) + self.queues.ahead(tenant)
    }
}

/// What the thread of a device and those who ask share.
pub struct Line {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
}

/// Why a request is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// There is too much before it.
    Busy(Refused),
    /// Nothing is taken any more.
    For(Failure),
}

impl Line {
    /// A line with nobody in it.
    pub fn new(limits: Limits, clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> Self {
        let waiting = Waiting { queues: Queues::default(), admission: Admission::new(limits), closed: None };
        Self { waiting: Mutex::new(waiting), changed: Condvar::new(), clock, metrics }
    }

    /// The time, by the clock of deadlines.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// What is measured.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether requests are taken at all.
    ///
    /// # Errors
    /// They are not, and why.
    pub fn is_open(&self) -> Result<(), Closed> {
        self.lock().closed.clone().map_or(Ok(()), |failure| Err(Closed::For(failure)))
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

    /// Puts the sentences of one request in line. `accept` makes the places of their answers, as many as there are sentences; it is called where
    /// the request is let in.
    ///
    /// # Errors
    /// The request is not let in.
    pub fn enter<W>(
        &self,
        tenant: Tenant,
        sentences: Vec<Sentence>,
        deadline: Option<Duration>,
        accept: impl FnOnce() -> (Vec<Part<Vec<f32>>>, W),
    ) -> Result<W, Closed> {
        let now = self.clock.now();
        let tokens: u64 = sentences.iter().map(|sentence| sentence.ids.len() as u64).sum();
        let mut waiting = self.lock();
        if let Some(failure) = &waiting.closed {
            return Err(Closed::For(failure.clone()));
        }
        let left = deadline.map(|deadline| deadline.saturating_sub(now));
        let ahead = waiting.ahead(tenant);
        waiting.admission.admit_behind(ahead, tokens, left).map_err(Closed::Busy)?;
        let (parts, waiter) = accept();
        for (sentence, part) in sentences.into_iter().zip(parts) {
            // A lease's address tells generations apart as long as somebody holds it.
            let adapter = sentence.adapter.as_ref().map_or(0, |lease| Arc::as_ptr(lease) as u64);
            let cost = sentence.ids.len() as u64;
            waiting.queues.push(tenant, adapter, cost, Job { sentence, deadline, queued: now, part });
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
            waiting.admission.leave(job.tokens() as u64);
            left.push(job);
        }
        self.told(&waiting);
        drop(waiting);
        // Without the lock: an answer runs the caller's code.
        left.into_iter().for_each(|job| job.part.fail(reason.clone()));
        self.changed.notify_all();
    }

    fn told(&self, waiting: &Waiting) {
        self.metrics.queued_tokens.set(i64::try_from(waiting.admission.tokens()).unwrap_or(i64::MAX));
    }

    /// The next batch; `None` once the line is closed and empty.
    pub fn next(&self, grid: &Grid) -> Option<(Vec<Job>, usize, Option<Shape>)> {
        let mut waiting = self.lock();
        loop {
            if !waiting.queues.is_empty() {
                break;
            }
            if waiting.closed.is_some() {
                return None;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        let now = self.clock.now();
        let mut expired = Vec::new();
        let batch = take(&mut waiting.queues, grid, &mut |job: Job| match job.deadline {
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
        self.told(&waiting);
        drop(waiting);
        // Nobody waits for what was cancelled, so that its failure is told to nobody.
        expired.into_iter().for_each(|(job, failure)| job.part.fail(failure));
        Some((batch.items, batch.tokens, batch.shape))
    }

    /// Learns that a batch is done: what leaves by it, and how fast the device was.
    pub fn done(&self, tokens: usize, computed: usize, took: Duration) {
        let mut waiting = self.lock();
        waiting.admission.leave(tokens as u64);
        waiting.admission.measured(computed as u64, took);
        self.told(&waiting);
    }
}
