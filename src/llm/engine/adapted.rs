//! The adapters of running requests: names, slots of the schedule, and a batch of rows for each shape.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::adapters::encoded::EncodedAdapter;
use crate::adapters::engine::{AdapterId, AdapterSource, Batch, Engine, EngineOptions};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::llm::cache::Digest;
use crate::llm::config::Config;
use crate::llm::deltas::{Deltas, Paths, paths};
use crate::llm::filled::{Filled, FilledSource};
use crate::llm::layout::Gathered;
use crate::llm::schedule::{self, Load};
use crate::llm::step::{Row, Step};
use crate::session::Session;

/// The paths of a model's projections that any adapter touches.
fn touched<D: Backend>(config: &Config, engine: &Engine<D>) -> Paths {
    paths(config, |path| engine.forms(path) > 0)
}

/// The adapters of an engine.
pub struct Adapted<D: Backend> {
    pub engine: Engine<D>,
    pub paths: Paths,
    /// Projections whose padding carries the adapters' bases.
    filled: Filled,
    /// Adapters by their number in the schedule.
    known: HashMap<schedule::AdapterId, AdapterId>,
    /// How many requests have each adapter.
    users: HashMap<AdapterId, usize>,
    /// Adapters that have lost their name, and go when no request has them.
    retired: HashSet<AdapterId>,
    /// The adapter in each slot of the schedule.
    slots: Vec<Option<AdapterId>>,
    /// Batches by their rows, which are few numbers: steps are rounded up. Captured graphs name them, so none goes while its generation lasts.
    batches: HashMap<usize, Batch<D>>,
    /// Batches of the tokens of gathered pages, by their number.
    gathered: HashMap<usize, Batch<D>>,
    generation: u64,
}

impl<D: Backend> Adapted<D> {
    /// Adapters of a model, of which requests may have `most` at once, or as many as the engine has room for.
    ///
    /// # Errors
    /// An adapter of a projection that the model does not have, or of another shape; adapters that cannot be read; no device memory.
    pub fn new(session: &mut Session<D>, source: Box<dyn AdapterSource>, options: EngineOptions, config: &Config, most: u32) -> Result<Self> {
        let (source, filled): (Box<dyn AdapterSource>, _) = if config.fills.is_empty() {
            (source, Filled::default())
        } else {
            let source = FilledSource::new(config, source)?;
            let filled = source.filled();
            (Box::new(source), filled)
        };
        let engine = Engine::open(session, source, options)?;
        let slots = most.min(engine.room());
        for (path, shared) in engine.projections().filter(|(path, _)| !filled.has(path)) {
            config.fits(path, [shared.d_out as u64, shared.d_in as u64])?;
        }
        for (path, _) in engine.projections().filter(|(path, _)| engine.forms(path) > 0) {
            config.takes_adapters(path)?;
        }
        let paths = touched(config, &engine);
        let (generation, slots) = (engine.generation(), vec![None; slots as usize]);
        let (known, users, retired, batches) = (HashMap::new(), HashMap::new(), HashSet::new(), HashMap::new());
        Ok(Self { engine, paths, filled, known, users, retired, slots, batches, gathered: HashMap::new(), generation })
    }

    /// How many adapters requests may have at once.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The adapter of that name, as a schedule has it.
    ///
    /// # Errors
    /// A name that no adapter has.
    pub fn named(&mut self, name: &str) -> Result<(AdapterId, schedule::Adapter)> {
        let own = self.engine.adapter(name)?;
        let id = schedule::AdapterId(own.number());
        self.known.insert(id, own);
        // No number is given twice, so that it stands for the adapter's content.
        Ok((own, schedule::Adapter { id, content: Digest::of(&own.number().to_le_bytes()) }))
    }

    /// Notes that a request has the adapter.
    pub fn take(&mut self, adapter: AdapterId) {
        *self.users.entry(adapter).or_default() += 1;
    }

    /// Notes that a request that had the adapter has ended.
    pub fn release(&mut self, adapter: AdapterId) {
        if let Some(users) = self.users.get_mut(&adapter) {
            *users -= 1;
            if *users == 0 {
                self.users.remove(&adapter);
                self.drop_unused(adapter);
            }
        }
    }

    /// Adds an adapter.
    ///
    /// # Errors
    /// A name that is taken; a projection that the model does not have; no device memory.
    pub fn add(&mut self, session: &mut Session<D>, config: &Config, name: &str, adapter: EncodedAdapter) -> Result<()> {
        let adapter = self.filled.adapter(adapter);
        adapter.projections.keys().try_for_each(|path| config.takes_adapters(path))?;
        let added = self.engine.add(session, name, adapter);
        self.paths = touched(config, &self.engine);
        added.map(|_| ())
    }

    /// Takes the name from an adapter, which goes when no request has it.
    ///
    /// # Errors
    /// A name that no adapter has.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let own = self.engine.adapter(name)?;
        self.engine.retire(own)?;
        self.retired.insert(own);
        self.drop_unused(own);
        Ok(())
    }

    /// An adapter as it is encoded, with the model's own paths.
    ///
    /// # Errors
    /// A name that no adapter has; what the source fails with.
    pub fn encoded(&self, name: &str) -> Result<Arc<EncodedAdapter>> {
        Ok(self.filled.restored(self.engine.encoded(self.engine.adapter(name)?)?))
    }

    fn drop_unused(&mut self, adapter: AdapterId) {
        if self.users.contains_key(&adapter) || !self.retired.remove(&adapter) {
            return;
        }
        self.known.retain(|_, known| *known != adapter);
        // It is one that the engine knows: it was retired, and is removed once.
        let _ = self.engine.remove(adapter);
        self.slots.iter_mut().filter(|slot| **slot == Some(adapter)).for_each(|slot| *slot = None);
    }

    /// Puts an adapter on the device for a slot of the schedule.
    ///
    /// # Errors
    /// An adapter that was removed or cannot be read; no device memory.
    pub fn load(&mut self, session: &mut Session<D>, load: &Load) -> Result<()> {
        let own = *self.known.get(&load.adapter).ok_or_else(|| Error::invalid("adapter", "one that a request named", format!("{:?}", load.adapter)))?;
        self.engine.admit(session, own)?;
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
        if self.generation != self.engine.generation() {
            self.batches.clear();
            self.gathered.clear();
            self.generation = self.engine.generation();
        }
        let ids = self.ids(of.iter().map(|row| row.adapter), rows);
        put(&mut self.engine, session, &mut self.batches, &ids)
    }

    /// Puts the adapters of the tokens of gathered pages, of which there is room for `tokens`, into their batch, where pages hold what adapters read.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub fn write_gathered(&mut self, session: &mut Session<D>, step: &Step, gathered: &Gathered, (page, tokens): (usize, usize)) -> Result<()> {
        if self.filled.is_empty() {
            return Ok(());
        }
        let adapter = |sequence: &usize| step.sequences.get(*sequence).and_then(|span| step.rows.get(span.rows.start)?.adapter);
        let ids = self.ids(gathered.sequences.iter().flat_map(|sequence| std::iter::repeat_n(adapter(sequence), page)), tokens);
        put(&mut self.engine, session, &mut self.gathered, &ids)
    }

    /// The adapters in slots of the schedule, and none for as many more as make `count`.
    fn ids(&self, slots: impl Iterator<Item = Option<u32>>, count: usize) -> Vec<Option<AdapterId>> {
        let mut ids: Vec<Option<AdapterId>> = slots.map(|slot| self.slots.get(slot? as usize).copied().flatten()).collect();
        ids.resize(count, None);
        ids
    }

    /// The adapters of a shape of `rows` rows and of `tokens` tokens of gathered pages.
    pub fn deltas(&mut self, rows: usize, tokens: usize) -> Option<Deltas<'_, D>> {
        let (batch, gathered) = (self.batches.get(&rows)?, self.gathered.get(&tokens));
        Some(Deltas { engine: &mut self.engine, batch, gathered, paths: &self.paths })
    }
}

/// Puts adapters into the batch for as many tokens, which is made where there is none.
fn put<D: Backend>(engine: &mut Engine<D>, session: &mut Session<D>, batches: &mut HashMap<usize, Batch<D>>, ids: &[Option<AdapterId>]) -> Result<()> {
    match batches.entry(ids.len()) {
        Entry::Occupied(mut batch) => engine.update(session, batch.get_mut(), ids),
        Entry::Vacant(room) => {
            room.insert(engine.batch(session, ids)?);
            Ok(())
        }
    }
}
