//! A model of the time of `attention` of few queries, in microseconds. Keys are split with TMA (`sm90_decode`) or with cp.async
//! (`sm80_decode`), or whole sequences are taken in tiles of rows (`sm80`).
//!
//! The constants are fitted to the times of 130 random shapes on an H100 (`lab/choice.md`), with a median error of a tenth. The model does
//! not know how launches in a row overlap.

use crate::backends::cuda::attention::sm80::tile::{self as sm80, KEYS, ROWS};
use crate::backends::cuda::attention::sm90::decode_tile::Config;
use crate::ops::Attention;
use crate::ops::attention::Form;

/// SMs of the GPU for which the constants hold.
const FITTED_UNITS: f64 = 132.0;
/// The mean length of a sequence as a share of the longest, where only the device knows lengths.
const MEAN_LENGTH: f64 = 0.6;
/// Elements of a head for which the slopes below are given.
const HEAD: f64 = 64.0;
/// Rows of a tile of a split.
const SPLIT_ROWS: u64 = 16;
/// The most tiles of rows for which keys that were read for one are no longer in L2 for the others.
const MOST_READS: u64 = 8;

/// A shape in the numbers that the formulas take.
struct Sizes {
    units: f64,
    /// Elements of a head, in units of [`HEAD`].
    head: f64,
    /// Sequences, times the groups of heads that share keys.
    items: f64,
    longest: f64,
    mean: f64,
    paged: bool,
    /// Megabytes of keys and values.
    megabytes: f64,
}

impl Sizes {
    fn of(op: &Attention, units: u32) -> Self {
        let share = match op.form {
            Form::Dense if op.causal && op.q_len > ROWS => 1.0 - 0.5 * op.q_len as f64 / op.kv_len.max(1) as f64,
            Form::Dense => 1.0,
            _ => MEAN_LENGTH,
        };
        let seen = op.window.map_or(op.kv_len, |window| op.kv_len.min(window.saturating_add(op.q_len)));
        let (items, longest) = ((op.batch * op.kv_heads) as f64, seen as f64);
        let mean = longest * share;
        Self {
            units: f64::from(units.max(1)),
            head: op.head_dim as f64 / HEAD,
            items,
            longest,
            mean,
            paged: matches!(op.form, Form::Paged(_)),
            megabytes: items * mean * op.head_dim as f64 * 4.0 / 1e6,
        }
    }

    /// Microseconds to read all keys and values `times` times, at `rate` megabytes a microsecond.
    fn reading(&self, times: f64, rate: f64) -> f64 {
        self.megabytes * times / (rate * self.units / FITTED_UNITS)
    }

    /// K-blocks of `keys` keys in all sequences. None is shorter than one.
    fn steps(&self, keys: u64) -> f64 {
        self.items * (self.mean.max(1.0) / keys as f64).ceil()
    }
}

/// The time of two pieces of work of which the longer hides most of the shorter.
fn overlapped(one: f64, other: f64) -> f64 {
    one.hypot(other)
}

/// Microseconds of whole sequences in tiles of 64 rows: the longest one's k-blocks one after another, or the throughput of all.
pub(super) fn whole_sequences(op: &Attention, units: u32) -> f64 {
    let sizes = Sizes::of(op, units);
    let tiles = sm80::work(op, ROWS) as f64 / sizes.units;
    let steps = |keys: f64, least: f64| (keys / KEYS as f64).max(least);
    let latency = (0.907 + 0.288 * sizes.head) * steps(sizes.longest, 0.3) * if sizes.paged { 1.749 } else { 1.0 };
    let throughput = tiles * ((0.353 + 0.790 * sizes.head) * steps(sizes.mean, 0.5) + 0.766 * (1.0 + 0.561 * sizes.head));
    7.0 + 1.006 * sizes.head + (latency.powi(3) + throughput.powi(3)).cbrt()
}

/// Microseconds of split-KV with cp.async. K-blocks are shared evenly, and parts are joined where there is more than one item.
pub(super) fn split(op: &Attention, units: u32) -> f64 {
    let sizes = Sizes::of(op, units);
    let tiles = sm80::key_rows(op).div_ceil(SPLIT_ROWS).max(1);
    let (blocks, waves) = ((u64::from(units) / tiles).max(1) as f64, (tiles as f64 / sizes.units).max(1.0));
    let keys = 8 * if sm80::held(op.head_dim) <= 64 { 32 } else { 16 };
    let compute = (1.151 + 0.531 * sizes.head) * sizes.steps(keys) / blocks * waves;
    let join = if sizes.items > 1.0 { 6.534 } else { 0.0 };
    let paged = if sizes.paged { 2.628 } else { 0.0 };
    5.697 + 1.818 * sizes.head + join + paged + overlapped(compute, sizes.reading(tiles.min(MOST_READS) as f64, 3.726)) + sizes.items / blocks * waves
}

/// Costs of a configuration of `sm90_decode`: the start; 64 elements of a head; the join; each item of an SM; each item joined there; each
/// part of an item beyond four; and megabytes read in a microsecond.
struct Boxes {
    start: f64,
    head: f64,
    join: f64,
    item: f64,
    joined: f64,
    part: f64,
    rate: f64,
    paged: f64,
}

const FOUR_WARPS: Boxes = Boxes { start: 2.966, head: 6.138, join: 3.267, item: 1.134, joined: 1.072, part: 0.213, rate: 2.583, paged: 1.682 };
const EIGHT_WARPS: Boxes = Boxes { start: 3.670, head: 4.240, join: 3.091, item: 1.631, joined: 1.624, part: 0.105, rate: 2.677, paged: 1.746 };
const WHOLE_ITEMS: Boxes = Boxes { start: 4.277, head: 2.330, join: 0.0, item: 3.685, joined: 0.0, part: 0.0, rate: 3.065, paged: 2.0 };
/// Microseconds of a k-block of an item that is not cut. For a cut item, reading takes longer.
const WHOLE_STEP: f64 = 0.77;
/// Parts of an item that are joined at no cost, and the most parts beyond them that cost.
const FREE_PARTS: f64 = 4.0;
const MOST_PARTS: f64 = 8.0;

/// Microseconds of split-KV with TMA boxes, in one configuration.
pub(super) fn boxes(op: &Attention, config: Config, units: u32) -> f64 {
    let sizes = Sizes::of(op, units);
    let items = sizes.items / config.heads as f64;
    let costs = match (config.whole, config.warps) {
        (true, _) => WHOLE_ITEMS,
        (false, 8) => EIGHT_WARPS,
        (false, _) => FOUR_WARPS,
    };
    let each = items / sizes.units;
    let compute = if config.whole { WHOLE_STEP * each.ceil() * (sizes.mean.max(1.0) / config.tokens() as f64).ceil() } else { 0.0 };
    let parts = (1.0 / each - FREE_PARTS).clamp(0.0, MOST_PARTS);
    let join = if items > 1.0 { costs.join + costs.part * parts } else { 0.0 };
    let paged = if sizes.paged { costs.paged } else { 0.0 };
    costs.start + costs.head * sizes.head + join + paged + overlapped(compute, sizes.reading(1.0, costs.rate)) + (costs.item + costs.joined) * each
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    /// Microseconds on an H100, for shapes to which the constants were fitted. The model is within a quarter.
    #[test]
    fn the_model_gives_back_what_was_measured() {
        let dense = |batch, heads, q_len, kv_len, head_dim| Attention::dense(DType::F16, batch, heads, [q_len, kv_len], head_dim);
        let eight_whole = Config { warps: 8, heads: 1, whole: true };
        let near = |said: f64, measured: f64| assert!((said / measured).ln().abs() < 1.25f64.ln(), "{said} for {measured}");
        near(whole_sequences(&dense(6, [12, 3], 4, 34, 128), 132), 9.6);
        near(whole_sequences(&dense(1, [8, 8], 1, 5580, 128), 132), 126.4);
        near(split(&dense(2, [4, 1], 8, 27_858, 128), 132), 33.0);
        near(split(&dense(6, [12, 3], 4, 34, 128), 132), 18.1);
        near(boxes(&dense(6, [12, 3], 4, 34, 128), eight_whole, 132), 10.3);
        near(boxes(&dense(156, [3, 3], 1, 11_515, 96), eight_whole, 132), 871.8);
    }

    #[test]
    fn more_keys_never_take_less_time() {
        for kv_len in (16..20_000).step_by(611) {
            let of = |kv_len| Attention::dense(DType::F16, 3, [8, 4], [2, kv_len], 128);
            let times = |op: &Attention| Config::ALL.map(|config| boxes(op, config, 78)).into_iter().chain([split(op, 78), whole_sequences(op, 78)]);
            assert!(times(&of(kv_len)).zip(times(&of(kv_len + 611))).all(|(less, more)| less.is_finite() && less > 0.0 && less <= more));
        }
    }
}
