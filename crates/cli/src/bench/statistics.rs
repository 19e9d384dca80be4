//! What a list of times says.

use serde::Serialize;

/// Times of one piece of work, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// How many there are.
    pub count: usize,
    /// The mean.
    pub mean: f64,
    /// The standard deviation of the sample; 0 for a single time.
    pub std: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// 95 of 100 are at most this.
    pub p95: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// Holds the median with a probability of 95 %, whatever the distribution: order statistics by the binomial
    /// distribution's normal approximation. From the least to the greatest where there are too few.
    pub median_interval95: [f64; 2],
}

impl Statistics {
    /// Statistics of `times`; nothing where there is none.
    pub fn of(times: &[f64]) -> Option<Self> {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        let count = sorted.len();
        let n = count as f64;
        let mean = sorted.iter().sum::<f64>() / n;
        let squares = sorted.iter().map(|time| (time - mean).powi(2)).sum::<f64>();
        // The median lies between these two places (counted from 1) with the probability asked for.
        let half_width = 1.96 * n.sqrt() / 2.0;
        let low = (n / 2.0 - half_width).floor().max(1.0) as usize;
        let high = ((n / 2.0 + 1.0 + half_width).ceil() as usize).min(count);
        Some(Self {
            count,
            mean,
            std: if count > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 },
            min: first,
            max: last,
            median: (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0,
            p95: percentile(&sorted, 0.95),
            p99: percentile(&sorted, 0.99),
            median_interval95: [sorted[low - 1], sorted[high - 1]],
        })
    }
}

/// The least of the sorted times that `share` of them do not pass (nearest rank).
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted[rank.min(sorted.len()) - 1]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn of_one_to_a_hundred() {
        let times: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let found = Statistics::of(&times).unwrap();
        assert_eq!((found.count, found.min, found.max, found.median, found.mean), (100, 1.0, 100.0, 50.5, 50.5));
        assert_eq!((found.p95, found.p99), (95.0, 99.0));
        assert!((found.std - 29.011).abs() < 1e-3);
        // Ranks 40 and 61, as tables of the binomial distribution give them.
        assert_eq!(found.median_interval95, [40.0, 61.0]);
    }

    #[test]
    fn few_times_have_a_wide_interval_and_none_have_no_statistics() {
        let found = Statistics::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((found.median, found.median_interval95), (2.0, [1.0, 3.0]));
        let one = Statistics::of(&[2.5]).unwrap();
        assert_eq!((one.std, one.median, one.p99, one.median_interval95), (0.0, 2.5, 2.5, [2.5, 2.5]));
        assert_eq!(Statistics::of(&[]), None);
    }
}
