//! What keys have asked for of what they may ask a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::fault::Fault;
use crate::queueing::clock::Clock;
use crate::queueing::queues::Tenant;
use crate::queueing::rate::{Bucket, Rates};

/// What one key has asked for.
pub struct Meter {
    rates: Rates,
    clock: Arc<dyn Clock>,
    /// Of requests and of tokens, where they are bounded.
    buckets: [Option<Mutex<Bucket>>; 2],
}

impl Meter {
    fn new(rates: Rates, clock: Arc<dyn Clock>) -> Self {
        let now = clock.now();
        let bucket = |rate: Option<u32>| rate.map(|rate| Mutex::new(Bucket::full(rate, now)));
        Self { rates, buckets: [bucket(rates.requests), bucket(rates.tokens)], clock }
    }

    fn of<T>(&self, at: usize, deed: impl FnOnce(&mut Bucket, Duration) -> T) -> Option<T> {
        let bucket = self.buckets[at].as_ref()?;
        Some(deed(&mut bucket.lock().unwrap_or_else(PoisonError::into_inner), self.clock.now()))
    }

    /// Counts a request.
    ///
    /// # Errors
    /// The key has had as many as it may.
    pub fn request(&self) -> Result<(), Fault> {
        let taken = self.of(0, |bucket, now| bucket.take(1, now)).unwrap_or(Ok(()));
        taken.map_err(|wait| Fault::rate(self.rates.requests.unwrap_or(0), "requests", wait))
    }

    /// Counts tokens of a prompt.
    ///
    /// # Errors
    /// The key has had as many as it may.
    pub fn prompt(&self, tokens: usize) -> Result<(), Fault> {
        let taken = self.of(1, |bucket, now| bucket.take(tokens as u64, now)).unwrap_or(Ok(()));
        taken.map_err(|wait| Fault::rate(self.rates.tokens.unwrap_or(0), "tokens", wait))
    }

    /// Forgets tokens of a prompt that was not let in.
    pub fn back(&self, tokens: usize) {
        self.of(1, |bucket, now| bucket.give(tokens as u64, now));
    }

    /// Counts tokens that were written.
    pub fn wrote(&self, tokens: usize) {
        self.of(1, |bucket, now| bucket.spend(tokens as u64, now));
    }
}

/// The meters of keys that are bounded, by the numbers of their tenants.
#[derive(Default)]
pub struct Meters(Mutex<HashMap<u32, Arc<Meter>>>);

impl Meters {
    /// What a tenant has asked for, where `rates` bound its key.
    pub fn of(&self, tenant: Tenant, rates: Rates, clock: &Arc<dyn Clock>) -> Option<Arc<Meter>> {
        if rates.are_none() {
            return None;
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Other bounds, from a file of keys that was read again, begin anew.
        let known = all.get(&tenant.number).filter(|meter| meter.rates == rates).cloned();
        Some(known.unwrap_or_else(|| {
            let meter = Arc::new(Meter::new(rates, Arc::clone(clock)));
            all.insert(tenant.number, Arc::clone(&meter));
            meter
        }))
    }
}
