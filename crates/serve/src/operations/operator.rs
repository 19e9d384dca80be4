//! A device that does tasks, in their order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use trifuse::backend::Backend;
use trifuse::device::Slice;
use trifuse::ops::attention::AttentionIndex;
use trifuse::ops::index::{BlockMap, BlockShape, MapShape};
use trifuse::ops::{Attention, AttentionArgs, Checksum, ChecksumArgs};
use trifuse::session::Session;
use trifuse::{Error, Result};

use super::mask::{Mask, listed};
use super::plans::Plans;
use super::regions::{Part, Region};
use super::task::{Attend, Blocks, Done, Job, Source, Task};
use super::together::launches;
use crate::kserve::tensor::int32;

/// Bytes that are moved at once where more would need as much of the host's memory.
const PIECE: u64 = 1 << 20;
/// The most bytes of outputs that are read at once for several answers.
const MOST_READ: u64 = 16 << 20;

/// How the configurations of attention begin that cut the keys of a sequence by what is beside it.
const CUTS: &str = "split_kv";

/// What came of tasks.
#[derive(Debug)]
pub struct Ran {
    /// What came of each, in their order.
    pub results: Vec<Result<Done>>,
    /// How much of the time went into getting ready for shapes that were new.
    pub planned: Duration,
    /// Queries that were part of a launch of several.
    pub together: usize,
}

/// Something that does tasks. It stays on the thread where it was opened.
pub trait Operate {
    /// Does tasks in their order; all are done when it returns.
    fn run(&mut self, tasks: &[&Task]) -> Ran;
}

/// A backend that does tasks.
pub struct Operator<B: Backend> {
    session: Session<B>,
    plans: Plans<B>,
    planned: Duration,
}

impl<B: Backend> Operator<B> {
    /// A queue of its own on a device.
    ///
    /// # Errors
    /// A device that fails.
    pub fn new(device: Arc<B>) -> Result<Self> {
        Ok(Self { session: Session::new(device)?, plans: Plans::default(), planned: Duration::ZERO })
    }

    fn task(&mut self, task: &Task) -> Result<Done> {
        match &task.job {
            Job::Attend(ask) => {
                let done = match self.attend(&[ask]) {
                    // Shapes that are kept hold memory too.
                    Err(Error::OutOfMemory { .. }) if self.plans.clear() => self.attend(&[ask]),
                    other => other,
                };
                done?.pop().unwrap_or_else(|| Err(Error::invalid("attention", "a result", "none")))
            }
            Job::Fill(region, bytes) => self.fill(region, bytes),
            Job::Write(part, bytes) => {
                let slice = slice::<B>(part)?;
                self.session.write(&slice, bytes)?;
                Ok(Done::default())
            }
            Job::Read(part) => {
                let slice = slice::<B>(part)?;
                Ok(Done { bytes: self.session.read(&slice)?, checksum: None })
            }
        }
    }

    fn fill(&mut self, region: &Region, bytes: &Bytes) -> Result<Done> {
        let slice = match self.session.alloc(region.bytes()) {
            Err(Error::OutOfMemory { .. }) if self.plans.clear() => self.session.alloc(region.bytes())?,
            other => other?,
        };
        self.session.write(&slice, bytes)?;
        // What lay in this memory before is another's.
        let zeros = vec![0; PIECE as usize];
        let mut at = bytes.len() as u64;
        while let Some(left) = region.bytes().checked_sub(at).filter(|left| *left > 0) {
            let piece = left.min(PIECE);
            let part = slice.sub_slice(at, piece).ok_or_else(|| outside(at, piece))?;
            self.session.write(&part, &zeros[..piece as usize])?;
            at += piece;
        }
        self.session.synchronize()?;
        region.give(Box::new(slice));
        Ok(Done::default())
    }

    /// Does queries in one launch, as [`launches`] has found that they can be; gives what came of each.
    fn attend(&mut self, asks: &[&Attend]) -> Result<Vec<Result<Done>>> {
        let Some(first) = asks.first() else { return Ok(Vec::new()) };
        let masks = asks.iter().map(|ask| self.mask(&ask.blocks)).collect::<Result<Vec<Option<Mask>>>>()?;
        let masks: Option<Vec<Mask>> = masks.into_iter().collect();
        let with = |op: &Attention, mask: Option<&Mask>| mask.map_or_else(|| op.clone(), |mask| op.clone().with_form(mask.form()));
        let way = match &masks {
            Some(masks) if asks.len() > 1 => Some(self.way_of(&first.op, masks)?),
            _ => None,
        };
        let mask = masks.map(|masks| Mask::joined(&masks, &first.op)).transpose()?;
        let op = first.op.clone().with_batch(first.op.batch * asks.len() as u64);
        self.prepare(with(&op, mask.as_ref()), way.as_deref(), mask)?;
        let Self { session, plans, .. } = self;
        let ready = plans.first().ok_or_else(|| Error::invalid("plan", "one", "none"))?;
        let mut slices = Vec::with_capacity(3);
        for (number, scratch) in ready.scratch.iter_mut().take(3).enumerate() {
            slices.push(match &first.tensors[number] {
                Source::Region(part) => slice::<B>(&whole(part, asks.len()))?,
                Source::Bytes(bytes) => {
                    let each = bytes.len() as u64;
                    let own = own(session, scratch, each * asks.len() as u64)?;
                    for (at, ask) in asks.iter().enumerate() {
                        if let Source::Bytes(bytes) = &ask.tensors[number] {
                            session.write(&nth(&own, at, each)?, bytes)?;
                        }
                    }
                    own
                }
            });
        }
        let o = match &first.output {
            Some(part) => slice::<B>(&whole(part, asks.len()))?,
            None => own(session, &mut ready.scratch[3], first.bytes * asks.len() as u64)?,
        };
        let [q, k, v] = <[Slice<B>; 3]>::try_from(slices).map_err(|slices| Error::invalid("attention", "q, k and v", slices.len()))?;
        let args = AttentionArgs::new(q, k, v, o.clone());
        let args = match &ready.index {
            Some((index, _)) => args.with_index(index.clone()),
            None => args,
        };
        session.run(&ready.plan, &args)?;
        // What is read is read now: the next query may write there.
        self.results(asks, &o, first.bytes)
    }

    /// What the answers have of the outputs, which lie one behind the other and have as many bytes each.
    fn results(&mut self, asks: &[&Attend], o: &Slice<B>, each: u64) -> Result<Vec<Result<Done>>> {
        // Enqueued behind the queries, and made while the device has the outputs at hand: eight bytes of each are read.
        let sums = if asks.iter().any(|ask| ask.wants_checksum) { self.checksums(asks.len() as u64, o, each)? } else { Vec::new() };
        let read = asks.iter().any(|ask| ask.wants_bytes);
        // The device is waited for once where that takes little of the host's memory.
        let all = if read && asks.len() > 1 && o.len() <= MOST_READ { Some(self.session.read(o)?) } else { None };
        let mut own = all.as_ref().map(|all| all.chunks_exact((each as usize).max(1)));
        let mut results = Vec::with_capacity(asks.len());
        for (at, ask) in asks.iter().enumerate() {
            let read = own.as_mut().and_then(Iterator::next);
            let bytes = match read {
                _ if !ask.wants_bytes => Ok(Vec::new()),
                Some(bytes) => Ok(bytes.to_vec()),
                None => nth(o, at, each).and_then(|o| self.session.read(&o)),
            };
            let checksum = if ask.wants_checksum { sums.get(at).copied() } else { None };
            results.push(bytes.map(|bytes| Done { bytes, checksum }));
        }
        Ok(results)
    }

    /// The checksums of outputs of the shape that was used last, which lie one behind the other: one launch.
    fn checksums(&mut self, outputs: u64, o: &Slice<B>, each: u64) -> Result<Vec<u64>> {
        let Self { session, plans, planned } = self;
        let none = || Error::invalid("plan", "one", "none");
        let ready = plans.first().ok_or_else(none)?;
        let op = Checksum::new(outputs, each);
        // Two queries of four sequences have the shape of four of two.
        if ready.sums.as_ref().is_none_or(|(plan, _)| *plan.op() != op) {
            let began = Instant::now();
            ready.sums = Some((session.plan(op)?, session.alloc(8 * outputs)?));
            *planned += began.elapsed();
        }
        let (plan, sums) = ready.sums.as_ref().ok_or_else(none)?;
        session.run(plan, &ChecksumArgs::new(o.clone(), sums.clone()))?;
        session.download(sums)
    }

    /// The blocks of a query, checked.
    fn mask(&mut self, blocks: &Blocks) -> Result<Option<Mask>> {
        Ok(match blocks {
            Blocks::All => None,
            Blocks::Map(map, [block, q_blocks, kv_blocks, patterns]) => {
                let shape = MapShape { block: *block, q_blocks: *q_blocks, kv_blocks: *kv_blocks, patterns: *patterns };
                match map {
                    // The device copies whole words.
                    Source::Region(part) if part.is_words() => Some(Mask::There(vec![part.clone()], shape)),
                    _ => Some(Mask::Map(BlockMap::new(&self.host(map)?, shape)?)),
                }
            }
            Blocks::Rows(rows, columns, [block, q_blocks, kv_blocks, patterns]) => {
                let (rows, columns) = (int32(&self.host(rows)?), int32(&self.host(columns)?));
                let shape = BlockShape { block: *block, q_blocks: *q_blocks, kv_blocks: *kv_blocks, patterns: *patterns, capacity: 0, masks: 0 };
                Some(Mask::Rows(listed(&rows, &columns, shape)?))
            }
        })
    }

    fn host(&mut self, source: &Source) -> Result<Bytes> {
        match source {
            Source::Bytes(bytes) => Ok(bytes.clone()),
            Source::Region(part) => Ok(self.session.read(&slice::<B>(part)?)?.into()),
        }
    }

    /// Puts the plan for `op` first: the fastest, or the one that computes it in that way.
    fn plan(&mut self, op: Attention, way: Option<&str>) -> Result<()> {
        if !self.plans.find(&op, way) {
            let began = Instant::now();
            let plan = self.session.plan_variant(op, way)?;
            self.planned += began.elapsed();
            self.plans.add(plan, way);
        }
        Ok(())
    }

    /// The variant and configuration that compute a query alone, if several have the same bits by them.
    fn way(&mut self, alone: Attention) -> Result<String> {
        self.plan(alone, None)?;
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

    /// The way in which queries with these blocks are computed alone, if it is one.
    fn way_of(&mut self, op: &Attention, masks: &[Mask]) -> Result<String> {
        let mut ways = masks.iter().map(|mask| self.way(op.clone().with_form(mask.form()))).collect::<Result<BTreeSet<String>>>()?;
        match (ways.pop_first(), ways.is_empty()) {
            (Some(way), true) => Ok(way),
            _ => Err(Error::unsupported("queries of one launch", "each is computed in a way of its own")),
        }
    }

    /// Puts the plan for `op` first, with these blocks on the device. Where it is for several queries, each is computed in the way in which one is alone.
    fn prepare(&mut self, op: Attention, way: Option<&str>, mask: Option<Mask>) -> Result<()> {
        self.plan(op, way)?;
        let Self { session, plans, .. } = self;
        let (Some(mask), Some(ready)) = (mask, plans.first()) else { return Ok(()) };
        // The next query has an index of its own if this one cannot be written.
        let before = ready.index.take();
        let index = match (before, &mask) {
            (Some((index, Some(same))), _) if same.is(&mask) => index,
            (Some((AttentionIndex::BlockMap(index), _)), Mask::There(parts, _)) => {
                copy(session, parts, index.bytes())?;
                AttentionIndex::BlockMap(index)
            }
            (Some((AttentionIndex::BlockMap(index), _)), Mask::Map(map)) => {
                session.update_index(&index, map)?;
                AttentionIndex::BlockMap(index)
            }
            (Some((AttentionIndex::Blocks(index), _)), Mask::Rows(rows)) => {
                session.update_index(&index, rows)?;
                AttentionIndex::Blocks(index)
            }
            (_, Mask::There(parts, shape)) => {
                let zeros = vec![0; usize::try_from(shape.blocks()).unwrap_or(0)];
                let index = session.index(&BlockMap::new(&zeros, *shape)?)?;
                copy(session, parts, index.bytes())?;
                AttentionIndex::BlockMap(index)
            }
            (_, Mask::Map(map)) => AttentionIndex::BlockMap(session.index(map)?),
            (_, Mask::Rows(rows)) => AttentionIndex::Blocks(session.index(rows)?),
        };
        let seen = if matches!(mask, Mask::There(..)) { None } else { Some(mask) };
        ready.index = Some((index, seen));
        Ok(())
    }
}

impl<B: Backend> Operate for Operator<B> {
    fn run(&mut self, tasks: &[&Task]) -> Ran {
        self.planned = Duration::ZERO;
        let (mut together, mut lost) = (0, false);
        let mut results: Vec<Option<Result<Done>>> = tasks.iter().map(|_| None).collect();
        for launch in launches(tasks) {
            let query = |number: &usize| tasks.get(*number).and_then(|task| if let Job::Attend(ask) = &task.job { Some(&**ask) } else { None });
            let asks: Vec<&Attend> = launch.iter().filter_map(query).collect();
            // Where one of several is not sound, or the device does not take them together, each has a launch of its own.
            let done = match if launch.len() > 1 { Some(self.attend(&asks)) } else { None } {
                Some(Err(error @ Error::Device { .. })) => vec![Err(error)],
                Some(Ok(done)) => {
                    together += done.len();
                    done
                }
                _ => launch.iter().map(|number| self.task(tasks[*number])).collect(),
            };
            lost |= done.iter().any(|done| matches!(done, Err(Error::Device { .. })));
            launch.into_iter().zip(done).for_each(|(number, done)| results[number] = Some(done));
            if lost {
                break;
            }
        }
        let before = || Err(Error::device("operations", "it failed before"));
        let mut results: Vec<Result<Done>> = results.into_iter().map(|result| result.unwrap_or_else(before)).collect();
        // Outputs that stay on the device are there once it is done; what failed meanwhile may be any of them.
        if let Err(error) = self.session.synchronize() {
            let during = error.to_string();
            results = tasks.iter().map(|_| Err(Error::device("operations", during.clone()))).collect();
        }
        Ran { results, planned: self.planned, together }
    }
}

fn outside(at: u64, bytes: u64) -> Error {
    Error::invalid("region", "a part of it", format_args!("{bytes} bytes from {at}"))
}

/// The parts of as many queries, one behind the other, of which this is the first.
fn whole(part: &Part, queries: usize) -> Part {
    Part { bytes: part.bytes.saturating_mul(queries as u64), ..part.clone() }
}

/// The bytes of the query of this number, of which each has as many.
fn nth<B: Backend>(all: &Slice<B>, number: usize, each: u64) -> Result<Slice<B>> {
    let at = each.saturating_mul(number as u64);
    all.sub_slice(at, each).ok_or_else(|| outside(at, each))
}

/// Copies parts of regions to `to`, one behind the other.
fn copy<B: Backend>(session: &mut Session<B>, parts: &[Part], to: &Slice<B>) -> Result<()> {
    let mut at = 0;
    for part in parts {
        let place = to.sub_slice(at, part.bytes).ok_or_else(|| outside(at, part.bytes))?;
        session.copy(&slice::<B>(part)?, &place)?;
        at += part.bytes;
    }
    Ok(())
}

/// The memory of a part of a region.
fn slice<B: Backend>(part: &Part) -> Result<Slice<B>> {
    let whole = part.region.memory().and_then(|memory| memory.downcast_ref::<Slice<B>>());
    whole.and_then(|whole| whole.sub_slice(part.offset, part.bytes)).ok_or_else(|| outside(part.offset, part.bytes))
}

/// Memory of that many bytes, which is kept for queries of the same shape.
fn own<B: Backend>(session: &Session<B>, kept: &mut Option<Slice<B>>, bytes: u64) -> Result<Slice<B>> {
    match kept {
        Some(slice) if slice.len() == bytes => Ok(slice.clone()),
        _ => Ok(kept.insert(session.alloc(bytes)?).clone()),
    }
}
