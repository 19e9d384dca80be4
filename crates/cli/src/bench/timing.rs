//! How long work takes on the device, with the caches empty or full, and no host time in it.

use std::time::{Duration, Instant};

use serde::Serialize;

pub use super::schedule::Schedule;
use super::statistics::Statistics;
use trifuse::device::{Clock, Clocks, Device, Kind, Slice};
use trifuse::error::{Error, Result};
use trifuse::session::Session;

/// Timed runs that a limit leaves, at least.
pub const LEAST: usize = 5;
/// Runs whose marks are read together, so that the device has its next work before the host waits.
const TOGETHER: usize = 10;
/// Flushes before one run at most.
const MOST_FLUSHES: usize = 16;
/// Seconds that a device with a clock of its own is at work before it rests for as long. Matrix products draw more power than a large GPU
/// may take for long: at work without rests it lowers its clocks after some tens of milliseconds, by a tenth and more, and what a time then
/// tells is how much was asked of the device before.
const STRETCH: f64 = 4e-3;
/// Seconds of a rest at most: what takes longer leaves the device waiting itself.
const LONGEST_REST: f64 = 0.05;

/// What the caches hold when a timed run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Caches {
    /// Other data: a copy larger than the last cache went before.
    Cold,
    /// What the same work left a moment ago.
    Warm,
}

/// Two buffers that together are larger than any last cache of that kind of device; a copy from one to the other
/// leaves nothing else in it.
pub struct Flush<D: Device> {
    from: Slice<D>,
    to: Slice<D>,
    /// Seconds that a copy takes.
    seconds: f64,
}

/// The times of one piece of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Seconds on the device's clock, or on the host's where the backend says so.
    #[serde(flatten)]
    pub seconds: Statistics,
    /// Seconds that the host took to put one run into the queue, in the middle.
    pub host_seconds: f64,
    /// Seconds of earlier work that the device had in its queue meanwhile. Where they are fewer than `host_seconds`,
    /// the device may have waited for the host.
    pub ahead_seconds: f64,
    /// Each run's seconds, in the order of the runs.
    pub samples: Vec<f64>,
}

/// What puts a piece of work into the queue once. One call through a table, so that the way of timing is compiled once, and not for each operation.
pub type Enqueue<'a, D> = &'a mut dyn FnMut(&mut Session<D>) -> Result<()>;

/// The moment so many seconds from now, or a day: what is longer than a clock holds is as long as one waits.
fn after(seconds: f64) -> Instant {
    Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 86_400.0))
}

/// Lets a device that was at work for so long be idle for as long, where that is long enough to count and its clock does not see it.
fn rest<D: Device>(session: &Session<D>, seconds: f64) {
    if session.clock() == Clock::Device && seconds * TOGETHER as f64 > STRETCH {
        std::thread::sleep(Duration::from_secs_f64(seconds.min(LONGEST_REST)));
    }
}

impl<D: Device> Flush<D> {
    /// Allocates the buffers and times a copy.
    ///
    /// # Errors
    /// The device has no room.
    pub fn new(session: &mut Session<D>) -> Result<Self> {
        let half = if session.caps().kind == Kind::Cpu { 32 << 20 } else { 128 << 20 };
        let (from, to) = (session.alloc(half)?, session.alloc(half)?);
        session.write(&from, &vec![0x3c; half as usize])?;
        let mut flush = Self { from, to, seconds: 0.0 };
        let mut least = f64::INFINITY;
        for _ in 0..5 {
            let began = session.record_event()?;
            flush.run(session)?;
            let ended = session.record_event()?;
            least = least.min(session.elapsed(&began, &ended)?);
        }
        flush.seconds = least;
        Ok(flush)
    }

    /// Bytes that it reads and writes.
    pub fn bytes(&self) -> u64 {
        self.from.len() + self.to.len()
    }

    /// Seconds that one such copy takes.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    fn run(&self, session: &mut Session<D>) -> Result<()> {
        session.copy(&self.from, &self.to)
    }

    /// The device's clocks while it is at work, where its driver tells: a tenth of a second of copies is in the queue meanwhile.
    ///
    /// # Errors
    /// What the device reports.
    pub fn clocks(&self, session: &mut Session<D>) -> Result<Option<Clocks>> {
        if session.device().clocks().is_none() {
            return Ok(None);
        }
        for _ in 0..((0.1 / self.seconds) as usize).clamp(1, 10_000) {
            self.run(session)?;
        }
        let clocks = session.device().clocks();
        session.synchronize()?;
        Ok(clocks)
    }

    /// Times `enqueue`, which puts the work into the queue once.
    ///
    /// On a device with a clock of its own every timed run has enough copies before it that the host is done putting
    /// it into the queue before the device begins it, and the device rests after every stretch of 4 ms. With warm caches the work itself runs
    /// between, not timed.
    ///
    /// # Errors
    /// What the device reports.
    pub fn time(&self, session: &mut Session<D>, schedule: Schedule, caches: Caches, enqueue: Enqueue<'_, D>) -> Result<Times> {
        let (mut host, mut run) = (f64::INFINITY, 0.0);
        let half = after(schedule.limit_seconds / 2.0);
        for number in 0..schedule.warmup.max(2) {
            if number >= 2 && Instant::now() > half {
                break;
            }
            session.synchronize()?;
            let began = Instant::now();
            let marks = (session.record_event()?, enqueue(session)?, session.record_event()?);
            host = host.min(began.elapsed().as_secs_f64());
            run = session.elapsed(&marks.0, &marks.2)?;
            rest(session, run);
        }
        session.synchronize()?;
        let flushes = match (session.clock(), caches) {
            (Clock::Device, _) => ((2.0 * host / self.seconds).ceil() as usize).clamp(1, MOST_FLUSHES),
            (Clock::Host, Caches::Cold) => 1,
            (Clock::Host, Caches::Warm) => 0,
        };
        let turn = self.seconds * flushes as f64 + if caches == Caches::Warm { 2.0 * run } else { run };
        // A slow run is read at once, so that the limit holds.
        let together = ((STRETCH / turn) as usize).clamp(1, TOGETHER);
        let (mut times, mut hosts, mut open) = (Vec::new(), Vec::new(), Vec::new());
        let deadline = after(schedule.limit_seconds);
        for number in 1..=schedule.iterations as usize {
            for _ in 0..flushes {
                self.run(session)?;
            }
            if caches == Caches::Warm {
                enqueue(session)?;
            }
            let began = Instant::now();
            let first = session.record_event()?;
            enqueue(session)?;
            let last = session.record_event()?;
            hosts.push(began.elapsed().as_secs_f64());
            open.push((first, last));
            if open.len() == together || number == schedule.iterations as usize {
                let count = open.len();
                for (first, last) in open.drain(..) {
                    times.push(session.elapsed(&first, &last)?);
                }
                rest(session, turn * count as f64);
                if times.len() >= LEAST && Instant::now() > deadline {
                    break;
                }
            }
        }
        hosts.sort_by(f64::total_cmp);
        let host_seconds = hosts.get(hosts.len() / 2).copied().unwrap_or_default();
        let seconds = Statistics::of(&times).ok_or_else(|| Error::invalid("iterations", "at least 1", schedule.iterations))?;
        Ok(Times { seconds, host_seconds, ahead_seconds: self.seconds * flushes as f64, samples: times })
    }
}
