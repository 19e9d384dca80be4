//! Batches: which adapter each token uses, and where on the device the adapters were when the batch was made.

use rayon::prelude::*;

use super::class::Class;
use super::{AdapterId, Engine, unpacked};
use crate::backend::Kernel;
use crate::device::Device;
use crate::error::{Error, Result, ensure};
use crate::ops::CodebookGemm;
use crate::ops::index::{Index, TokenAdapters};
use crate::session::Session;

/// The adapters of a batch's tokens, on the device. Its contents may change between replays of a captured graph.
///
/// Where the pool is smaller than the population, another batch may take the room of this one's adapters. [`Engine::update`] brings them
/// back. [`Engine::apply`] refuses a batch that has lost any adapter. A captured graph cannot refuse: before a replay, ask
/// [`Engine::check`] where other batches were made since.
pub struct Batch<D: Device> {
    engine: u64,
    pub(super) tokens: usize,
    generation: u64,
    placed: Placed,
    pub(super) maps: Vec<Index<TokenAdapters, D>>,
}

/// The adapters that a batch found on the device.
#[derive(Clone)]
pub(super) struct Placed {
    /// The time since when each adapter had been there.
    since: Vec<(AdapterId, u64)>,
    /// How many adapters had left the device by then.
    left: u64,
}

impl<D: Device> Batch<D> {
    /// Tokens of the batch.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

impl<D: Kernel<CodebookGemm>> Engine<D> {
    /// Copies the adapters of a batch to the device, with one id a token, `None` for the base model alone.
    ///
    /// # Errors
    /// An adapter that is not known; more adapters than the pool holds at once.
    pub fn batch(&mut self, session: &mut Session<D>, ids: &[Option<AdapterId>]) -> Result<Batch<D>> {
        let placed = self.settle(session, ids)?;
        self.batch_of(session, ids, placed)
    }

    /// Changes the adapters of a batch in place. Graphs captured with it see them at their next replay.
    ///
    /// # Errors
    /// The errors of [`batch`](Self::batch); another number of tokens; a batch from before the last growth.
    pub fn update(&mut self, session: &mut Session<D>, batch: &mut Batch<D>, ids: &[Option<AdapterId>]) -> Result<()> {
        ensure(ids.len() == batch.tokens, "batch", format_args!("{} tokens", batch.tokens), ids.len())?;
        self.current(batch)?;
        let placed = self.settle(session, ids)?;
        self.replace(session, batch, ids, placed)
    }

    /// Whether a batch can be applied, and graphs that were captured with it replayed.
    ///
    /// # Errors
    /// A batch of another engine, or from before the last growth; an adapter of the batch whose room another batch took, or that was
    /// removed.
    pub fn check(&self, batch: &Batch<D>) -> Result<()> {
        self.current(batch)?;
        let Placed { since, left } = &batch.placed;
        if *left == self.pool.left() {
            return Ok(());
        }
        let gone = since.iter().find(|(id, since)| self.pool.since(*id) != Some(*since));
        gone.map_or(Ok(()), |(gone, _)| {
            let found = self.name(*gone).map_or_else(|_| "one that was removed".into(), |name| format!("{name}, which has left"));
            Err(Error::invalid("batch", "adapters that have been on the device since it was made: update it first", found))
        })
    }

    /// The batch of `ids`, which are on the device.
    pub(super) fn batch_of(&self, session: &mut Session<D>, ids: &[Option<AdapterId>], placed: Placed) -> Result<Batch<D>> {
        let maps = session.indices(&self.words(ids)?)?;
        Ok(Batch { engine: self.id, tokens: ids.len(), generation: self.generation, placed, maps })
    }

    /// Replaces a batch's adapters by `ids`, which are on the device. A batch that cannot be written stays what it was.
    pub(super) fn replace(&self, session: &mut Session<D>, batch: &mut Batch<D>, ids: &[Option<AdapterId>], placed: Placed) -> Result<()> {
        session.update_indices(&batch.maps, &self.words(ids)?)?;
        batch.placed = placed;
        Ok(())
    }

    /// Puts an adapter on the device, without a batch.
    ///
    /// # Errors
    /// An adapter that was removed or cannot be read; no device memory.
    #[cfg(feature = "llm")]
    pub(crate) fn admit(&mut self, session: &mut Session<D>, id: AdapterId) -> Result<()> {
        self.settle(session, &[Some(id)]).map(drop)
    }

    /// Makes every adapter of `ids` resident.
    pub(super) fn settle(&mut self, session: &mut Session<D>, ids: &[Option<AdapterId>]) -> Result<Placed> {
        self.own(session)?;
        // Tokens of a sentence have one adapter: a run of ids is one.
        let runs = ids.chunk_by(|one, next| one == next);
        let mut wanted: Vec<AdapterId> = runs.filter_map(|run| *run.first()?).collect();
        wanted.sort_unstable();
        wanted.dedup();
        for &id in &wanted {
            self.pool.touch(id);
        }
        for &id in wanted.iter().filter(|&&id| !self.pool.is_resident(id)).collect::<Vec<_>>() {
            let adapter = self.encoded(id)?;
            let slots = self.pool.admit(id, &self.maps_of(&adapter), &wanted)?;
            self.version += 1;
            let held = |class: &Class<D>| {
                let slot = slots.iter().find(|(map, _)| *map == class.map())?.1;
                Some((slot, self.served.held(class.form(), &adapter, &self.shared), class.unpacks()))
            };
            let held: Vec<_> = self.classes.iter().map(held).collect();
            // On all cores: an adapter of four projections in each of 32 layers of 4,096 took one core 0.4 s.
            let factors = held.par_iter().map(|held| match held {
                Some((_, Some((projection, shared)), Some((rank, dtype)))) => unpacked::factors(projection, shared, *rank, *dtype).map(Some),
                _ => Ok(None),
            });
            let factors = factors.collect::<Result<Vec<_>>>().inspect_err(|_| self.pool.evict(id))?;
            for ((class, held), factors) in self.classes.iter_mut().zip(held).zip(factors) {
                if let Some((slot, held, _)) = held {
                    // A partial copy must not be taken for the adapter by the next batch.
                    class.put(session, slot, held.map(|(projection, _)| projection), factors).inspect_err(|_| self.pool.evict(id))?;
                }
            }
        }
        let since = wanted.into_iter().filter_map(|id| Some((id, self.pool.since(id)?))).collect();
        Ok(Placed { since, left: self.pool.left() })
    }

    /// Each map's words for adapters that are resident.
    fn words(&self, ids: &[Option<AdapterId>]) -> Result<Vec<TokenAdapters>> {
        (0..self.pool.maps())
            .map(|map| {
                let slot = |id: AdapterId| self.pool.slot(id, map).map_or(-1, |slot| slot as i32);
                let runs = ids.chunk_by(|one, next| one == next);
                let mut slots = Vec::with_capacity(ids.len());
                runs.for_each(|run| slots.resize(slots.len() + run.len(), run.first().copied().flatten().map_or(-1, slot)));
                TokenAdapters::new(&slots, self.pool.capacity(map))
            })
            .collect()
    }

    /// Checks that a batch is this engine's, and that it fits the engine's present arrays.
    pub(super) fn current(&self, batch: &Batch<D>) -> Result<()> {
        ensure(batch.engine == self.id, "batch", "one of this engine", "another engine's")?;
        let found = format!("generation {}", batch.generation);
        ensure(batch.generation == self.generation, "batch", format_args!("one of generation {}: make it anew", self.generation), found)
    }
}
