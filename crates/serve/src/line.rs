//! What waits for the devices of a model: who is let in, what goes next, and what becomes of the work of a device that fails.

mod work;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;

use crate::metrics::Metrics;
use crate::queueing::admit::{Admission, Limits, Refused};
use crate::queueing::batch::{Batch, Grid, Shape, take};
use crate::queueing::clock::Clock;
use crate::queueing::gather::Part;
use crate::queueing::queues::{Queues, Tenant};
use crate::queueing::ticket::Failure;
use crate::replica::Replica;
pub use work::{Copies, Job, Sentence, Work};

/// What gives a job back that is to run, and deals with one that is not.
pub type Keep<'a, W> = &'a mut dyn FnMut(Job<W>) -> Option<Job<W>>;

/// Something other than a batch that is done on a device's thread.
pub type Chore<W> = Box<dyn FnOnce(&mut <W as Work>::Host) + Send>;

/// A device that takes from the line.
struct Device<W: Work> {
    replica: Arc<Replica>,
    chores: Vec<Chore<W>>,
    /// The batches that it has: one that runs, and what it was given to do behind that.
    flights: VecDeque<Vec<Job<W>>>,
    /// When it came to the first of them, while it has one.
    began: Option<Duration>,
}

struct Waiting<W: Work> {
    queues: Queues<Job<W>>,
    devices: Vec<Device<W>>,
    admission: Admission,
    /// Why nothing more is taken, once that is so.
    closed: Option<Failure>,
    /// Threads of devices that sleep until something changes.
    sleeping: usize,
}

impl<W: Work> Waiting<W> {
    /// The tokens that run, and those that have their turn before another request of the tenant.
    fn ahead(&self, tenant: Tenant) -> u64 {
        self.admission.tokens().saturating_sub(self.queues.cost()) + self.queues.ahead(tenant)
    }

    fn working(&self) -> impl Iterator<Item = &Device<W>> {
        self.devices.iter().filter(|device| !device.replica.is_lost())
    }

    /// Gives up a device: its work goes to another, where one works and none has failed with it before. Returns the jobs that fail, and the chores that nobody does.
    fn lose(&mut self, number: usize) -> (Vec<Job<W>>, Vec<Chore<W>>) {
        let Some(device) = self.devices.get_mut(number).filter(|device| device.replica.lose()) else { return (Vec::new(), Vec::new()) };
        let (flights, chores, replica) = (std::mem::take(&mut device.flights), std::mem::take(&mut device.chores), Arc::clone(&device.replica));
        device.began = None;
        let working = self.working().count();
        self.admission.share_among(working);
        let mut left = Vec::new();
        // The first of them is to be the first again.
        for mut job in flights.into_iter().flatten().collect::<Vec<_>>().into_iter().rev() {
            if working == 0 || self.closed.is_some() || job.tried {
                left.push(job);
            } else {
                job.tried = true;
                replica.handed_on(1);
                self.queues.push_front(job.tenant, job.work.lane(), job.work.cost(), job);
            }
        }
        if working == 0 {
            self.closed.get_or_insert(Failure::DeviceLost);
            left.extend(std::iter::from_fn(|| self.queues.pop()));
        }
        left.iter().for_each(|job| self.admission.leave(job.work.cost()));
        (left, chores)
    }
}

/// What the threads of devices and those who ask share.
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

/// A batch for a device. Its jobs stay with the line until the device is [done](Line::done) with it.
pub struct Taken<W: Work> {
    /// What is to be done, in the order of the answers; nothing where there are chores alone.
    pub works: Vec<Arc<W>>,
    /// When each of them was let in.
    pub queued: Vec<Duration>,
    /// What they cost together.
    pub tokens: usize,
    /// The shape in which they run, where they have one.
    pub shape: Option<Shape>,
}

impl<W: Work> Line<W> {
    /// A line with nobody in it, for these devices.
    pub fn new(limits: Limits, clock: Arc<dyn Clock>, metrics: Arc<Metrics>, devices: &[Arc<Replica>]) -> Self {
        let device = |replica: &Arc<Replica>| Device { replica: Arc::clone(replica), chores: Vec::new(), flights: VecDeque::new(), began: None };
        let devices: Vec<Device<W>> = devices.iter().map(device).collect();
        let mut admission = Admission::new(limits);
        admission.share_among(devices.len());
        let waiting = Waiting { queues: Queues::default(), devices, admission, closed: None, sleeping: 0 };
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

    /// Has a device do something before its next batch.
    ///
    /// # Errors
    /// The device does nothing any more.
    pub fn chore(&self, number: usize, chore: Chore<W>) -> Result<(), Closed> {
        let mut waiting = self.lock();
        if let Some(failure) = &waiting.closed {
            return Err(Closed::For(failure.clone()));
        }
        match waiting.devices.get_mut(number).filter(|device| !device.replica.is_lost()) {
            Some(device) => device.chores.push(chore),
            None => return Err(Closed::For(Failure::DeviceLost)),
        }
        drop(waiting);
        self.changed.notify_all();
        Ok(())
    }

    /// Takes what a device is to do besides batches.
    pub fn take_chores(&self, number: usize) -> Vec<Chore<W>> {
        self.lock().devices.get_mut(number).map_or_else(Vec::new, |device| std::mem::take(&mut device.chores))
    }

    /// How long all devices that work have been busy with the batches that they run; `None` where one of them is free.
    pub fn running(&self) -> Option<Duration> {
        let waiting = self.lock();
        let now = self.clock.now();
        let busy: Option<Vec<Duration>> = waiting.working().map(|device| Some(now.saturating_sub(device.began?))).collect();
        busy?.into_iter().min()
    }

    /// Gives up each device that has been at one batch for longer than `most`, as long as another works.
    pub fn watch(&self, most: Duration) {
        let mut waiting = self.lock();
        let now = self.clock.now();
        let hangs = |device: &Device<W>| !device.replica.is_lost() && device.began.is_some_and(|began| now.saturating_sub(began) > most);
        let hanging: Vec<usize> = waiting.devices.iter().enumerate().filter(|(_, device)| hangs(device)).map(|(number, _)| number).collect();
        let mut lost = Vec::new();
        for number in hanging {
            if waiting.working().count() > 1 {
                lost.push(waiting.lose(number));
            }
        }
        if !lost.is_empty() {
            self.told(&waiting);
            drop(waiting);
            lost.into_iter().for_each(|(left, chores)| self.give_up(left, chores, &Failure::DeviceLost));
        }
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
            let (lane, cost) = (work.lane(), work.cost());
            waiting.queues.push(tenant, lane, cost, Job { work: Arc::new(work), part, tenant, deadline, queued: now, tried: false });
        }
        self.told(&waiting);
        let sleeping = waiting.sleeping > 0;
        drop(waiting);
        // To tell nobody is a call of the system's too.
        if sleeping {
            self.changed.notify_all();
        }
        Ok(waiter)
    }

    /// Takes nothing more. What waits is still done, unless `now` is set: then it fails for the same reason.
    pub fn close(&self, reason: &Failure, now: bool) {
        let mut waiting = self.lock();
        waiting.closed.get_or_insert_with(|| reason.clone());
        let (mut left, mut chores) = (Vec::new(), Vec::new());
        if now {
            left.extend(std::iter::from_fn(|| waiting.queues.pop()));
            left.iter().for_each(|job| waiting.admission.leave(job.work.cost()));
            waiting.devices.iter_mut().for_each(|device| chores.append(&mut device.chores));
        }
        self.told(&waiting);
        drop(waiting);
        self.give_up(left, chores, reason);
    }

    /// Tells that these are not done, without the lock: an answer runs the caller's code.
    fn give_up(&self, left: Vec<Job<W>>, chores: Vec<Chore<W>>, reason: &Failure) {
        // Who waits for one learns that it is not done.
        drop(chores);
        left.into_iter().for_each(|job| job.part.fail(reason.clone()));
        self.changed.notify_all();
    }

    fn told(&self, waiting: &Waiting<W>) {
        self.told.set(i64::try_from(waiting.admission.tokens()).unwrap_or(i64::MAX));
    }

    /// The next batch of a device, which `take` takes out of the queues, and which is empty where there are chores alone; `None` once the line is closed and empty, or the device is given up. What `take` asks to keep and does not get back
    /// has been dealt with.
    pub fn next_by(&self, number: usize, take: impl FnOnce(&mut Queues<Job<W>>, Keep<'_, W>) -> Batch<Job<W>>) -> Option<Taken<W>> {
        let mut waiting = self.lock();
        loop {
            let device = waiting.devices.get(number).filter(|device| !device.replica.is_lost())?;
            if !waiting.queues.is_empty() || !device.chores.is_empty() {
                break;
            }
            if waiting.closed.is_some() {
                return None;
            }
            waiting.sleeping += 1;
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            waiting.sleeping -= 1;
        }
        Some(self.take(number, waiting, take))
    }

    /// The batch behind those that a device has, which `take` takes out of the queues, where no device is free and enough waits for `enough`; it does not wait.
    pub fn next_ahead_by(
        &self,
        number: usize,
        enough: impl FnOnce(&Queues<Job<W>>) -> bool,
        take: impl FnOnce(&mut Queues<Job<W>>, Keep<'_, W>) -> Batch<Job<W>>,
    ) -> Option<Taken<W>> {
        let waiting = self.lock();
        waiting.devices.get(number).filter(|device| !device.replica.is_lost())?;
        let busy = waiting.working().all(|device| !device.flights.is_empty());
        (busy && enough(&waiting.queues)).then(|| self.take(number, waiting, take))
    }

    /// Takes a batch out of the queues for a device.
    fn take(&self, number: usize, mut waiting: MutexGuard<'_, Waiting<W>>, take: impl FnOnce(&mut Queues<Job<W>>, Keep<'_, W>) -> Batch<Job<W>>) -> Taken<W> {
        let now = self.clock.now();
        let mut expired = Vec::new();
        let Batch { items, tokens, shape, spared } = take(&mut waiting.queues, &mut |job: Job<W>| match job.deadline {
            _ if job.part.is_cancelled() => {
                expired.push((job, Failure::Forgotten));
                None
            }
            // What has been on a device has reached it in time.
            Some(deadline) if deadline <= now && !job.tried => {
                expired.push((job, Failure::Expired));
                None
            }
            _ => Some(job),
        });
        waiting.admission.leave(spared as u64);
        let (works, queued) = items.iter().map(|job| (Arc::clone(&job.work), job.queued)).unzip();
        if let (Some(device), false) = (waiting.devices.get_mut(number), items.is_empty()) {
            device.began.get_or_insert(now);
            device.flights.push_back(items);
        }
        self.told(&waiting);
        drop(waiting);
        // Nobody waits for what was cancelled, so that its failure is told to nobody.
        expired.into_iter().for_each(|(job, failure)| job.part.fail(failure));
        Taken { works, queued, tokens, shape }
    }

    /// Learns that a device is done with the first of its batches, and how fast it was; gives the jobs of the batch to be answered. `None` where the device was given up
    /// meanwhile, and they are another's.
    pub fn done(&self, number: usize, computed: usize, took: Duration) -> Option<Vec<Job<W>>> {
        let mut waiting = self.lock();
        let now = self.clock.now();
        let device = waiting.devices.get_mut(number).filter(|device| !device.replica.is_lost())?;
        let jobs = device.flights.pop_front().unwrap_or_default();
        let next = (!device.flights.is_empty()).then_some(now);
        if let Some(began) = std::mem::replace(&mut device.began, next) {
            jobs.iter().for_each(|job| job.work.spent().ran(began.saturating_sub(job.queued), took));
        }
        let cost = jobs.iter().map(|job| job.work.cost()).sum();
        device.replica.did(jobs.len() as u64, cost);
        waiting.admission.leave(cost);
        waiting.admission.measured(computed as u64, took);
        self.told(&waiting);
        Some(jobs)
    }

    /// Learns how fast a device is by work that nobody asked for.
    pub fn measured(&self, computed: usize, took: Duration) {
        self.lock().admission.measured(computed as u64, took);
    }

    /// Gives up a device. The last one takes all that waits with it.
    pub fn lose(&self, number: usize) {
        let mut waiting = self.lock();
        let (left, chores) = waiting.lose(number);
        self.told(&waiting);
        drop(waiting);
        self.give_up(left, chores, &Failure::DeviceLost);
    }
}

impl Line {
    /// The next batch of sentences for a device; `None` once the line is closed and empty, or the device is given up.
    pub fn next(&self, number: usize, grid: &Grid) -> Option<Taken<Sentence>> {
        self.next_by(number, |queues, keep| take(queues, grid, keep))
    }

    /// The batch behind those that a device has, where as much waits as it holds and no device is free; it does not wait. A full batch is no fuller
    /// later, but a tenant who comes meanwhile has no turn in it.
    pub fn next_ahead(&self, number: usize, grid: &Grid) -> Option<Taken<Sentence>> {
        let filled = |queues: &Queues<Job>| grid.is_filled_by(queues.len(), queues.cost());
        self.next_ahead_by(number, filled, |queues, keep| take(queues, grid, keep))
    }
}

/// Gives up a device however its thread ends.
pub struct Ending<'a, W: Work>(pub &'a Line<W>, pub usize);

impl<W: Work> Drop for Ending<'_, W> {
    fn drop(&mut self) {
        self.0.lose(self.1);
    }
}
