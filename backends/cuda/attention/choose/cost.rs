//! A model of the time of `attention` in microseconds, by what limits each way: keys are split with TMA (`sm90_decode`) or with cp.async
//! (`sm80_decode`), or whole sequences are taken in tiles of 64 rows (`sm80`) or of 128 (`sm90`, `sm90_varlen`).
//!
//! The constants are fitted to times of 200 random shapes on an H100 (`lab/choice.md`), with a median error of a twentieth. The model does
//! not know how launches in a row overlap.

use crate::backends::cuda::attention::sm80::tile as sm80;
use crate::backends::cuda::attention::sm90::decode_tile::{Config, KEYS, LEAST_KEYS};
use crate::backends::cuda::attention::sm90::tile as sm90;
use crate::ops::Attention;
use crate::ops::attention::Form;

/// SMs of the GPU for which the constants hold.
const FITTED_UNITS: f64 = 132.0;
/// The mean length of a sequence in pages as a share of the longest, where only the device knows lengths.
const MEAN_LENGTH: f64 = 0.5625;
/// Elements of a line, of which memory reads none in part, and elements of a head for which slopes are given.
const LINE: u64 = 64;
const HEAD: f64 = 64.0;
/// Bytes of K and V, of an element of a key.
const BYTES: f64 = 4.0;
/// Rows of a tile of a split, and the fewest k-blocks of a stretch, in `kernels/attention/sm80/decode.cuh`.
const SPLIT_ROWS: u64 = 16;
const SPLIT_LEAST: f64 = 4.0;
/// Parts of an item from which on more of them take no longer to join.
const MOST_PARTS: f64 = 12.0;

/// A shape in the numbers that the formulas take.
struct Sizes {
    units: f64,
    /// Sequences, times the groups of heads that share keys.
    items: f64,
    longest: f64,
    mean: f64,
    /// Whether all sequences are as long as the longest.
    alike: bool,
    /// 1 where keys lie in pages, else 0.
    paged: f64,
    /// Bytes of keys and values.
    bytes: f64,
}

impl Sizes {
    fn of(op: &Attention, units: u32) -> Self {
        let seen = op.window.map_or(op.kv_len, |window| op.kv_len.min(window.saturating_add(op.q_len))) as f64;
        let batch = op.batch.max(1) as f64;
        let (longest, mean) = match op.form {
            // The last page of the longest sequence is half full.
            Form::Paged(shape) => {
                let longest = (seen - (shape.page / 2) as f64).max(1.0);
                (longest, longest * ((batch - 1.0) * MEAN_LENGTH + 1.0) / batch)
            }
            Form::Varlen(shape) => (seen, (shape.total_kv as f64 / batch).min(seen)),
            _ => (seen, seen),
        };
        let items = (op.batch * op.kv_heads) as f64;
        let paged = if matches!(op.form, Form::Paged(_)) { 1.0 } else { 0.0 };
        let bytes = items * mean * op.head_dim as f64 * BYTES;
        Self { units: f64::from(units.max(1)), items, longest, mean, alike: matches!(op.form, Form::Dense), paged, bytes }
    }

    /// K-blocks of `keys` keys of an item. None has less than one.
    fn steps(&self, keys: u64) -> f64 {
        self.steps_of(self.mean, keys)
    }

    fn steps_of(&self, mean: f64, keys: u64) -> f64 {
        let most = (self.longest / keys as f64).ceil().max(1.0);
        if self.alike && mean >= self.longest { most } else { (mean / keys as f64 + 0.5).clamp(1.0, most) }
    }

    /// Keys that a tile of many queries sees.
    fn seen(&self, op: &Attention) -> f64 {
        if op.causal && op.q_len > sm80::ROWS { self.mean - (op.q_len as f64).min(self.mean) / 2.0 } else { self.mean }
    }

    /// Microseconds to bring so many bytes, at `rate` megabytes a microsecond.
    fn bringing(&self, bytes: f64, rate: f64) -> f64 {
        bytes / 1e6 / (rate * self.units / FITTED_UNITS)
    }
}

/// How blocks share k-blocks that lie on one line, item after item.
struct Line {
    /// K-blocks of a block.
    steps: f64,
    /// Blocks that have any.
    blocks: f64,
    /// Items that end, or are left, in a block.
    ends: f64,
    /// Blocks that share an item.
    parts: f64,
}

impl Line {
    /// The line of `items` items with `each` k-blocks on so many blocks, of which none has fewer than `least`.
    fn of(items: f64, each: f64, blocks: f64, least: f64) -> Self {
        let total = items * each;
        let stretch = (total / blocks).ceil().max(least);
        let (steps, blocks) = (stretch.min(total), (total / stretch).ceil().clamp(1.0, blocks));
        // Where a stretch has no whole number of items, or an item of stretches, a block has a part of one more.
        let uneven = |ratio: f64| if (ratio - ratio.round()).abs() < 1e-9 { 0.0 } else { 1.0 };
        let (ends, parts) = if steps >= each {
            let (inside, more) = (steps / each, uneven(steps / each));
            let ends = (inside + more).min(items);
            (ends, if items <= ends { 1.0 } else { 1.0 + more })
        } else {
            let more = if items > 1.0 { uneven(each / steps) } else { 0.0 };
            (1.0 + more, (each / steps).ceil() + more)
        };
        Self { steps, blocks, ends, parts }
    }
}

/// The time of pieces of work of which the longest hides most of the others.
fn overlapped<const N: usize>(all: [f64; N], power: i32) -> f64 {
    all.into_iter().map(|time| time.powi(power)).sum::<f64>().powf(1.0 / f64::from(power))
}

/// Elements of whole lines, over the elements in them.
fn in_lines(elements: u64) -> f64 {
    elements.next_multiple_of(LINE) as f64 / elements.max(1) as f64
}

/// Microseconds to join an item of so many parts: a constant, and more for each part beyond two.
fn joining(parts: f64, [any, each]: [f64; 2]) -> f64 {
    if parts > 1.0 { any + each * (parts.min(MOST_PARTS) - 2.0) } else { 0.0 }
}

/// Tiles of `rows` rows, of all heads. Of sequences end to end it is a mean.
fn tiles_of(op: &Attention, rows: u64) -> f64 {
    match op.form {
        Form::Varlen(shape) => (op.heads * op.batch.max((shape.total_q + op.batch * rows / 2) / rows)) as f64,
        _ => (op.heads * op.batch * op.q_len.div_ceil(rows)) as f64,
    }
}

/// Microseconds of whole sequences in tiles of 64 rows: the longest one's k-blocks one after another, or the throughput of all.
pub(super) fn whole_sequences(op: &Attention, units: u32) -> f64 {
    let sizes = Sizes::of(op, units);
    let head = sm80::held(op.head_dim) as f64 / HEAD;
    let tiles = if op.q_len < sm80::ROWS { sm80::work(op, sm80::ROWS) as f64 } else { tiles_of(op, sm80::ROWS) };
    let latency = (1.291 + 0.224 * head + 0.751 * sizes.paged) * ((sizes.longest / sm80::KEYS as f64).ceil() - 1.0);
    let step = 0.230 + 0.635 * head + 0.335 * sizes.paged;
    let throughput = tiles / sizes.units * (step * sizes.steps_of(sizes.seen(op), sm80::KEYS) + 0.983);
    6.892 + 1.260 * head + overlapped([latency, throughput], 2)
}

/// Microseconds of split-KV with cp.async: what multiplies, memory, and L2, which each tile of 16 rows reads anew.
pub(super) fn split(op: &Attention, units: u32) -> f64 {
    let sizes = Sizes::of(op, units);
    let (held, rows) = (sm80::held(op.head_dim), sm80::key_rows(op).max(1));
    let (head, tiles) = (held as f64 / HEAD, rows.div_ceil(SPLIT_ROWS));
    // As there is room for on Hopper.
    let (warps, keys) = (if held < 224 { 8 } else { 4 }, if held <= 64 { 32 } else { 16 });
    let line = Line::of(sizes.items, sizes.steps(warps * keys), (u64::from(units) / tiles).max(1) as f64, SPLIT_LEAST);
    let waves = (tiles as f64 * line.blocks / sizes.units).ceil();
    let step = 0.271 * warps as f64 / 8.0 + (0.809 * head + 0.886 * sizes.paged) * (warps * keys) as f64 / 256.0;
    let memory = sizes.bringing(sizes.bytes * in_lines(op.head_dim), 3.203);
    let cache = sizes.bringing(sizes.bytes * tiles as f64, 6.862);
    let ends = line.ends * waves * (1.688 + 0.033 * rows.min(SPLIT_ROWS) as f64 * head);
    let lengths = if sizes.alike { 0.0 } else { 0.655 };
    3.826 + 1.016 * head + lengths + overlapped([line.steps * waves * step, memory, cache], 2) + ends + joining(line.parts, [2.655, 0.316])
}

/// Microseconds of split-KV with TMA boxes, in one configuration: what multiplies, memory, and the copies, which are of whole lines.
pub(super) fn boxes(op: &Attention, config: Config, units: u32) -> f64 {
    let sizes = Sizes::of(op, units);
    let (heads, tokens, blocks) = (config.heads as f64, config.tokens(), config.share(op, units).blocks as f64);
    let (items, each, least) = (sizes.items / heads, sizes.steps(tokens), (LEAST_KEYS / (config.warps * KEYS)) as f64);
    let line = if sizes.alike {
        // Each block has as many whole items as all can have, and a stretch of the rest.
        let (whole, cut) = ((items / blocks).floor(), items % blocks);
        let rest = if cut > 0.0 { Line::of(cut, each, blocks, least) } else { Line { steps: 0.0, blocks: 0.0, ends: 0.0, parts: 1.0 } };
        let busy = if whole > 0.0 { blocks } else { rest.blocks };
        Line { steps: rest.steps + whole * each, blocks: busy, ends: rest.ends + whole, ..rest }
    } else {
        Line::of(items, each, blocks, least)
    };
    let panels = op.head_dim.div_ceil(LINE) as f64;
    let step = (0.436 + 0.145 * panels) * config.warps as f64 / 8.0;
    // A box of pages is brought whole, whatever the sequence's length. Heads of a box lie in the same lines.
    let brought = if sizes.paged > 0.0 { items * each * (tokens * op.head_dim) as f64 * heads * BYTES } else { sizes.bytes };
    let memory = sizes.bringing(brought * in_lines(config.heads * op.head_dim), 2.806);
    let copies = sizes.bringing((config.warps * KEYS * LINE) as f64 * panels * BYTES * line.steps * line.blocks, 6.009);
    // Four columns of a row a thread.
    let turns = (config.heads * sm80::key_rows(op) * op.head_dim) as f64 / (config.warps * 32 * 4) as f64;
    let ends = line.ends * (1.048 + 0.594 * turns);
    let join = joining(line.parts, [0.493 + 0.828 * turns, 0.330]);
    4.870 + 1.344 * op.head_dim as f64 / HEAD + 1.866 * sizes.paged + overlapped([memory, copies, line.steps * step], 3) + ends + join
}

/// Microseconds of Hopper's tiles of 128 rows, each of which the blocks of a cluster share: the longest tile, or the rounds of all.
pub(super) fn tiles(op: &Attention, cluster: u64, units: u32) -> f64 {
    let sizes = Sizes::of(op, units);
    let held = if sizes.alike { sm90::held(op.head_dim) } else { sm90::held(op.head_dim).max(sm90::NARROW) };
    let (keys, head) = (sm90::keys(held), held as f64 / HEAD);
    let step = 0.894 + 0.321 * head * keys as f64 / 128.0;
    let longest = step * ((sizes.longest / keys as f64).ceil() / cluster as f64).ceil();
    let rounds = (tiles_of(op, sm90::ROWS) / sizes.units).ceil();
    let all = if cluster == 1 { rounds * (step * sizes.steps_of(sizes.seen(op), keys) + 1.636) } else { 0.0 };
    6.349 + 1.366 * head + 3.478 * sizes.paged + 3.053 * (cluster as f64).log2() + longest.max(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::ops::index::PageShape;

    fn dense(batch: u64, heads: [u64; 2], tokens: [u64; 2], head_dim: u64) -> Attention {
        Attention::dense(DType::F16, batch, heads, tokens, head_dim)
    }

    fn paged(batch: u64, kv_heads: u64, keys: u64, page: u64) -> Attention {
        let shape = PageShape { batch, pages: keys.div_ceil(page), page, pool_pages: 1 << 20 };
        Attention::paged(DType::F16, shape, [kv_heads * 4, kv_heads], 1, 128)
    }

    const WHOLE: Config = Config { warps: 8, heads: 1, whole: true };
    const EIGHT: Config = Config { warps: 8, heads: 1, whole: false };

    /// Microseconds on an H100, for shapes to which the constants were fitted. The model is within a quarter.
    #[test]
    fn the_model_gives_back_what_was_measured() {
        let near = |said: f64, measured: f64| assert!((said / measured).ln().abs() < 1.25f64.ln(), "{said} for {measured}");
        near(whole_sequences(&dense(6, [12, 3], [4, 34], 128), 132), 9.6);
        near(whole_sequences(&Attention { causal: true, ..dense(12, [4, 4], [2, 564], 32) }, 132), 20.4);
        near(split(&dense(2, [4, 1], [8, 27_858], 128), 132), 33.0);
        near(split(&dense(6, [12, 3], [4, 34], 128), 132), 18.1);
        near(boxes(&dense(6, [12, 3], [4, 34], 128), WHOLE, 132), 10.3);
        near(boxes(&dense(156, [3, 3], [1, 11_515], 96), WHOLE, 132), 871.8);
        near(tiles(&Attention { causal: true, ..dense(2, [1, 1], [91, 21_433], 96) }, 8, 132), 44.8);
    }

    /// Seen on an H200, where pages have 16 tokens: boxes of eight heads are faster for many sequences, and for 16 `sm80_decode` is.
    #[test]
    fn the_model_orders_what_it_was_not_fitted_to() {
        let eight = Config { heads: 8, ..EIGHT };
        let faster = |op: &Attention| boxes(op, eight, 132) < split(op, 132);
        assert_eq!([paged(64, 8, 8192, 16), paged(64, 8, 2048, 16), paged(16, 8, 4096, 16)].each_ref().map(faster), [true, true, false]);
        // Boxes whose heads fill whole lines took 0.57 to 0.75 of the time.
        let op = |head_dim| dense(64, [8, 8], [1, 8192], head_dim);
        let share = |head_dim| boxes(&op(head_dim), eight, 132) / boxes(&op(head_dim), EIGHT, 132);
        assert!((0.57..0.75).contains(&share(80)) && (0.7..0.8).contains(&share(96)) && share(128) > 0.98, "{} {}", share(80), share(96));
    }

    #[test]
    fn a_line_is_shared_as_the_kernels_share_it() {
        let of = |items: f64, each: f64| {
            let Line { steps, blocks, ends, parts } = Line::of(items, each, 132.0, 4.0);
            [steps, blocks, ends, parts]
        };
        assert_eq!(of(32.0, 32.0), [8.0, 128.0, 1.0, 4.0], "four blocks an item");
        assert_eq!(of(20.0, 1.0), [4.0, 5.0, 4.0, 1.0], "no stretch has less than four steps");
        assert_eq!(of(100.0, 7.0), [6.0, 117.0, 2.0, 3.0], "a block has parts of two");
        assert_eq!(of(1.0, 3.0), [3.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn many_more_keys_never_take_less_time() {
        for kv_len in (711..20_000).step_by(611) {
            let of = |kv_len| dense(3, [8, 4], [2, kv_len], 128);
            let times = |op: &Attention| Config::ALL.map(|config| boxes(op, config, 132)).into_iter().chain([split(op, 132), whole_sequences(op, 132)]);
            let (less, more) = (of(kv_len), of(8 * kv_len));
            assert!(times(&less).zip(times(&more)).all(|(less, more)| less.is_finite() && less > 0.0 && less <= more), "{kv_len}");
        }
    }
}
