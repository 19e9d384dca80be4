//! How much one key may ask for a second: buckets that fill with time, from which requests take.

use std::time::Duration;

/// What a key may ask for a second; `None` is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Requests.
    pub requests: Option<u32>,
    /// Tokens, of prompts and of answers.
    pub tokens: Option<u32>,
}

impl Rates {
    /// Whether there is no bound.
    pub fn are_none(self) -> bool {
        self == Self::default()
    }
}

/// A bucket that holds as much as comes in a second, and is full at first.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    rate: f64,
    level: f64,
    at: Duration,
}

impl Bucket {
    /// A full bucket, into which `rate` comes a second.
    pub fn full(rate: u32, now: Duration) -> Self {
        let rate = f64::from(rate.max(1));
        Self { rate, level: rate, at: now }
    }

    fn fill(&mut self, now: Duration) {
        let since = now.saturating_sub(self.at).as_secs_f64();
        self.level = (self.level + since * self.rate).min(self.rate);
        self.at = self.at.max(now);
    }

    /// Takes `amount`. Where it is more than the bucket holds a full one is enough, and those who come next wait until that is made up for: what is asked
    /// at once may be large, and the mean over time may not.
    ///
    /// # Errors
    /// There is too little; after what time there is enough. Nothing is taken.
    pub fn take(&mut self, amount: u64, now: Duration) -> Result<(), Duration> {
        self.fill(now);
        let short = (amount as f64).min(self.rate) - self.level;
        if short > 0.0 {
            return Err(Duration::from_secs_f64(short / self.rate));
        }
        self.level -= amount as f64;
        Ok(())
    }

    /// Gives back what was taken and is not used.
    pub fn give(&mut self, amount: u64, now: Duration) {
        self.fill(now);
        self.level = (self.level + amount as f64).min(self.rate);
    }

    /// Takes `amount` that was used already, whether it is there or not.
    pub fn spend(&mut self, amount: u64, now: Duration) {
        self.fill(now);
        self.level -= amount as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_any_time_no_more_is_taken_than_comes_and_a_second_of_it() {
        let (mut bucket, mut taken) = (Bucket::full(100, Duration::ZERO), 0);
        for step in 0..10_000u64 {
            let (now, amount) = (Duration::from_millis(step), 1 + step * 7919 % 37);
            if bucket.take(amount, now).is_ok() {
                taken += amount;
            }
            assert!(taken <= 100 + step / 10 + 1, "{taken} in {now:?}");
        }
        assert!(taken >= 1000, "{taken}");
    }

    #[test]
    fn who_is_told_to_wait_finds_enough_then_and_not_before() {
        let mut bucket = Bucket::full(10, Duration::ZERO);
        assert_eq!(bucket.take(4, Duration::ZERO), Ok(()));
        let wait = Duration::from_millis(200);
        assert_eq!(bucket.take(8, Duration::ZERO), Err(wait));
        assert!(bucket.take(8, wait - Duration::from_millis(1)).is_err() && bucket.take(8, wait).is_ok());
    }

    #[test]
    fn more_than_a_bucket_holds_is_let_in_when_it_is_full_and_made_up_for() {
        let mut bucket = Bucket::full(10, Duration::ZERO);
        assert_eq!(bucket.take(30, Duration::ZERO), Ok(()));
        assert_eq!(bucket.take(1, Duration::ZERO), Err(Duration::from_millis(2100)));
        bucket.spend(9, Duration::from_secs(2));
        assert_eq!(bucket.take(10, Duration::from_secs(2)), Err(Duration::from_millis(1900)));
        bucket.give(10, Duration::from_secs(2));
        assert_eq!(bucket.take(10, Duration::from_secs(2)), Err(Duration::from_millis(900)));
        // A clock that seems to go back fills nothing.
        assert!(bucket.take(10, Duration::from_secs(1)).is_err());
    }
}
