//! Queries of attention on a device: a launch of one of them, or of several as `together` has found that they can be.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use trifuse::backend::Backend;
use trifuse::device::Slice;
use trifuse::ops::attention::{AttentionIndex, Form};
use trifuse::ops::index::{BlockMap, BlockShape, MapShape};
use trifuse::ops::{Attention, AttentionArgs, Checksum, ChecksumArgs};
use trifuse::session::Session;
use trifuse::{Error, Result};

use super::maps::Maps;
use super::mask::{Mask, listed};
use super::plans::Plans;
use super::resident::{Resident, resident, room};
use super::task::{Attend, Blocks, Source};
use super::tensors::{Tensors, nth, outside, slice};
use super::together::{filled, most_together};
use crate::kserve::tensor::int32;

/// The most bytes of outputs that are read at once for several answers.
const MOST_READ: u64 = 16 << 20;

/// Bytes of a checksum.
pub const SUM: u64 = 8;

/// How the configurations of attention begin that cut the keys of a sequence by what is beside it.
const CUTS: &str = "split_kv";

/// What queries need of a device besides its queue.
pub struct Attends<D: Backend> {
    plans: Plans<D>,
    tensors: Tensors<D>,
    maps: Maps,
    /// Whether launches are filled up: what a launch costs besides its queries is more than what some of them twice do.
    fills: bool,
    /// How long getting ready for new shapes took since this was last asked.
    planned: Duration,
}

/// What a query has once the device has been given it.
#[derive(Debug, Default)]
pub struct Given {
    /// The output's bytes, where the answer has them.
    pub bytes: Vec<u8>,
    /// Which of the launch's checksums is its own, where the answer has one.
    pub sum: Option<usize>,
}

/// Queries that the device has been given.
pub struct Launched<D: Backend> {
    /// What each has.
    pub queries: Vec<Result<Given>>,
    /// The checksums of all outputs, eight bytes each, until the next launch of this shape; where one has been asked for.
    pub sums: Option<Slice<D>>,
}

impl<D: Backend> Attends<D> {
    /// What queries need, where launches are filled up or not.
    pub fn new(fills: bool) -> Self {
        Self { plans: Plans::default(), tensors: Tensors::default(), maps: Maps::default(), fills, planned: Duration::ZERO }
    }

    /// Gives back what is kept of the device's memory; whether there was something.
    pub fn clear(&mut self) -> bool {
        self.plans.clear() | self.tensors.clear()
    }

    /// How long getting ready for new shapes took since this was last asked.
    pub fn take_planned(&mut self) -> Duration {
        std::mem::take(&mut self.planned)
    }

    /// Gives the device queries in one launch.
    ///
    /// # Errors
    /// Queries that cannot be one launch, or that are not sound; no device memory; a device that fails.
    pub fn launch(&mut self, session: &mut Session<D>, asks: &[&Attend]) -> Result<Launched<D>> {
        let Some(first) = asks.first() else { return Ok(Launched { queries: Vec::new(), sums: None }) };
        let all = if self.fills { filled(asks) } else { asks.to_vec() };
        let masks = all.iter().map(|ask| self.mask(session, &ask.blocks)).collect::<Result<Vec<Option<Mask>>>>()?;
        let masks: Option<Vec<Mask>> = masks.into_iter().collect();
        let way = match &masks {
            // One that is alone has the bits that it has beside others.
            Some(masks) => self.way_of(session, first, masks, asks.len() > 1)?,
            None => None,
        };
        if let ([ask], Some([mask]), Some(way)) = (asks, masks.as_deref(), way.as_deref()) {
            self.expect_more(session, ask, mask, way)?;
        }
        let mask = masks.map(|masks| Mask::joined(&masks, &first.op)).transpose()?;
        let op = first.op.clone().with_batch(first.op.batch * all.len() as u64);
        let op = mask.as_ref().map_or_else(|| op.clone(), |mask| op.clone().with_form(mask.form()));
        let resident = self.prepare_resident(session, &op, way.as_deref(), resident(&all)?)?;
        if resident.is_none() {
            self.plan(session, op, way.as_deref())?;
        }
        self.prepare(session, mask)?;
        let Self { plans, tensors, .. } = self;
        let ready = plans.first().ok_or_else(|| Error::invalid("plan", "one", "none"))?;
        let [q, k, v] = match resident {
            Some(tables) => tables,
            None => [tensors.bring(session, &all, 0)?, tensors.bring(session, &all, 1)?, tensors.bring(session, &all, 2)?],
        };
        let o = tensors.output(session, &all)?;
        let args = AttentionArgs::new(q, k, v, o.clone()).with_slots(ready.slots.as_ref().map(|(index, _)| index.clone()));
        let args = match &ready.index {
            Some((index, _)) => args.with_index(index.clone()),
            None => args,
        };
        session.run(&ready.plan, &args)?;
        // What is read is read now: the next query may write there.
        let launched = self.results(session, asks, &o, first.bytes)?;
        for (at, part) in asks.iter().enumerate().filter_map(|(at, ask)| Some((at, ask.output.as_ref()?))) {
            part.region.was_written();
            let place = slice::<D>(part)?;
            // They were computed there if they lie one behind the other.
            if D::buffer_id(place.buffer()) != D::buffer_id(o.buffer()) {
                session.copy(&nth(&o, at, first.bytes)?, &place)?;
            }
        }
        Ok(launched)
    }

    /// What the answers have of the outputs, which lie one behind the other and have as many bytes each. Some behind them may be nobody's.
    fn results(&mut self, session: &mut Session<D>, asks: &[&Attend], o: &Slice<D>, each: u64) -> Result<Launched<D>> {
        let count = asks.len() as u64;
        let part = |of: &Slice<D>, bytes: u64| of.sub_slice(0, bytes).ok_or_else(|| outside(0, bytes));
        // Enqueued behind the queries, and made while the device has the outputs at hand: eight bytes of each are read.
        let sums = if asks.iter().any(|ask| ask.wants_checksum) { Some(part(&self.checksums(session, o, each)?, SUM * count)?) } else { None };
        let o = &part(o, each * count)?;
        let read = asks.iter().any(|ask| ask.wants_bytes);
        // The device is waited for once where that takes little of the host's memory.
        let all = if read && asks.len() > 1 && o.len() <= MOST_READ { Some(session.read(o)?) } else { None };
        let mut own = all.as_ref().map(|all| all.chunks_exact((each as usize).max(1)));
        let mut queries = Vec::with_capacity(asks.len());
        for (at, ask) in asks.iter().enumerate() {
            let read = own.as_mut().and_then(Iterator::next);
            let bytes = match read {
                _ if !ask.wants_bytes => Ok(Vec::new()),
                Some(bytes) => Ok(bytes.to_vec()),
                None => nth(o, at, each).and_then(|o| session.read(&o)),
            };
            queries.push(bytes.map(|bytes| Given { bytes, sum: ask.wants_checksum.then_some(at) }));
        }
        Ok(Launched { queries, sums })
    }

    /// The checksums of outputs of the shape that was used last, which lie one behind the other: one launch.
    fn checksums(&mut self, session: &mut Session<D>, o: &Slice<D>, each: u64) -> Result<Slice<D>> {
        let Self { plans, planned, .. } = self;
        let none = || Error::invalid("plan", "one", "none");
        let ready = plans.first().ok_or_else(none)?;
        let outputs = o.len() / each.max(1);
        let op = Checksum::new(outputs, each);
        // Two queries of four sequences have the shape of four of two.
        if ready.sums.as_ref().is_none_or(|(plan, _)| *plan.op() != op) {
            let began = Instant::now();
            ready.sums = Some((session.plan(op)?, session.alloc(SUM * outputs)?));
            *planned += began.elapsed();
        }
        let (plan, sums) = ready.sums.as_ref().ok_or_else(none)?;
        session.run(plan, &ChecksumArgs::new(o.clone(), sums.clone()))?;
        Ok(sums.clone())
    }

    /// The blocks of a query, checked.
    fn mask(&mut self, session: &mut Session<D>, blocks: &Blocks) -> Result<Option<Mask>> {
        Ok(match blocks {
            Blocks::All => None,
            Blocks::Map(map, [block, q_blocks, kv_blocks, patterns]) => {
                let shape = MapShape { block: *block, q_blocks: *q_blocks, kv_blocks: *kv_blocks, patterns: *patterns };
                Some(Mask::Map(match map {
                    Source::Bytes(bytes) => BlockMap::new(bytes, shape)?.into(),
                    Source::Region(part) => match self.maps.get(part, shape) {
                        Some(known) => known,
                        None => self.maps.keep(part, BlockMap::new(&host(session, map)?, shape)?),
                    },
                }))
            }
            Blocks::Rows(rows, columns, [block, q_blocks, kv_blocks, patterns]) => {
                let (rows, columns) = (int32(&host(session, rows)?), int32(&host(session, columns)?));
                let shape = BlockShape { block: *block, q_blocks: *q_blocks, kv_blocks: *kv_blocks, patterns: *patterns, capacity: 0, masks: 0 };
                Some(Mask::Rows(listed(&rows, &columns, shape)?))
            }
        })
    }

    /// Puts the plan for `op` first: the fastest, or the one that computes it in that way.
    fn plan(&mut self, session: &Session<D>, op: Attention, way: Option<&str>) -> Result<()> {
        if !self.plans.find(&op, way) {
            let began = Instant::now();
            let plan = session.plan_variant(op, way)?;
            self.planned += began.elapsed();
            self.plans.add(plan, way);
        }
        Ok(())
    }

    /// The variant and configuration that compute as many queries of this form as a launch may have, which then have the bits of one alone.
    fn way(&mut self, session: &Session<D>, op: Attention) -> Result<String> {
        self.plan(session, op, None)?;
        let plan = self.plans.first().map(|ready| &ready.plan).ok_or_else(|| Error::invalid("plan", "one", "none"))?;
        match plan.config() {
            None => Ok(plan.variant().to_owned()),
            // It cuts lists of blocks by how many there are in all.
            Some(config) if config.starts_with(CUTS) => {
                Err(Error::unsupported("queries of one launch", format!("{config} cuts the keys of each by the others")))
            }
            Some(config) => Ok(format!("{}:{config}", plan.variant())),
        }
    }

    /// The way in which queries like the first, with these blocks, are computed, alone and beside others; none where each is alone and as fast as it can be.
    ///
    /// # Errors
    /// They are `several`, and there is no such way.
    fn way_of(&mut self, session: &Session<D>, first: &Attend, masks: &[Mask], several: bool) -> Result<Option<String>> {
        let most = most_together(first);
        let mut forms: Vec<Option<Form>> = masks.iter().map(|mask| mask.form_of_several(&first.op, most)).collect();
        // Nearly always all are of one form.
        forms.dedup();
        let mut ways = BTreeSet::new();
        for form in forms {
            let op = form.filter(|_| most > 1).map(|form| first.op.clone().with_batch(first.op.batch * most).with_form(form));
            match op.ok_or_else(|| Error::unsupported("queries of one launch", "one is work enough")).and_then(|op| self.way(session, op)) {
                Ok(way) => drop(ways.insert(way)),
                Err(error) if several || matches!(error, Error::Device { .. } | Error::OutOfMemory { .. }) => return Err(error),
                Err(_) => return Ok(None),
            }
        }
        match (ways.pop_first(), ways.is_empty()) {
            (Some(way), true) => Ok(Some(way)),
            _ => Err(Error::unsupported("queries of one launch", "each is computed in a way of its own")),
        }
    }

    /// Gets ready for several queries like this one beside each other in regions. What they need is compiled before many wait for it.
    fn expect_more(&mut self, session: &Session<D>, ask: &Attend, mask: &Mask, way: &str) -> Result<()> {
        let (Some(room), Some(form)) = (room(ask), mask.form_of_several(&ask.op, 2)) else { return Ok(()) };
        match self.plan(session, ask.op.clone().with_batch(2 * ask.op.batch).with_form(form).with_slots(room), Some(way)) {
            Err(error @ Error::Device { .. }) => Err(error),
            // Whoever needs it is told.
            _ => Ok(()),
        }
    }

    /// Puts the plan for `op` on sequences at slots first, with the slots on the device, where tensors lie so and the device computes it in that way.
    fn prepare_resident(&mut self, session: &mut Session<D>, op: &Attention, way: Option<&str>, found: Option<Resident<D>>) -> Result<Option<[Slice<D>; 3]>> {
        let Some(Resident { slots, room, tables }) = found else { return Ok(None) };
        match self.plan(session, op.clone().with_slots(room), way) {
            Ok(()) => {}
            // They are gathered.
            Err(Error::Unsupported { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
        let Some(ready) = self.plans.first() else { return Ok(None) };
        let index = match ready.slots.take() {
            Some((index, same)) if same == slots => index,
            Some((index, _)) => {
                session.update_index(&index, &slots)?;
                index
            }
            None => session.index(&slots)?,
        };
        ready.slots = Some((index, slots));
        Ok(Some(tables))
    }

    /// Puts these blocks on the device, for the plan that is first.
    fn prepare(&mut self, session: &mut Session<D>, mask: Option<Mask>) -> Result<()> {
        let (Some(mask), Some(ready)) = (mask, self.plans.first()) else { return Ok(()) };
        // The next query has an index of its own if this one cannot be written.
        let index = match (ready.index.take(), &mask) {
            (Some((index, same)), _) if same == mask => index,
            (Some((AttentionIndex::BlockMap(index), _)), Mask::Map(map)) => {
                session.update_index(&index, &**map)?;
                AttentionIndex::BlockMap(index)
            }
            (Some((AttentionIndex::Blocks(index), _)), Mask::Rows(rows)) => {
                session.update_index(&index, rows)?;
                AttentionIndex::Blocks(index)
            }
            (_, Mask::Map(map)) => AttentionIndex::BlockMap(session.index(&**map)?),
            (_, Mask::Rows(rows)) => AttentionIndex::Blocks(session.index(rows)?),
        };
        ready.index = Some((index, mask));
        Ok(())
    }
}

/// The bytes of a source, which are read from the device where they are there.
fn host<D: Backend>(session: &mut Session<D>, source: &Source) -> Result<Bytes> {
    match source {
        Source::Bytes(bytes) => Ok(bytes.clone()),
        Source::Region(part) => Ok(session.read(&slice::<D>(part)?)?.into()),
    }
}
