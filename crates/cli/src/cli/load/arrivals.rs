//! When requests come: by a Poisson process of a seed, or as soon as the one before is answered.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp};

use super::questions::Question;

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// So many a second, however long answers take.
    Rate(f64),
    /// So many at once.
    Concurrency(u32),
}

/// A request to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When it is due.
    pub due: Instant,
    pub question: Question,
}

/// Draws what a request asks.
pub type Draw<'a> = dyn Fn(&mut ChaCha8Rng) -> Question + Sync + 'a;

/// The arrivals of one run.
pub struct Arrivals<'a> {
    draw: &'a Draw<'a>,
    start: Instant,
    /// Behind this time nothing is due.
    end: Duration,
    /// Behind this time what is due is not sent any more.
    late: Duration,
    /// The gaps between arrivals, where they come by a rate.
    gaps: Option<Exp<f64>>,
    drawn: Mutex<Drawn>,
}

struct Drawn {
    random: ChaCha8Rng,
    /// When the next is due, in seconds from the start.
    next: f64,
    unsent: u64,
}

impl<'a> Arrivals<'a> {
    /// Arrivals from `start` on for the time `end`; those that could not be sent within `patience` behind it are given up.
    pub fn new(draw: &'a Draw<'a>, pace: Pace, seed: u64, start: Instant, end: Duration, patience: Duration) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let gaps = match pace {
            Pace::Rate(rate) => Exp::new(rate).ok(),
            Pace::Concurrency(_) => None,
        };
        let next = gaps.map_or(0.0, |gaps| gaps.sample(&mut random));
        Self { draw, start, end, late: end.saturating_add(patience), gaps, drawn: Mutex::new(Drawn { random, next, unsent: 0 }) }
    }

    /// The next; `None` behind the end. In a closed loop it is drawn by `own` random numbers, so that no worker waits for another.
    pub fn next(&self, own: &mut ChaCha8Rng) -> Option<Arrival> {
        let Some(gaps) = self.gaps else {
            // Workers start before the first may ask.
            let due = Instant::now().max(self.start);
            return (due < self.start + self.end).then(|| Arrival { due, question: (self.draw)(own) });
        };
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        let Drawn { random, next, unsent } = &mut *drawn;
        loop {
            let now = self.start.elapsed();
            let due = Duration::try_from_secs_f64(*next).unwrap_or(Duration::MAX);
            if due >= self.end {
                return None;
            }
            let question = (self.draw)(random);
            *next += gaps.sample(random);
            if now < self.late {
                return Some(Arrival { due: self.start + due, question });
            }
            *unsent += 1;
        }
    }

    /// How many were due and never sent.
    pub fn unsent(&self) -> u64 {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner).unsent
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rand::Rng;

    use super::*;

    fn question(random: &mut ChaCha8Rng) -> Question {
        Question { text: random.random_range(0..9), model: 0 }
    }

    /// Numbers that a rate does not use.
    fn own() -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(0)
    }

    fn all(seed: u64) -> Vec<(Duration, Question)> {
        let start = Instant::now() + Duration::from_secs(60);
        let arrivals = Arrivals::new(&question, Pace::Rate(1000.0), seed, start, Duration::from_secs(20), Duration::ZERO);
        std::iter::from_fn(|| arrivals.next(&mut own())).map(|arrival| (arrival.due - start, arrival.question)).collect()
    }

    #[test]
    fn arrivals_of_a_rate_are_those_of_their_seed_and_a_poisson_process() {
        let one = all(1);
        assert_eq!(one, all(1));
        assert_ne!(one, all(2));
        // Twenty thousand are expected: five standard deviations are 707.
        assert!(one.len().abs_diff(20_000) < 707, "{}", one.len());
        let gaps: Vec<f64> = one.windows(2).map(|pair| (pair[1].0 - pair[0].0).as_secs_f64() * 1000.0).collect();
        let longer = |than: f64| gaps.iter().filter(|gap| **gap > than).count() as f64 / gaps.len() as f64;
        for than in [0.5, 1.0, 2.0, 3.0] {
            assert!((longer(than) - (-than).exp()).abs() < 0.02, "{} of the gaps are longer than {than} means", longer(than));
        }
    }

    #[test]
    fn what_is_due_behind_all_patience_is_counted_and_not_sent() {
        let start = Instant::now().checked_sub(Duration::from_secs(30)).unwrap();
        let arrivals = |patience| Arrivals::new(&question, Pace::Rate(100.0), 3, start, Duration::from_secs(20), Duration::from_secs(patience));
        let (given_up, sent) = (arrivals(5), arrivals(3600));
        assert!(given_up.next(&mut own()).is_none());
        let count = std::iter::from_fn(|| sent.next(&mut own())).count() as u64;
        assert_eq!((given_up.unsent(), sent.unsent()), (count, 0));
        let closed = Arrivals::new(&question, Pace::Concurrency(2), 3, Instant::now(), Duration::from_secs(20), Duration::ZERO);
        let first = closed.next(&mut own()).unwrap();
        assert!(first.due <= Instant::now() && closed.next(&mut own()).is_some());
        let ahead = Instant::now() + Duration::from_secs(60);
        let waiting = Arrivals::new(&question, Pace::Concurrency(2), 3, ahead, Duration::from_secs(20), Duration::ZERO);
        assert_eq!(waiting.next(&mut own()).unwrap().due, ahead, "nothing is asked before the start");
    }
}
