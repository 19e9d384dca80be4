//! The engines of a language model, one a device: which of them work, which gets the next prompt, and their adapters.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use trifuse::adapters::encoded::EncodedAdapter;
use trifuse::backend::Backend;
use trifuse::llm::engine::{Engine, Service};
use trifuse::{Error, Result};

use crate::keeper::{Holder, Names};
use crate::queueing::registry::Lease;
use crate::replica::Replica;

/// An engine on a device, on a thread of its own.
pub struct EngineOn {
    pub(super) replica: Arc<Replica>,
    pub(super) service: Service,
    pub(super) context: usize,
    pub(super) vocabulary: usize,
    pub(super) seats: usize,
    /// Answers under way.
    open: AtomicUsize,
}

impl EngineOn {
    /// Starts the thread of an engine on a device of that name.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn start<D: Backend>(device: impl Into<String>, engine: Engine<D>) -> Result<Self> {
        let (context, vocabulary, seats) = (engine.context(), engine.model().config().vocabulary as usize, engine.seats());
        Ok(Self { replica: Replica::new(device), service: Service::start(engine)?, context, vocabulary, seats, open: AtomicUsize::new(0) })
    }

    /// Whether it takes prompts. One whose device has failed is given up by being asked.
    fn works(&self) -> bool {
        if self.service.is_lost() {
            self.replica.lose();
        }
        !self.replica.is_lost()
    }
}

impl std::fmt::Debug for EngineOn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an engine on {}", self.replica.device())
    }
}

/// All engines of a model.
#[derive(Clone, Debug)]
pub struct Engines(Arc<[EngineOn]>);

impl Engines {
    /// The engines, of which there is at least one, and which are of one model.
    ///
    /// # Errors
    /// None, or engines of different sizes.
    pub fn new(engines: Vec<EngineOn>) -> Result<Self> {
        let sizes = |engine: &EngineOn| (engine.context, engine.vocabulary);
        match engines.first().map(sizes) {
            Some(first) if engines.iter().all(|engine| sizes(engine) == first) => Ok(Self(engines.into())),
            Some(_) => Err(Error::invalid("devices", "the same model with the same context on each", "another on one of them")),
            None => Err(Error::invalid("devices", "at least one", "none")),
        }
    }

    /// All of them.
    pub fn all(&self) -> &[EngineOn] {
        &self.0
    }

    /// The engines that work, with their numbers.
    pub fn working(&self) -> impl Iterator<Item = (usize, &EngineOn)> {
        self.0.iter().enumerate().filter(|(_, engine)| engine.works())
    }

    /// Takes a place at the engine with the fewest answers under way, for its share of seats; `None` where none works.
    pub fn take(&self) -> Option<usize> {
        let load = |engine: &EngineOn| engine.open.load(Ordering::Relaxed) as f64 / engine.seats.max(1) as f64;
        let (number, engine) = self.working().min_by(|(_, a), (_, b)| load(a).total_cmp(&load(b)))?;
        engine.open.fetch_add(1, Ordering::Relaxed);
        Some(number)
    }

    /// Gives a place back.
    pub fn leave(&self, number: usize) {
        self.0[number].open.fetch_sub(1, Ordering::Relaxed);
    }

    /// The seats of all engines that work, at least one.
    pub fn seats(&self) -> usize {
        self.working().map(|(_, engine)| engine.seats).sum::<usize>().max(1)
    }

    /// The part of their pages of K and V that requests hold, as a mean of the engines that work.
    pub fn cache_use(&self) -> Option<f64> {
        let parts: Vec<f64> = self.working().map(|(_, engine)| engine.service.cache_use()).collect();
        (!parts.is_empty()).then(|| parts.iter().sum::<f64>() / parts.len() as f64)
    }

    /// How long all engines that work have been at their steps; `None` where one of them is between steps.
    pub fn stepping(&self) -> Option<Duration> {
        let busy: Option<Vec<Duration>> = self.working().map(|(_, engine)| engine.service.stepping()).collect();
        busy?.into_iter().min()
    }

    /// The numbers of engines that have been at one step for longer than `most`, and that are given up by this, as another works.
    pub fn give_up_hanging(&self, most: Duration) -> Vec<usize> {
        let hanging = self.working().filter(|(_, engine)| engine.service.stepping().is_some_and(|stepping| stepping > most));
        let hanging: Vec<usize> = hanging.map(|(number, _)| number).collect();
        hanging.into_iter().filter(|number| self.working().count() > 1 && self.0[*number].replica.lose()).collect()
    }
}

/// What holds adapters in all engines, by the same names.
#[derive(Clone)]
pub struct EngineHolder {
    /// The engines.
    pub engines: Engines,
    /// The names that lead to adapters.
    pub names: Names<String>,
}

impl Holder<String> for EngineHolder {
    fn add(&self, name: &str, adapter: EncodedAdapter) -> Result<String> {
        let (mut added, mut failed) = (Vec::new(), None);
        for (_, engine) in self.engines.working() {
            match engine.service.add_adapter(name, adapter.clone()) {
                Ok(()) => added.push(engine),
                // The others go on without it.
                Err(Error::Device { .. }) => drop(engine.replica.lose()),
                Err(_) if engine.service.is_lost() => {}
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        match failed {
            None if !added.is_empty() => Ok(name.to_owned()),
            None => Err(Error::device("adding an adapter", "no device of the model takes work any more")),
            Some(error) => {
                // All have it, or none; an engine that has ended holds none.
                added.into_iter().for_each(|engine| drop(engine.service.forget_adapter(name)));
                Err(error)
            }
        }
    }

    fn sweep(&self) {
        for generation in self.names.lock().take_unused() {
            // An engine that has ended holds none.
            self.engines.all().iter().for_each(|engine| drop(engine.service.forget_adapter(&generation.adapter)));
        }
    }

    fn are_resident(&self, of: &[Lease<String>]) -> Option<Vec<bool>> {
        let names: Vec<String> = of.iter().map(|lease| lease.adapter.clone()).collect();
        let any = |mut all: Vec<bool>, one: Vec<bool>| {
            all.iter_mut().zip(one).for_each(|(all, one)| *all |= one);
            all
        };
        self.engines.working().filter_map(|(_, engine)| engine.service.are_resident(names.clone()).ok()).reduce(any)
    }
}
