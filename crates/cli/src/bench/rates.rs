//! Rates, and the ceilings that they are held against.

use serde::{Deserialize, Serialize};

use trifuse::ops::Cost;

/// The share of a ceiling above which the ceiling is not to be believed: more than those of two runs on a quiet machine differ by.
pub(super) const DISTURBED: f64 = 1.1;

/// The rates that a time is held against.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Bytes a second of a large copy, read and written both counted.
    pub copy_bytes_per_second: f64,
    /// Operations a second of the best of a few large square products by this crate; nothing where there is none.
    pub product_flops_per_second: Option<f64>,
    /// The product that was best.
    pub product: Option<String>,
    /// The most operations a second that the device can do in this type: SMs times clock times what one
    /// does in a clock. Nothing where that is not known.
    pub peak_flops_per_second: Option<f64>,
    /// The most bytes a second that its memory can move. Nothing where that is not known.
    pub peak_bytes_per_second: Option<f64>,
}

impl Ceilings {
    /// The least seconds that `cost` takes at the measured ceilings, and which of the two it meets.
    pub fn floor(&self, cost: Cost) -> (f64, Bound) {
        let memory = cost.bytes / self.copy_bytes_per_second;
        let compute = self.product_flops_per_second.map_or(0.0, |rate| cost.executed_flops / rate);
        if compute > memory { (compute, Bound::Compute) } else { (memory, Bound::Memory) }
    }

    /// Why a time cannot be true, where it cannot. Bytes count where they are too many to stay in a cache.
    pub fn impossible(&self, cost: Cost, seconds: f64, cached_bytes: u64) -> Option<String> {
        let faster = |rate: f64, peak: Option<f64>, what: &str| {
            let peak = peak.filter(|&peak| rate > peak)?;
            Some(format!("{rate:.3e} {what} a second, and the device can do {peak:.3e} at the most"))
        };
        let bytes = if cost.bytes > 4.0 * cached_bytes as f64 { cost.bytes } else { 0.0 };
        faster(cost.executed_flops / seconds, self.peak_flops_per_second, "operations")
            .or_else(|| faster(bytes / seconds, self.peak_bytes_per_second, "bytes"))
            .or_else(|| (seconds <= 0.0).then(|| "it took no time".into()))
    }
}

/// What limits a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// The bytes that it moves.
    Memory,
    /// The operations that it executes.
    Compute,
}

/// Amounts a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Operations of the blocks that are computed.
    pub executed_flops: f64,
    /// Operations that the result depends on.
    pub useful_flops: f64,
    /// Operations of the same shape with no mask and no sparsity: no rate of a device.
    pub dense_equivalent_flops: f64,
    /// Bytes, each operand moved once.
    pub bytes: f64,
    /// The least time at the measured ceilings over the time: 1 is at the ceiling.
    pub share_of_ceiling: f64,
    /// The ceiling that sets the least time.
    pub bound: Bound,
}

impl Rates {
    /// Rates of `cost` in `seconds`.
    pub fn of(cost: Cost, seconds: f64, ceilings: &Ceilings) -> Self {
        let (floor, bound) = ceilings.floor(cost);
        Self {
            executed_flops: cost.executed_flops / seconds,
            useful_flops: cost.useful_flops / seconds,
            dense_equivalent_flops: cost.dense_flops / seconds,
            bytes: cost.bytes / seconds,
            share_of_ceiling: floor / seconds,
            bound,
        }
    }
}
