//! A device that does tasks, in their order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use trifuse::backend::Backend;
use trifuse::device::Slice;
use trifuse::session::{Event, Session};
use trifuse::{Error, Result};

use super::attend::{Attends, Given, Launched, SUM};
use super::regions::Region;
use super::task::{Attend, Done, Job, Task};
use super::tensors::{outside, slice};
use super::together::launches;

/// Bytes that are moved at once where more would need as much of the host's memory.
const PIECE: u64 = 1 << 20;
/// The fewest checksums that memory of the host has room for.
const FEW_SUMS: u64 = 64;

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
    /// Gives the device tasks, behind those that it has, and waits for it only where a task needs that. What fails is told by [`finish`](Self::finish).
    fn submit(&mut self, tasks: &[&Task]);

    /// What came of the tasks that were submitted first of those that are not finished; nothing where all are. Waits for them.
    fn finish(&mut self) -> Ran;
}

/// What a task has once the device has been given it, with the number of its checksum among those of the flight.
type Begun = Result<Given>;

/// Tasks that the device has.
struct Flight<B: Backend> {
    begun: Vec<Begun>,
    /// Checksums on the host, once the device is there, and how many.
    sums: Option<(Slice<B>, u64)>,
    /// The moment behind all of them.
    end: Result<Event<B>>,
    planned: Duration,
    together: usize,
}

/// A backend that does tasks.
pub struct Operator<B: Backend> {
    session: Session<B>,
    attends: Attends<B>,
    /// What the device has, the first one first.
    flights: VecDeque<Flight<B>>,
    /// Memory of the host for checksums that no flight has.
    spare: Vec<Slice<B>>,
}

/// Checksums of a flight as it is made: memory of the host, and how many are there.
struct Sums<B: Backend> {
    host: Option<Slice<B>>,
    room: u64,
    count: u64,
}

impl<B: Backend> Operator<B> {
    /// A queue of its own on a device.
    ///
    /// # Errors
    /// A device that fails.
    pub fn new(device: Arc<B>) -> Result<Self> {
        let fills = device.hints().beside_host;
        Ok(Self { session: Session::new(device)?, attends: Attends::new(fills), flights: VecDeque::new(), spare: Vec::new() })
    }

    fn task(&mut self, task: &Task, sums: &mut Sums<B>) -> Begun {
        match &task.job {
            Job::Attend(ask) => {
                let begun = match self.attend(&[ask], sums) {
                    // What is kept for shapes holds memory too.
                    Err(Error::OutOfMemory { .. }) if self.attends.clear() => self.attend(&[ask], sums),
                    other => other,
                };
                begun?.pop().unwrap_or_else(|| Err(Error::invalid("attention", "a result", "none")))
            }
            Job::Fill(region, bytes) => self.fill(region, bytes),
            Job::Write(part, bytes) => {
                let slice = slice::<B>(part)?;
                part.region.was_written();
                self.session.write(&slice, bytes)?;
                Ok(Given::default())
            }
            Job::Read(part) => {
                let slice = slice::<B>(part)?;
                Ok(Given { bytes: self.session.read(&slice)?, sum: None })
            }
        }
    }

    fn fill(&mut self, region: &Region, bytes: &Bytes) -> Begun {
        let slice = match self.session.alloc(region.bytes()) {
            Err(Error::OutOfMemory { .. }) if self.attends.clear() => self.session.alloc(region.bytes())?,
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
        Ok(Given::default())
    }

    /// Gives the device queries in one launch, and has it copy their checksums to the host.
    fn attend(&mut self, asks: &[&Attend], sums: &mut Sums<B>) -> Result<Vec<Begun>> {
        let Launched { queries, sums: made } = self.attends.launch(&mut self.session, asks)?;
        let Some(made) = made else { return Ok(queries) };
        let before = sums.count;
        let place = self.room(sums)?.sub_slice(before * SUM, made.len()).ok_or_else(|| outside(before * SUM, made.len()))?;
        self.session.copy(&made, &place)?;
        sums.count += made.len() / SUM;
        Ok(queries.into_iter().map(|query| query.map(|given| Given { sum: given.sum.map(|sum| sum + before as usize), ..given })).collect())
    }

    /// The memory of the host for the checksums of a flight.
    fn room(&mut self, sums: &mut Sums<B>) -> Result<Slice<B>> {
        if let Some(host) = &sums.host {
            return Ok(host.clone());
        }
        let bytes = sums.room.max(FEW_SUMS) * SUM;
        let host = match self.spare.iter().position(|spare| spare.len() >= bytes) {
            Some(at) => self.spare.swap_remove(at),
            None => self.session.alloc_host(bytes)?,
        };
        Ok(sums.host.insert(host).clone())
    }

    /// Waits for a flight; the checksums of its outputs.
    fn wait(&mut self, sums: Option<(Slice<B>, u64)>, end: Result<Event<B>>) -> Result<Vec<u64>> {
        let end = end?;
        let Some((host, count)) = sums else {
            self.session.wait(&end)?;
            return Ok(Vec::new());
        };
        let own = host.sub_slice(0, count * SUM).ok_or_else(|| outside(0, count * SUM))?;
        let read = self.session.read_after(&end, &own)?;
        self.spare.push(host);
        Ok(read)
    }
}

impl<B: Backend> Operate for Operator<B> {
    fn submit(&mut self, tasks: &[&Task]) {
        let (mut together, mut lost) = (0, false);
        let mut sums = Sums { host: None, room: tasks.len() as u64, count: 0 };
        let mut begun: Vec<Option<Begun>> = tasks.iter().map(|_| None).collect();
        for launch in launches(tasks) {
            let query = |number: &usize| tasks.get(*number).and_then(|task| if let Job::Attend(ask) = &task.job { Some(&**ask) } else { None });
            let asks: Vec<&Attend> = launch.iter().filter_map(query).collect();
            // Where one of several is not sound, or the device does not take them together, each has a launch of its own.
            let given = match if launch.len() > 1 { Some(self.attend(&asks, &mut sums)) } else { None } {
                Some(Err(error @ Error::Device { .. })) => vec![Err(error)],
                Some(Ok(given)) => {
                    together += given.len();
                    given
                }
                _ => launch.iter().map(|number| self.task(tasks[*number], &mut sums)).collect(),
            };
            lost |= given.iter().any(|given| matches!(given, Err(Error::Device { .. })));
            launch.into_iter().zip(given).for_each(|(number, given)| begun[number] = Some(given));
            if lost {
                break;
            }
        }
        let before = || Err(Error::device("operations", "it failed before"));
        let begun = begun.into_iter().map(|begun| begun.unwrap_or_else(before)).collect();
        let end = self.session.record_event();
        let (planned, count) = (self.attends.take_planned(), sums.count);
        self.flights.push_back(Flight { begun, sums: sums.host.map(|host| (host, count)), end, planned, together });
    }

    fn finish(&mut self) -> Ran {
        let Some(Flight { begun, sums, end, planned, together }) = self.flights.pop_front() else {
            return Ran { results: Vec::new(), planned: Duration::ZERO, together: 0 };
        };
        // Outputs that stay on the device are there once it is done; what failed meanwhile may be any of them.
        let results = match self.wait(sums, end) {
            Ok(sums) => {
                let done = |Given { bytes, sum }: Given| Done { bytes, checksum: sum.and_then(|sum| sums.get(sum).copied()) };
                begun.into_iter().map(|begun| begun.map(done)).collect()
            }
            Err(error) => {
                let during = error.to_string();
                begun.iter().map(|_| Err(Error::device("operations", during.clone()))).collect()
            }
        };
        Ran { results, planned, together }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use trifuse::backends::cpu::Cpu;
    use trifuse::device::Open as _;
    use trifuse::ops::Attention;
    use trifuse::{DType, ops::checksum::checksum};

    use super::super::regions::{Part, Regions};
    use super::super::task::{Blocks, Source};
    use super::*;

    const TOKENS: u64 = 70;
    const DIM: u64 = 32;
    /// Bytes of a tensor.
    const EACH: u64 = TOKENS * DIM * 2;
    /// Sequences of each region.
    const SETS: u64 = 6;

    /// An operator that fills launches up or does not, with drawn numbers in regions.
    fn operator(fills: bool) -> (Operator<Cpu>, [Arc<Region>; 3]) {
        let mut operator = Operator::new(Arc::new(Cpu::open(0).unwrap())).unwrap();
        operator.attends = Attends::new(fills);
        let (all, numbers) = (Regions::new(1 << 24), (0..SETS * TOKENS * DIM).map(|at| (at * 7919 % 1013) as f64 / 1013.0 - 0.5));
        let bytes = DType::F16.encode(&numbers.collect::<Vec<f64>>());
        let regions = [0, 1, 2].map(|_| {
            let region = all.reserve(SETS * EACH).unwrap();
            operator.fill(&region, &bytes.clone().into()).unwrap();
            region
        });
        (operator, regions)
    }

    fn task(regions: &[Arc<Region>; 3], set: u64, wants_bytes: bool) -> Task {
        let tensors = regions.each_ref().map(|region| Source::Region(Part::of(region, set * EACH, EACH).unwrap()));
        let map = [1, (set % 2) as u8, (set % 3) as u8, 1];
        let blocks = Blocks::Map(Source::Bytes(map.to_vec().into()), [64, 2, 2, 1]);
        let op = Attention::dense(DType::F16, 1, [1, 1], [TOKENS; 2], DIM);
        Task::new(Job::Attend(Box::new(Attend { op, tensors, blocks, output: None, bytes: EACH, wants_bytes, wants_checksum: true })))
    }

    fn ask(operator: &mut Operator<Cpu>, tasks: &[Task]) -> (Vec<Done>, usize) {
        operator.submit(&tasks.iter().collect::<Vec<_>>());
        let ran = operator.finish();
        (ran.results.into_iter().collect::<Result<_>>().unwrap(), ran.together)
    }

    #[test]
    fn a_launch_that_is_filled_up_answers_those_who_asked() {
        for fills in [true, false] {
            let (mut operator, regions) = operator(fills);
            for sets in [&[4, 0, 5, 1, 2][..], &[0, 1, 2, 3, 4], &[3, 3, 1], &[5, 2, 2, 0, 1, 4, 3]] {
                for wants_bytes in [false, true] {
                    let tasks: Vec<Task> = sets.iter().map(|set| task(&regions, *set, wants_bytes)).collect();
                    let (together, count) = ask(&mut operator, &tasks);
                    assert_eq!((together.len(), count), (sets.len(), sets.len()), "{sets:?}");
                    for (set, done) in sets.iter().zip(together) {
                        let alone = ask(&mut operator, &[task(&regions, *set, true)]).0.remove(0);
                        assert_eq!(done.checksum, Some(checksum(&alone.bytes)), "set {set} of {sets:?}");
                        assert!(alone.bytes.iter().any(|byte| *byte != 0) && done.bytes == if wants_bytes { alone.bytes } else { Vec::new() });
                    }
                }
            }
        }
    }
}
