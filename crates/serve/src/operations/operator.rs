//! A device that does tasks, in their order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use trifuse::backend::Backend;
use trifuse::device::Slice;
use trifuse::ops::attention::{AttentionIndex, Form};
use trifuse::ops::index::{BlockMap, BlockMask, BlockShape, HostIndex, MapShape};
use trifuse::ops::{Attention, AttentionArgs};
use trifuse::session::Session;
use trifuse::{Error, Result};

use super::checksum::Xxh64;
use super::plans::{Mask, Plans};
use super::regions::{Part, Region};
use super::task::{Attend, Blocks, Done, Job, Source, Task};
use crate::kserve::tensor::int32;

/// Bytes that are moved at once where more would need as much of the host's memory.
const PIECE: u64 = 1 << 20;

/// What came of tasks.
#[derive(Debug)]
pub struct Ran {
    /// What came of each, in their order.
    pub results: Vec<Result<Done>>,
    /// How much of the time went into getting ready for shapes that were new.
    pub planned: Duration,
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
            Job::Attend(ask) => match self.attend(ask) {
                // Shapes that are kept hold memory too.
                Err(Error::OutOfMemory { .. }) if self.plans.clear() => self.attend(ask),
                other => other,
            },
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

    fn attend(&mut self, ask: &Attend) -> Result<Done> {
        let mask = self.mask(&ask.blocks)?;
        let op = match &mask {
            None => ask.op.clone(),
            Some(Mask::Map(map)) => ask.op.clone().with_form(Form::BlockMap(map.shape())),
            Some(Mask::There(_, shape)) => ask.op.clone().with_form(Form::BlockMap(*shape)),
            Some(Mask::Rows(rows)) => ask.op.clone().with_form(Form::Blocks(rows.shape())),
        };
        self.prepare(op, mask)?;
        let Self { session, plans, .. } = self;
        let ready = plans.first().ok_or_else(|| Error::invalid("plan", "one", "none"))?;
        let mut slices = Vec::with_capacity(3);
        for (tensor, scratch) in ask.tensors.iter().zip(&mut ready.scratch) {
            slices.push(match tensor {
                Source::Region(part) => slice::<B>(part)?,
                Source::Bytes(bytes) => {
                    let own = own(session, scratch, bytes.len() as u64)?;
                    session.write(&own, bytes)?;
                    own
                }
            });
        }
        let o = match &ask.output {
            Some(part) => slice::<B>(part)?,
            None => own(session, &mut ready.scratch[3], ask.bytes)?,
        };
        let [q, k, v] = <[Slice<B>; 3]>::try_from(slices).map_err(|slices| Error::invalid("attention", "q, k and v", slices.len()))?;
        let args = AttentionArgs::new(q, k, v, o.clone());
        let args = match &ready.index {
            Some((index, _)) => args.with_index(index.clone()),
            None => args,
        };
        session.run(&ready.plan, &args)?;
        // What is read is read now: the next query may write there.
        self.result(ask, &o)
    }

    /// The blocks of a query, checked.
    fn mask(&mut self, blocks: &Blocks) -> Result<Option<Mask>> {
        Ok(match blocks {
            Blocks::All => None,
            Blocks::Map(map, [block, q_blocks, kv_blocks, patterns]) => {
                let shape = MapShape { block: *block, q_blocks: *q_blocks, kv_blocks: *kv_blocks, patterns: *patterns };
                match map {
                    // The device copies whole words.
                    Source::Region(part) if (part.offset | part.bytes).is_multiple_of(4) => Some(Mask::There(part.clone(), shape)),
                    _ => Some(Mask::Map(BlockMap::new(&self.host(map)?, shape)?)),
                }
            }
            Blocks::Rows(rows, columns, [block, q_blocks, kv_blocks, patterns]) => {
                let (rows, columns) = (int32(&self.host(rows)?), int32(&self.host(columns)?));
                // A plan is made for a capacity, so that lists of about the same length share one.
                let capacity = u32::try_from(columns.len().max(1).next_power_of_two()).unwrap_or(u32::MAX);
                let shape = BlockShape { block: *block, q_blocks: *q_blocks, kv_blocks: *kv_blocks, patterns: *patterns, capacity, masks: 0 };
                Some(Mask::Rows(BlockMask::new(&rows, &columns, &[], &[], shape)?))
            }
        })
    }

    fn host(&mut self, source: &Source) -> Result<Bytes> {
        match source {
            Source::Bytes(bytes) => Ok(bytes.clone()),
            Source::Region(part) => Ok(self.session.read(&slice::<B>(part)?)?.into()),
        }
    }

    /// Puts the plan for `op` first, with these blocks on the device.
    fn prepare(&mut self, op: Attention, mask: Option<Mask>) -> Result<()> {
        if !self.plans.find(&op) {
            let began = Instant::now();
            let plan = self.session.plan(op)?;
            self.planned += began.elapsed();
            self.plans.add(plan);
        }
        let Self { session, plans, .. } = self;
        let (Some(mask), Some(ready)) = (mask, plans.first()) else { return Ok(()) };
        // The next query has an index of its own if this one cannot be written.
        let before = ready.index.take();
        let index = match (before, &mask) {
            (Some((index, Some(same))), _) if same.is(&mask) => index,
            (Some((AttentionIndex::BlockMap(index), _)), Mask::There(part, _)) => {
                session.copy(&slice::<B>(part)?, index.bytes())?;
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
            (_, Mask::There(part, shape)) => {
                let zeros = vec![0; usize::try_from(shape.blocks()).unwrap_or(0)];
                let index = session.index(&BlockMap::new(&zeros, *shape)?)?;
                session.copy(&slice::<B>(part)?, index.bytes())?;
                AttentionIndex::BlockMap(index)
            }
            (_, Mask::Map(map)) => AttentionIndex::BlockMap(session.index(map)?),
            (_, Mask::Rows(rows)) => AttentionIndex::Blocks(session.index(rows)?),
        };
        let seen = if matches!(mask, Mask::There(..)) { None } else { Some(mask) };
        ready.index = Some((index, seen));
        Ok(())
    }

    /// What the answer has of the output.
    fn result(&mut self, ask: &Attend, o: &Slice<B>) -> Result<Done> {
        let mut digest = Xxh64::default();
        let mut bytes = Vec::new();
        if ask.wants_bytes {
            bytes = self.session.read(o)?;
            digest.update(&bytes);
        } else if ask.wants_checksum {
            let mut at = 0;
            while let Some(left) = o.len().checked_sub(at).filter(|left| *left > 0) {
                let piece = left.min(PIECE);
                let part = o.sub_slice(at, piece).ok_or_else(|| outside(at, piece))?;
                digest.update(&self.session.read(&part)?);
                at += piece;
            }
        }
        Ok(Done { bytes, checksum: ask.wants_checksum.then(|| digest.digest()) })
    }
}

impl<B: Backend> Operate for Operator<B> {
    fn run(&mut self, tasks: &[&Task]) -> Ran {
        self.planned = Duration::ZERO;
        let mut results: Vec<Result<Done>> = Vec::with_capacity(tasks.len());
        for task in tasks {
            let result = self.task(task);
            let lost = matches!(result, Err(Error::Device { .. }));
            results.push(result);
            if lost {
                break;
            }
        }
        // Outputs that stay on the device are there once it is done; what failed meanwhile may be any of them.
        if let Err(error) = self.session.synchronize() {
            let during = error.to_string();
            results = tasks.iter().map(|_| Err(Error::device("operations", during.clone()))).collect();
        }
        Ran { results, planned: self.planned }
    }
}

fn outside(at: u64, bytes: u64) -> Error {
    Error::invalid("region", "a part of it", format_args!("{bytes} bytes from {at}"))
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
