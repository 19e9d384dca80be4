//! A million requests in simulated time: bursts of twice what the device does, deadlines, callers who give up, and a tenant who asks for most of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use trifuse_serve::queueing::admit::{Admission, Limits};
use trifuse_serve::queueing::batch::{Grid, take};
use trifuse_serve::queueing::clock::{Clock, Turned};
use trifuse_serve::queueing::gather::{Part, parts};
use trifuse_serve::queueing::ledger::{Ledger, Outcome};
use trifuse_serve::queueing::queues::{Queues, Tenant};
use trifuse_serve::queueing::ticket::{Failure, Waiter, accept};

const REQUESTS: usize = 1_000_000;
/// Rows that the device computes in a second, and what a batch costs besides.
const RATE: f64 = 200_000.0;
const LAUNCH: f64 = 0.0002;
/// The mean of a request's tokens.
const MEAN: f64 = 48.5;

/// Numbers from 0 to 1.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

struct Job {
    number: usize,
    tokens: usize,
    due: f64,
    deadline: Option<f64>,
    part: Part<usize>,
}

/// The moment from which a request's caller does not wait any more.
struct Patience {
    until: f64,
    waiter: Option<Waiter>,
}

#[derive(Default)]
struct Told {
    refused: usize,
    /// Requests answered, and the longest that one of them waited until its batch began.
    finished: usize,
    longest: f64,
}

#[test]
fn each_of_a_million_requests_ends_once() {
    let began = std::time::Instant::now();
    let (ledger, clock, grid) = (Arc::new(Ledger::default()), Turned::default(), Grid::new(4096, 96));
    let answers: Arc<Vec<AtomicU8>> = Arc::new(std::iter::repeat_with(AtomicU8::default).take(REQUESTS).collect());
    let mut admission = Admission::new(Limits { max_wait: Duration::from_secs(1), max_tokens: 1 << 30 });
    let (mut queues, mut draw, mut told) = (Queues::default(), Draw(0x5EED), Told::default());
    let mut impatient: Vec<Patience> = Vec::new();
    let mut waiters: Vec<Option<Waiter>> = std::iter::repeat_with(|| None).take(REQUESTS).collect();
    let (mut next, mut arrives, mut free) = (0, 0.0, 0.0);
    while next < REQUESTS || !queues.is_empty() {
        // All that comes until the device is free, or the next where nothing waits.
        while next < REQUESTS && (arrives <= free || queues.is_empty()) {
            let now = f64::max(arrives, 0.0);
            turn(&clock, now);
            let tokens = 1 + (draw.next() * 96.0) as usize;
            let loud = draw.next() < 0.9;
            let left = (draw.next() < 0.2).then(|| draw.next() * 0.6);
            let tenant = Tenant { number: u32::from(loud), share: 1 };
            if admission.admit(tokens as u64, left.map(Duration::from_secs_f64)).is_ok() {
                let into = Arc::clone(&answers);
                let (ticket, waiter) = accept(&ledger, move |_| {
                    into[next].fetch_add(1, Ordering::Relaxed);
                });
                let part = parts(ticket, 1).pop().unwrap();
                if draw.next() < 0.05 {
                    impatient.push(Patience { until: now + draw.next() * 0.5, waiter: Some(waiter) });
                } else {
                    waiters[next] = Some(waiter);
                }
                let adapter = (draw.next() * 8.0) as u64;
                queues.push(tenant, adapter, tokens as u64, Job { number: next, tokens, due: now, deadline: left.map(|left| now + left), part });
            } else {
                told.refused += 1;
            }
            // Seven tenths of what the device does, and for a second in every five twice of it.
            let load = if now % 5.0 < 1.0 { 2.0 } else { 0.7 };
            arrives = now - (1.0 - draw.next()).ln() * MEAN / (RATE * load);
            next += 1;
            free = f64::max(free, now);
        }
        turn(&clock, free);
        impatient.iter_mut().filter(|patience| patience.until <= free).for_each(|patience| drop(patience.waiter.take()));
        impatient.retain(|patience| patience.waiter.is_some());
        let batch = take(&mut queues, &grid, &mut |job: Job| {
            if job.part.is_cancelled() {
                job.part.fail(Failure::Forgotten);
                return None;
            }
            match job.deadline {
                Some(deadline) if deadline <= free => {
                    job.part.fail(Failure::Expired);
                    None
                }
                _ => Some(job),
            }
        });
        admission.leave(batch.spared as u64);
        let Some(shape) = batch.shape else { continue };
        let took = LAUNCH + shape.rows as f64 / RATE;
        for job in batch.items {
            assert!(job.deadline.is_none_or(|deadline| deadline > free), "it reached the device behind its deadline");
            let wait = free - job.due;
            told.longest = told.longest.max(wait);
            told.finished += 1;
            admission.leave(job.tokens as u64);
            job.part.finish(job.number);
            drop(waiters[job.number].take());
        }
        admission.measured(shape.rows as u64, Duration::from_secs_f64(took));
        free += took;
    }
    let ended: u64 = Outcome::ALL.iter().map(|outcome| ledger.ended(*outcome)).sum();
    let of = |outcome: Outcome| ledger.ended(outcome) as usize;
    println!(
        "{} refused, {} finished, {} cancelled, {} expired; the longest wait {:.3} s; {:.1} s simulated in {:.1} s",
        told.refused,
        of(Outcome::Finished),
        of(Outcome::Cancelled),
        of(Outcome::Expired),
        told.longest,
        free,
        began.elapsed().as_secs_f64()
    );
    assert_eq!((ledger.accepted(), ledger.open(), admission.tokens()), (ended, 0, 0));
    assert_eq!(ledger.accepted() as usize + told.refused, REQUESTS);
    assert_eq!(answers.iter().filter(|answer| answer.load(Ordering::Relaxed) == 1).count(), ended as usize, "one answer each");
    assert!(answers.iter().all(|answer| answer.load(Ordering::Relaxed) <= 1));
    assert_eq!(of(Outcome::Failed), 0);
    assert!(of(Outcome::Cancelled) > 1000 && of(Outcome::Expired) > 0 && told.refused > 10_000, "every way to end is taken");
    // The device is never idle in a burst: it does nine tenths of what it can, but for the quiet times.
    assert!(told.finished as f64 * MEAN / RATE > 0.6 * free, "{} answered in {free} s", told.finished);
    // The estimate is of the whole queue. Fair turns let a tenant who asks for much wait longer, by the share of the other.
    assert!(told.longest < 2.2, "{}", told.longest);
    assert!(clock.now() >= Duration::from_secs_f64(free) - Duration::from_secs(1));
}

/// Turns the clock on to that second.
fn turn(clock: &Turned, to: f64) {
    clock.turn(Duration::from_secs_f64(to).saturating_sub(clock.now()));
}
