//! Who is let in: a request whose estimated wait is too long is refused at once, rather than late.

use std::time::Duration;

/// The bounds of what waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The longest estimated wait at which a request is let in.
    pub max_wait: Duration,
    /// The most tokens that wait or run, whatever the estimate says.
    pub max_tokens: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_wait: Duration::from_secs(2), max_tokens: 1 << 20 }
    }
}

/// Why a request is not let in: it may come again after `retry_after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The estimated wait of what is there now.
    pub retry_after: Duration,
}

/// What a batch weighs in the measured rate: the last 64 batches count most.
const WEIGHT: f64 = 2.0 / 65.0;

/// The tokens that wait or run, and how fast they go.
#[derive(Clone, Debug)]
pub struct Admission {
    limits: Limits,
    /// Tokens let in and not yet done.
    tokens: u64,
    /// Means of the tokens and of the seconds of a batch; no batch was measured where the second is 0.
    means: [f64; 2],
    /// Devices that take batches.
    devices: usize,
}

impl Admission {
    /// An empty queue.
    pub fn new(limits: Limits) -> Self {
        Self { limits, tokens: 0, means: [0.0; 2], devices: 1 }
    }

    /// The tokens that wait or run.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Lets so many devices take batches at once, 1 at first.
    pub fn share_among(&mut self, devices: usize) {
        self.devices = devices.max(1);
    }

    /// The measured rate of all devices; `None` before the first batch.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let [tokens, seconds] = self.means;
        (seconds > 0.0).then(|| tokens / seconds * self.devices as f64)
    }

    /// How long what is there now will take; nothing before the first batch.
    pub fn wait(&self) -> Duration {
        self.wait_behind(self.tokens)
    }

    /// How long so many tokens will take.
    fn wait_behind(&self, ahead: u64) -> Duration {
        let seconds = self.tokens_per_second().map_or(0.0, |rate| ahead as f64 / rate.max(1e-9));
        Duration::try_from_secs_f64(seconds.min(1e9)).unwrap_or(Duration::MAX)
    }

    /// Lets in a request of that many tokens, which must be begun within `left`. Where nothing is there it is always let in.
    ///
    /// # Errors
    /// The wait would be too long, or there would be too much.
    pub fn admit(&mut self, tokens: u64, left: Option<Duration>) -> Result<(), Refused> {
        self.admit_behind(self.tokens, tokens, left)
    }

    /// Lets in a request before which only so many of the tokens have their turn, by the shares of those who ask: what a tenant asks for
    /// beyond its share is no reason to refuse another.
    ///
    /// # Errors
    /// The wait would be too long, or there would be too much.
    pub fn admit_behind(&mut self, ahead: u64, tokens: u64, left: Option<Duration>) -> Result<(), Refused> {
        let wait = self.wait_behind(ahead.min(self.tokens));
        let longest = left.map_or(self.limits.max_wait, |left| left.min(self.limits.max_wait));
        if self.tokens > 0 && (wait > longest || self.tokens.saturating_add(tokens) > self.limits.max_tokens) {
            return Err(Refused { retry_after: wait });
        }
        self.tokens = self.tokens.saturating_add(tokens);
        Ok(())
    }

    /// Takes off tokens that were let in: they are done, or nobody waits for them.
    pub fn leave(&mut self, tokens: u64) {
        self.tokens = self.tokens.saturating_sub(tokens);
    }

    /// Learns from a batch. `tokens` are those that the device computed, with the padding: a small batch then does not look like a slow device.
    pub fn measured(&mut self, tokens: u64, took: Duration) {
        let new = [tokens as f64, took.as_secs_f64().max(1e-9)];
        let weight = if self.tokens_per_second().is_none() { 1.0 } else { WEIGHT };
        for (mean, new) in self.means.iter_mut().zip(new) {
            *mean += weight * (new - *mean);
        }
    }
}
