//! A histogram whose counts can be read again, as those of the library of metrics cannot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Bounds of times, in seconds.
pub const SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Counts of values by bounds.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bounds: &'static [f64],
    /// The values up to each bound and above the one before, and those above the last.
    counts: Box<[AtomicU64]>,
    /// The bits of the sum.
    sum: AtomicU64,
}

impl Histogram {
    /// A histogram with nothing in it. The bounds rise.
    pub fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Inner { bounds, counts, sum: AtomicU64::new(0.0f64.to_bits()) }))
    }

    /// Counts a value.
    pub fn observe(&self, value: f64) {
        let Inner { bounds, counts, sum } = &*self.0;
        counts[bounds.partition_point(|bound| *bound < value)].fetch_add(1, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        // It never refuses.
        let _ = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// The values up to each bound and above the one before, and those above the last.
    pub fn counts(&self) -> Vec<u64> {
        self.0.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        let counts = self.counts();
        let bounds = self.0.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
        encoder.encode_histogram::<NoLabelSet>(f64::from_bits(self.0.sum.load(Ordering::Relaxed)), counts.iter().sum(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_under_the_first_bound_that_it_does_not_exceed() {
        let histogram = Histogram::new(&[1.0, 2.0]);
        [0.5, 1.0, 1.5, 2.0, 2.5, 9.0].iter().for_each(|value| histogram.observe(*value));
        assert_eq!(histogram.counts(), [2, 2, 2]);
        assert_eq!(f64::from_bits(histogram.0.sum.load(Ordering::Relaxed)), 16.5);
    }
}
