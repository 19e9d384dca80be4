//! How often each model and adapter was asked for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

/// The most names that are counted apart, as adapters may come and go for as long as a server runs.
const MOST: usize = 1024;
/// Where all others are counted. No model has this name.
const OTHERS: &str = "";

/// Requests by the model or adapter that they name.
#[derive(Clone, Debug, Default)]
pub struct Models(Arc<Mutex<BTreeMap<String, u64>>>);

impl Models {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request.
    pub fn asked(&self, name: &str) {
        let mut counts = self.lock();
        let name = if counts.contains_key(name) || counts.len() < MOST { name } else { OTHERS };
        match counts.get_mut(name) {
            Some(count) => *count += 1,
            None => drop(counts.insert(name.to_owned(), 1)),
        }
    }

    /// How many there were.
    pub fn count(&self, name: &str) -> u64 {
        self.lock().get(name).copied().unwrap_or(0)
    }
}

impl Collector for Models {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let help = "Requests that were let in, by the model or adapter that they name";
        let mut metric = encoder.encode_descriptor("trifuse_model_requests", help, None, MetricType::Counter)?;
        for (name, count) in self.lock().iter() {
            ConstCounter::new(*count).encode(metric.encode_family(&[("model", name.as_str())])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_counted_apart_as_long_as_there_are_few() {
        let models = Models::default();
        (0..MOST + 5).for_each(|at| models.asked(&format!("m{at}")));
        models.asked("m0");
        assert_eq!((models.count("m0"), models.count("m1"), models.count("never")), (2, 1, 0));
        assert_eq!((models.count(OTHERS), models.lock().len()), (5, MOST + 1));
    }
}
