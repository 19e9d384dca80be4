//! The adapters of a model on all of its devices.

use std::sync::{Arc, mpsc};

use trifuse::adapters::encoded::EncodedAdapter;
use trifuse::adapters::engine::AdapterId;
use trifuse::{Error, Result};

use crate::embedder::Embedder;
use crate::keeper::Holder;
use crate::line::{Copies, Line};
use crate::queueing::registry::Lease;
use crate::replica::Replica;

/// What holds adapters on the threads of the devices.
pub struct Devices {
    /// Where the threads are reached.
    pub line: Arc<Line>,
    /// The devices, by their numbers in the line.
    pub replicas: Vec<Arc<Replica>>,
}

impl Devices {
    /// Has the thread of each device answer something, all at once; `None` of a device that does nothing any more.
    fn ask<A: Send + 'static>(&self, of: impl Fn(usize) -> Question<A>) -> Vec<Option<A>> {
        let asked = |number: usize| {
            let (sender, answer) = mpsc::channel();
            let of = of(number);
            self.line.chore(number, Box::new(move |embedder| drop(sender.send(of(embedder))))).ok().map(|()| answer)
        };
        let asked: Vec<_> = (0..self.replicas.len()).map(asked).collect();
        asked.into_iter().map(|answer| answer?.recv().ok()).collect()
    }
}

/// What is asked of the thread of a device.
type Question<A> = Box<dyn FnOnce(&mut dyn Embedder) -> A + Send>;

impl Holder<Copies> for Devices {
    fn add(&self, name: &str, adapter: EncodedAdapter) -> Result<Copies> {
        let asked = self.ask(|_| {
            let (name, adapter) = (name.to_owned(), adapter.clone());
            Box::new(move |embedder: &mut dyn Embedder| embedder.add(&name, adapter))
        });
        let (mut copies, mut failed) = (Vec::with_capacity(asked.len()), None);
        for (number, answer) in asked.into_iter().enumerate() {
            copies.push(match answer {
                Some(Ok(id)) => Some(id),
                // The others go on without it; the last one takes all that waits with it.
                Some(Err(Error::Device { .. })) => {
                    self.line.lose(number);
                    None
                }
                Some(Err(error)) => {
                    failed = Some(error);
                    None
                }
                None => None,
            });
        }
        let copies = Copies(copies);
        match failed {
            None if copies.0.iter().any(Option::is_some) => Ok(copies),
            None => Err(Error::device("adding an adapter", "no device of the model takes work any more")),
            Some(error) => {
                // All have it, or none.
                copies.0.into_iter().enumerate().for_each(|(number, id)| forget(&self.line, number, id));
                Err(error)
            }
        }
    }

    fn sweep(&self) {
        // A thread sweeps behind every chore, for all of them; one that has ended has nothing left.
        if let Some(number) = self.replicas.iter().position(|replica| !replica.is_lost()) {
            drop(self.line.chore(number, Box::new(|_| {})));
        }
    }

    fn are_resident(&self, of: &[Lease<Copies>]) -> Option<Vec<bool>> {
        let asked = self.ask(|number| {
            let ids: Vec<Option<AdapterId>> = of.iter().map(|lease| lease.adapter.on(number)).collect();
            Box::new(move |embedder: &mut dyn Embedder| ids.into_iter().map(|id| id.is_some_and(|id| embedder.is_resident(id))).collect::<Vec<bool>>())
        });
        let any = |mut all: Vec<bool>, one: Vec<bool>| {
            all.iter_mut().zip(one).for_each(|(all, one)| *all |= one);
            all
        };
        asked.into_iter().flatten().reduce(any)
    }
}

/// Has a device forget an adapter, where it has it.
fn forget(line: &Line, number: usize, id: Option<AdapterId>) {
    let Some(id) = id else { return };
    // A device that does nothing any more has nothing left, and one that does not have the adapter has forgotten it.
    drop(line.chore(number, Box::new(move |embedder| drop(embedder.remove(id)))));
}
