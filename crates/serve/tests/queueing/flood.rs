//! One tenant who asks for ten times its share, in simulated time: what that does to another.

use std::time::Duration;

use trifuse_serve::queueing::admit::{Admission, Limits};
use trifuse_serve::queueing::batch::{Grid, take};
use trifuse_serve::queueing::queues::{Queues, Tenant};

/// Rows that the device computes in a second, and what a batch costs besides.
const RATE: f64 = 200_000.0;
const LAUNCH: f64 = 0.0002;
/// The most tokens of a batch.
const BATCH: usize = 4096;
/// Tokens of a request, at most, and in the mean.
const MOST: f64 = 96.0;
const MEAN: f64 = 48.5;
const SECONDS: f64 = 30.0;
/// The longest wait at which a request is let in.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// The arrivals of a tenant who asks for this part of what the device does: when, and how many tokens.
fn arrivals(seed: u64, load: f64) -> Vec<(f64, usize)> {
    let mut state = seed;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut at = 0.0;
    let next = || {
        at -= (1.0 - draw()).ln() * MEAN / (RATE * load);
        (at < SECONDS).then(|| (at, 1 + (draw() * MOST) as usize))
    };
    std::iter::from_fn(next).collect()
}

/// Who is let in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// Everybody.
    Open,
    /// Who waits no longer than is allowed, by all that waits.
    All,
    /// The same, by what has its turn before.
    Ahead,
}

/// What became of both tenants' requests.
#[derive(Default)]
struct Told {
    /// How long the quiet tenant's requests waited until their batches began, sorted.
    waits: Vec<f64>,
    /// The longest batch.
    longest: f64,
    /// Requests that were not let in, by tenant.
    refused: [usize; 2],
}

impl Told {
    fn p99(&self) -> f64 {
        self.waits[self.waits.len() * 99 / 100]
    }
}

/// A quiet tenant, who asks for a fifth of what the device does, beside one who asks for `loud` of it.
fn simulate(loud: f64, gate: Gate) -> Told {
    let of = |number: u32, load: f64| arrivals(77 + u64::from(number), load).into_iter().map(move |(at, tokens)| (at, tokens, number));
    let mut all: Vec<(f64, usize, u32)> = of(0, 0.2).chain(of(1, loud)).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (grid, mut queues) = (Grid::new(BATCH, MOST as usize), Queues::default());
    let mut admission = Admission::new(Limits { max_wait: MAX_WAIT, max_tokens: 1 << 30 });
    let (mut told, mut free, mut next) = (Told::default(), 0.0f64, 0);
    while free < SECONDS {
        while let Some((at, tokens, number)) = all.get(next).copied().filter(|(at, ..)| *at <= free || queues.is_empty()) {
            let (tenant, cost) = (Tenant { number, share: 1 }, tokens as u64);
            let ahead = admission.tokens().saturating_sub(queues.cost()) + queues.ahead(tenant);
            let enters = match gate {
                Gate::Open => true,
                Gate::All => admission.admit(cost, None).is_ok(),
                Gate::Ahead => admission.admit_behind(ahead, cost, None).is_ok(),
            };
            if enters {
                queues.push(tenant, 0, cost, (at, number));
            } else {
                told.refused[number as usize] += 1;
            }
            free = free.max(at);
            next += 1;
        }
        let batch = take(&mut queues, &grid, &mut Some);
        let Some(shape) = batch.shape else { break };
        told.waits.extend(batch.items.iter().filter(|(_, number)| *number == 0).map(|(at, _)| free - at));
        let took = LAUNCH + shape.rows as f64 / RATE;
        admission.leave(batch.tokens as u64);
        admission.measured(shape.rows as u64, Duration::from_secs_f64(took));
        told.longest = told.longest.max(took);
        free += took;
    }
    told.waits.sort_by(f64::total_cmp);
    told
}

/// Holds the quiet tenant's waits beside a flood against those beside a fair neighbour.
fn costs_one_batch_at_most(flooded: &Told) {
    // Two tenants have half of the device each.
    let fair = simulate(0.5, Gate::Open);
    let (before, after, longest) = (fair.p99() * 1e3, flooded.p99() * 1e3, flooded.longest * 1e3);
    println!("waits of {} requests at p99: {before:.1} ms, and {after:.1} ms beside a flood; the longest batch {longest:.1} ms", fair.waits.len());
    assert!(fair.waits.len() > 20_000 && flooded.waits.len().abs_diff(fair.waits.len()) < 200, "{} and {}", fair.waits.len(), flooded.waits.len());
    assert!(after - before <= longest, "{} ms more, where a batch takes {longest} ms", after - before);
}

#[test]
fn a_tenant_who_asks_for_ten_times_its_share_costs_another_one_batch_at_most() {
    costs_one_batch_at_most(&simulate(5.0, Gate::Open));
}

#[test]
fn a_tenant_within_its_share_is_not_refused_for_what_another_asks() {
    let told = simulate(5.0, Gate::Ahead);
    costs_one_batch_at_most(&told);
    assert!(told.refused[0] == 0 && told.refused[1] > 100_000, "{:?}", told.refused);
    // By all that waits, whoever has it there, the quiet one would be refused as the loud one is.
    assert!(simulate(5.0, Gate::All).refused[0] > 1000);
}

#[test]
fn what_waits_is_shared_by_the_devices_that_work() {
    let mut admission = Admission::new(Limits::default());
    admission.measured(1000, Duration::from_secs(1));
    admission.admit(2000, None).unwrap();
    assert_eq!(admission.wait(), Duration::from_secs(2));
    admission.share_among(4);
    assert_eq!(admission.wait(), Duration::from_millis(500));
    admission.share_among(1);
    assert_eq!(admission.wait(), Duration::from_secs(2));
}
