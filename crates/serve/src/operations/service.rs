//! Operations that are served: the line before their device, and the memory that they name.

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use trifuse::{Error, Result};

use super::operator::Operate;
use super::regions::Regions;
use super::runner;
use super::task::{Done, Task};
use crate::embeddings::Shared;
use crate::kserve::attention::NAME;
use crate::line::{Closed, Line};
use crate::queueing::admit::Limits;
use crate::queueing::gather;
use crate::queueing::ledger::Ledger;
use crate::queueing::queues::Tenant;
use crate::queueing::ticket::{self, Failure, Waiter};
use crate::replica::Replica;

/// A device of operations, which is opened on the thread that runs it.
pub struct OperationsModel {
    /// The device's name.
    pub device: String,
    /// What opens it.
    pub open: Box<dyn FnOnce() -> Result<Box<dyn Operate>> + Send>,
    /// Bytes that regions may have, all together.
    pub region_bytes: u64,
}

/// Operations that are served.
pub struct Operations {
    /// The memory that has a name.
    pub regions: Regions,
    line: Arc<Line<Task>>,
    ledger: Arc<Ledger>,
}

/// What the answer of a task is sent to.
pub type Answer = Box<dyn FnOnce(Result<Vec<Result<Done>>, Failure>) + Send>;

impl Operations {
    /// Operations without a server around them, asked by their own process.
    ///
    /// # Errors
    /// What opening the device fails with.
    pub fn alone(model: OperationsModel, limits: Limits) -> Result<(Self, JoinHandle<()>)> {
        Self::start(model, &Shared::alone(limits))
    }

    /// Opens the device on a thread of its own, and returns once it takes tasks.
    ///
    /// # Errors
    /// What opening it fails with.
    pub(crate) fn start(model: OperationsModel, shared: &Shared) -> Result<(Self, JoinHandle<()>)> {
        let OperationsModel { device, open, region_bytes } = model;
        let replicas = [Replica::new(device)];
        let line = Line::new(shared.limits, Arc::clone(&shared.clock), Arc::clone(&shared.metrics), &replicas);
        let line = Arc::new(line.told_by(shared.metrics.queued_operations.clone()));
        let (sender, ready) = mpsc::channel::<Result<()>>();
        let own = Arc::clone(&line);
        let work = move || match open() {
            Ok(mut operator) => {
                // Nobody waits for it any more where the server is being given up.
                if sender.send(Ok(())).is_ok() {
                    runner::run(&mut *operator, &own);
                }
            }
            Err(error) => drop(sender.send(Err(error))),
        };
        let thread = std::thread::Builder::new().name("operations".into()).spawn(work).map_err(Error::io("thread of the operations", "start"))?;
        ready.recv().map_err(|_| Error::device("opening the device", "its thread ended"))??;
        shared.metrics.tell_of(NAME, &replicas);
        Ok((Self { regions: Regions::new(region_bytes), line, ledger: Arc::clone(&shared.ledger) }, thread))
    }

    /// Whether tasks are taken at all.
    ///
    /// # Errors
    /// They are not, and why.
    pub fn is_open(&self) -> Result<(), Closed> {
        self.line.is_open()
    }

    /// How long the tasks that run have been under way.
    pub fn running(&self) -> Option<Duration> {
        self.line.running()
    }

    /// Puts a task in line. Its answer goes to `answer`, exactly once, as a list of one; the task is given up where what is returned is dropped.
    ///
    /// # Errors
    /// The task is not let in. Then `answer` is not called.
    pub fn enter(&self, tenant: Tenant, task: Task, deadline: Option<Duration>, answer: Answer) -> Result<Waiter, Closed> {
        self.line.enter(tenant, vec![task], deadline, || {
            let (ticket, waiter) = ticket::accept(&self.ledger, answer);
            (gather::parts(ticket, 1), waiter)
        })
    }

    /// Takes no more tasks; with `now` those that wait fail too.
    pub fn close(&self, now: bool) {
        self.line.close(&Failure::Draining, now);
    }
}
