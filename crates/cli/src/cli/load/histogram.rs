//! Times in a histogram whose steps grow with them, so that each is told to within a known share of itself.

use std::time::Duration;

/// Each power of two has 2^BITS steps: no time is told more than 1/128 longer than it was, and none shorter.
const BITS: u32 = 7;

/// How often each time came.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: Duration,
    most: Duration,
}

/// The step that holds so many nanoseconds. Steps of the first two powers are one nanosecond wide.
fn step(nanos: u64) -> usize {
    let shift = (63 - (nanos | 1).leading_zeros()).saturating_sub(BITS);
    ((u64::from(shift) << BITS) + (nanos >> shift)) as usize
}

/// The longest time in a step.
fn end(step: usize) -> Duration {
    let shift = (step >> BITS).saturating_sub(1) as u32;
    let first = step as u64 - (u64::from(shift) << BITS);
    Duration::from_nanos((first << shift) + ((1 << shift) - 1))
}

impl Histogram {
    /// Counts a time.
    pub fn add(&mut self, time: Duration) {
        let at = step(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(time);
        self.most = self.most.max(time);
    }

    /// Counts what another has counted.
    pub fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, other)| *own += other);
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.most = self.most.max(other.most);
    }

    /// How many times it holds.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest time, exactly.
    pub fn most(&self) -> Duration {
        self.most
    }

    /// The mean, exactly; zero where there is nothing.
    pub fn mean(&self) -> Duration {
        Duration::try_from_secs_f64(self.sum.as_secs_f64() / self.count.max(1) as f64).unwrap_or(Duration::MAX)
    }

    /// The least time that this share of all does not exceed.
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = ((share * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        at.map_or(Duration::ZERO, |at| end(at).min(self.most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_each_other_and_hold_what_they_say() {
        let mut last = 0;
        for power in 0..64 {
            for part in 0..300u64 {
                let nanos = (1u64 << power).saturating_add(part * ((1u64 << power) / 300));
                let at = step(nanos);
                assert!(at >= last, "{nanos}");
                last = at;
                let told = end(at).as_nanos() as u64;
                assert!(told >= nanos && told - nanos <= nanos / 128, "{nanos} is told as {told}");
            }
        }
        assert_eq!((step(0), step(255), step(256), step(257), step(258)), (0, 255, 256, 256, 257));
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_times() {
        let mut state = 7u64;
        let mut times: Vec<Duration> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            Duration::from_nanos(1 << (state >> 59) | (state >> 40))
        })
        .take(9_999)
        .collect();
        let (mut one, mut other) = (Histogram::default(), Histogram::default());
        times.iter().enumerate().for_each(|(at, time)| if at % 3 == 0 { one.add(*time) } else { other.add(*time) });
        one.merge(&other);
        times.sort_unstable();
        for share in [0.0, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let exact = times[((share * 9_999.0f64).ceil() as usize).clamp(1, 9_999) - 1];
            let told = one.quantile(share);
            assert!(told >= exact && told - exact <= exact / 128, "{share}: {told:?} for {exact:?}");
        }
        assert_eq!((one.count(), one.most(), one.quantile(1.0)), (9_999, times[9_998], times[9_998]));
        let sum: Duration = times.iter().sum();
        assert!(one.mean().abs_diff(sum / 9_999) < Duration::from_nanos(100));
        assert_eq!((Histogram::default().quantile(0.5), Histogram::default().mean()), (Duration::ZERO, Duration::ZERO));
    }
}
