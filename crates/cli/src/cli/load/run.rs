//! One run: workers that take arrivals in turn, each with a connection of its own.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, Scope, sleep};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use trifuse::{Error, Result};

use super::answers::Answers;
use super::args::Route;
use super::arrivals::{Arrival, Arrivals, Pace};
use super::caller::Caller;
use super::cpu::{Cores, Spent};
use super::questions::{Question, Questions};
use super::said::{Stream, checksum, fault, said};
use super::tally::{End, Moments, Tally};
use super::wire::{LOOK, Lost, Patience, Wire};
use crate::cli::interrupt::Interrupt;

/// The time before the first request, in which workers start.
const LEAD: Duration = Duration::from_millis(50);
/// What a worker waits behind a connection that it did not get.
const AGAIN: Duration = Duration::from_millis(20);
/// The stack of a worker.
const STACK: usize = 256 << 10;
/// How long a request is taken to be under way, where workers are first counted out.
const GUESS: f64 = 0.02;
/// The fewest workers of an open loop.
const FEW: u32 = 4;

/// What all runs share.
pub struct Load<'a> {
    pub caller: &'a Caller<'a>,
    pub questions: &'a Questions,
    pub route: Route,
    pub stream: bool,
    pub warmup: Duration,
    pub seconds: Duration,
    pub timeout: Duration,
    /// The most connections of an open loop.
    pub connections: u32,
    /// Where answers are compared.
    pub answers: Option<&'a Answers>,
}

/// What a run gave.
pub struct Measured {
    pub tally: Tally,
    /// Requests that were due and never sent.
    pub unsent: u64,
    /// How long it was measured.
    pub seconds: f64,
    /// Connections that were used at once, at most.
    pub connections: u32,
    /// Processors that were busy meanwhile.
    pub cores: Cores,
}

impl Load<'_> {
    fn interrupt(&self) -> &Interrupt {
        self.caller.interrupt
    }

    fn addresses(&self) -> &[SocketAddr] {
        self.caller.addresses
    }

    /// Runs at one pace; `tick` is called about every second.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn run(&self, pace: Pace, seed: u64, tick: &dyn Fn()) -> Result<Measured> {
        let start = Instant::now() + LEAD;
        let counts = [start + self.warmup, start + self.warmup + self.seconds];
        let draw = |random: &mut ChaCha8Rng| self.questions.draw(random);
        let arrivals = Arrivals::new(&draw, pace, seed, start, self.warmup + self.seconds, self.timeout);
        let (most, first) = match pace {
            Pace::Rate(rate) => (self.connections, ((rate * GUESS).ceil() as u32).clamp(FEW.min(self.connections), self.connections)),
            Pace::Concurrency(count) => (count, count),
        };
        let crew = Crew { load: self, arrivals, seed, counts, most, hired: AtomicU32::new(0), working: AtomicU32::new(0), all: Mutex::default() };
        // What was spent is told as soon as the time that counts begins, and as soon as it ends.
        let (mut until, mut spent) = (None, [None; 2]);
        let mut tell = |until: Option<Instant>| {
            for (at, spent) in counts.iter().zip(&mut spent).filter(|(_, spent)| spent.is_none()) {
                if until.unwrap_or(*at).min(*at) <= Instant::now() {
                    *spent = Some(Spent::now(self.caller));
                }
            }
        };
        std::thread::scope(|scope| -> Result<()> {
            let hired = (0..first).take_while(|_| crew.hire(scope)).count();
            if hired == 0 {
                return Err(Error::device("starting a thread for requests", "the system gives none"));
            }
            let mut last = Instant::now();
            while crew.working.load(Ordering::Acquire) > 0 {
                let next = counts.iter().map(|at| at.saturating_duration_since(Instant::now())).find(|left| !left.is_zero());
                sleep(next.unwrap_or(LOOK).min(LOOK));
                if self.interrupt().asked() {
                    until.get_or_insert_with(Instant::now);
                }
                tell(until);
                if last.elapsed() >= Duration::from_secs(1) {
                    last += Duration::from_secs(1);
                    tick();
                }
            }
            Ok(())
        })?;
        tell(until);
        let end = until.map_or(counts[1], |until| until.min(counts[1]));
        let seconds = end.saturating_duration_since(counts[0]).as_secs_f64();
        let connections = crew.hired.into_inner();
        let cores = if let [Some(before), Some(behind)] = spent { behind.cores_since(&before) } else { Cores::default() };
        Ok(Measured { unsent: crew.arrivals.unsent(), seconds, connections, cores, tally: crew.all.into_inner().unwrap_or_else(PoisonError::into_inner) })
    }

    /// Asks once, before anything is measured: the status and the body.
    ///
    /// # Errors
    /// There is no answer.
    pub fn probe(&self, question: Question) -> Result<(u16, Vec<u8>), Lost> {
        let mut request = Vec::new();
        self.questions.write(question, &mut request);
        let mut wire = Wire::open(self.addresses()).map_err(Lost::Ended)?;
        let mut body = Vec::new();
        let patience = Patience { until: Instant::now() + self.timeout, interrupt: Some(self.interrupt()) };
        let head = wire.ask(&request, &patience, &mut |part| body.extend_from_slice(part))?;
        Ok((head.status, body))
    }
}

/// The workers of a run.
struct Crew<'a> {
    load: &'a Load<'a>,
    arrivals: Arrivals<'a>,
    seed: u64,
    counts: [Instant; 2],
    most: u32,
    hired: AtomicU32,
    working: AtomicU32,
    all: Mutex<Tally>,
}

impl Crew<'_> {
    /// Takes one more worker, if there may be one; whether there is.
    fn hire<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> bool {
        let more = |hired: u32| (hired < self.most).then_some(hired + 1);
        let Ok(number) = self.hired.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) else { return false };
        self.working.fetch_add(1, Ordering::AcqRel);
        let started = Builder::new().name("load".into()).stack_size(STACK).spawn_scoped(scope, move || self.work(scope, number)).is_ok();
        if !started {
            self.working.fetch_sub(1, Ordering::AcqRel);
            self.hired.fetch_sub(1, Ordering::AcqRel);
        }
        started
    }

    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, number: u32) {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        // The first stream is that of arrivals by a rate.
        random.set_stream(1 + u64::from(number));
        let (mut tally, mut worker) = (Tally::default(), Worker { load: self.load, wire: None, request: Vec::new(), body: Vec::new() });
        let interrupt = self.load.interrupt();
        while let Some(Arrival { due, question }) = if interrupt.asked() { None } else { self.arrivals.next(&mut random) } {
            if due <= Instant::now() {
                // Nobody was free when it was due.
                self.hire(scope);
            }
            worker.prepare(question);
            if !wait(due, interrupt) {
                break;
            }
            let sent = Instant::now();
            let (end, ended) = worker.ask(question);
            tally.add(end, Moments { due, sent, ended }, self.counts);
        }
        self.all.lock().unwrap_or_else(PoisonError::into_inner).merge(tally);
        self.working.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Waits until `due`; false where the program is to end before.
fn wait(due: Instant, interrupt: &Interrupt) -> bool {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        if interrupt.asked() {
            return false;
        }
        sleep(left.min(LOOK));
    }
}

/// One that sends requests, each when the one before is answered.
struct Worker<'a> {
    load: &'a Load<'a>,
    wire: Option<Wire>,
    request: Vec<u8>,
    body: Vec<u8>,
}

impl Worker<'_> {
    /// Does beforehand what would take time when the request is due: its text, and a connection.
    fn prepare(&mut self, question: Question) {
        self.load.questions.write(question, &mut self.request);
        if self.wire.as_ref().is_none_or(|wire| !wire.is_open()) {
            self.wire = Wire::open(self.load.addresses()).ok();
        }
    }

    /// Sends the request that is prepared; what became of it, and when.
    fn ask(&mut self, question: Question) -> (End, Instant) {
        let load = self.load;
        let patience = Patience { until: Instant::now() + load.timeout, interrupt: Some(load.interrupt()) };
        let (mut stream, mut again) = (Stream::default(), true);
        let head = loop {
            let wire = match self.wire.take().map_or_else(|| Wire::open(load.addresses()), Ok) {
                Ok(wire) => self.wire.insert(wire),
                Err(error) => {
                    sleep(AGAIN);
                    return (End::Lost(format!("no connection: {error}")), Instant::now());
                }
            };
            self.body.clear();
            let body = &mut self.body;
            let head = wire.ask(&self.request, &patience, &mut |part| {
                if load.stream {
                    stream.take(part, Instant::now());
                }
                body.extend_from_slice(part);
            });
            let stale = matches!(head, Err(Lost::Ended(_))) && wire.was_stale();
            if head.is_err() {
                self.wire = None;
            }
            if !(stale && again) {
                break head;
            }
            again = false;
        };
        let ended = Instant::now();
        (self.judged(question, head.map(|head| head.status), stream), ended)
    }

    fn judged(&self, question: Question, status: Result<u16, Lost>, stream: Stream) -> End {
        let load = self.load;
        match status {
            Err(Lost::Interrupted) => return End::Interrupted,
            Err(lost) => return End::Lost(lost.to_string()),
            Ok(200..=299) => {}
            Ok(429) => return End::Refused,
            Ok(status) => return End::Failed(status.to_string(), format!("{status}: {}", fault(&self.body))),
        }
        let agrees = |said: &[u8]| load.answers.is_none_or(|answers| answers.agrees(question, said));
        if load.stream {
            return match stream.error {
                Some(error) => End::Failed("stream".into(), error),
                None if !stream.is_done => End::Lost("a stream ended without its mark".into()),
                None => {
                    let (right, tokens) = (agrees(stream.text.as_bytes()), stream.tokens());
                    End::Answered { right, tokens, first: stream.first, between: stream.between }
                }
            };
        }
        let plain = |right: bool, tokens: u64| End::Answered { right, tokens, first: None, between: Vec::new() };
        match load.route {
            // Without a check neither is read: that would take time from other requests.
            Route::Embeddings | Route::Attention if load.answers.is_none() => plain(true, 0),
            Route::Attention => plain(checksum(&self.body).is_some_and(|sum| agrees(&sum.to_le_bytes())), 0),
            route => said(route, &self.body).map_or_else(|| plain(false, 0), |(text, tokens)| plain(agrees(text.as_bytes()), tokens)),
        }
    }
}
