//! The adapters of running requests: names, slots of the schedule, and a batch of rows for each shape.

use std::collections::HashMap;

use crate::adapters::engine::{AdapterId, Batch, Engine};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::llm::cache::Digest;
use crate::llm::config::Config;
use crate::llm::deltas::{Paths, paths};
use crate::llm::schedule::{self, Load};
use crate::llm::step::Row;
use crate::session::Session;

/// The adapters of an engine.
pub struct Adapted<D: Backend> {
    pub engine: Engine<D>,
    pub paths: Paths,
    /// Adapters by their number in the schedule.
    known: HashMap<schedule::AdapterId, AdapterId>,
    /// The adapter in each slot of the schedule.
    slots: Vec<Option<AdapterId>>,
    /// Batches by their rows, which are few numbers: steps are rounded up. Captured graphs name them, so none goes while its generation lasts.
    batches: HashMap<usize, Batch<D>>,
    generation: u64,
}

impl<D: Backend> Adapted<D> {
    /// Adapters of a model, of which requests may have `most` at once, or as many as the engine has room for.
    ///
    /// # Errors
    /// An adapter of a projection that the model does not have, or of another shape.
    pub fn new(engine: Engine<D>, config: &Config, most: u32) -> Result<Self> {
        let slots = most.min(engine.room());
        for (path, shared) in engine.projections() {
            config.fits(path, [shared.d_out as u64, shared.d_in as u64])?;
        }
        let paths = paths(config, |path| engine.forms(path) > 0);
        let generation = engine.generation();
        Ok(Self { engine, paths, known: HashMap::new(), slots: vec![None; slots as usize], batches: HashMap::new(), generation })
    }

    /// How many adapters requests may have at once.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The adapter of that name, as a schedule has it.
    ///
    /// # Errors
    /// A name that no adapter has.
    pub fn named(&mut self, name: &str) -> Result<schedule::Adapter> {
        let own = self.engine.adapter(name)?;
        let id = schedule::AdapterId(own.number());
        self.known.insert(id, own);
        Ok(schedule::Adapter { id, content: Digest::of(&own.number().to_le_bytes()) })
    }

    /// Puts an adapter on the device for a slot of the schedule.
    ///
    /// # Errors
    /// An adapter that was removed or cannot be read; no device memory.
    pub fn load(&mut self, session: &mut Session<D>, load: &Load) -> Result<()> {
        let own = *self.known.get(&load.adapter).ok_or_else(|| Error::invalid("adapter", "one that a request named", format!("{:?}", load.adapter)))?;
        self.engine.batch(session, &[Some(own)])?;
        self.slots[load.slot as usize] = Some(own);
        Ok(())
    }

    /// The generation of the adapters' memory: graphs of another one name memory that is used no more.
    pub fn generation(&self) -> u64 {
        self.engine.generation()
    }

    /// Puts the adapters of a step's rows into the batch of a shape of `rows` rows.
    ///
    /// # Errors
    /// An adapter that was removed; no device memory.
    pub fn write(&mut self, session: &mut Session<D>, of: &[Row], rows: usize) -> Result<()> {
        let mut ids: Vec<Option<AdapterId>> = of.iter().map(|row| row.adapter.and_then(|slot| self.slots[slot as usize])).collect();
        ids.resize(rows, None);
        if self.generation != self.engine.generation() {
            self.batches.clear();
            self.generation = self.engine.generation();
        }
        match self.batches.get_mut(&rows) {
            Some(batch) => self.engine.update(session, batch, &ids),
            None => {
                let batch = self.engine.batch(session, &ids)?;
                self.batches.insert(rows, batch);
                Ok(())
            }
        }
    }

    /// The engine, the batch of a shape of `rows` rows, and the paths that adapters touch.
    pub fn parts(&mut self, rows: usize) -> Option<(&mut Engine<D>, &Batch<D>, &Paths)> {
        let batch = self.batches.get(&rows)?;
        Some((&mut self.engine, batch, &self.paths))
    }
}
