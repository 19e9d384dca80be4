//! How `attention` of few queries over long caches is split: the speed rules of `sm90_decode` and `sm80_decode`.

use crate::backends::cuda::attention::choose::cost;
use crate::backends::cuda::attention::choose::tiles::cluster;
use crate::backends::cuda::attention::choose::varlen::varlen_config;
use crate::backends::cuda::attention::choose::worth::{Worth, when};
use crate::backends::cuda::attention::sm80::tile::{self as sm80, key_rows};
use crate::backends::cuda::attention::sm90::decode_tile::{Config, LEAST_KEYS, PANEL, ROWS, Tile, alike};
use crate::backends::cuda::attention::sm90::tile::LISTED;
use crate::backends::cuda::attention::sm90::varlen_tile::{LEAST_BOX, box_keys};
use crate::backends::cuda::variant::Target;
use crate::ops::Attention;
use crate::ops::attention::Form;

/// For launches whose successor's blocks fit beside them: the fewest k-blocks an SM for which split-KV with TMA pays, and the most SMs that
/// share an item. With more parts an item, split-KV with cp.async is faster where it must wait for the launch before.
const BESIDE_STEPS: u64 = 2;
const BESIDE_PARTS: u64 = 5;
/// The fewest k-blocks an SM for which a launch has each SM to itself, and the most SMs that then share an item. One block joins an item's
/// parts.
const ALONE_STEPS: u64 = 12;
const ALONE_PARTS: u64 = 4;
/// The most blocks that share an item of a step over pages, whose rows have keys of their own, or share them.
const PAGED_PARTS: [u64; 2] = [9, 8];
/// Heads of a box where no item is cut, best first. Two heads have more data end to end, and half as many items end.
const WHOLE_HEADS: [u64; 2] = [2, 1];
/// The fewest k-blocks an SM for which no item is cut, and the share of all SMs that must get equally many items.
const WHOLE_STEPS: u64 = 48;
const WHOLE_SHARE: (u64, u64) = (31, 32);
/// The most rows that share keys for which a split pays, and for which it pays whatever the sequences are.
const SPLIT_ROWS: u64 = 64;
const ALWAYS_SPLIT_ROWS: u64 = 16;

/// The fastest configuration of `sm90_decode`, whether it can compute the operation or not.
fn fastest(op: &Attention, units: u32) -> Config {
    let tile = |warps| Tile::new(op.head_dim, key_rows(op), warps);
    let warps = if fills(tile(8), op, units, ALONE_STEPS, ALONE_PARTS) { 8 } else { 4 };
    if alike(op)
        && warps == 8
        && fills(tile(8), op, units, WHOLE_STEPS, ALONE_PARTS)
        && let Some(heads) = WHOLE_HEADS.into_iter().find(|heads| whole(op, *heads, units.into()))
    {
        return Config { warps, heads, whole: true };
    }
    Config { warps, heads: tile(warps).heads(op), whole: false }
}

/// Whether nearly all SMs get equally many whole items.
fn whole(op: &Attention, heads: u64, units: u64) -> bool {
    let items = op.batch * (op.kv_heads / heads);
    let turns = items.div_ceil(units).max(1);
    let evenly = op.kv_heads.is_multiple_of(heads) && items.is_multiple_of(turns);
    evenly && items / turns * WHOLE_SHARE.1 >= units * WHOLE_SHARE.0
}

/// Whether there are `steps` k-blocks for each SM, and no item is cut into more than `parts`.
fn fills(tile: Tile, op: &Attention, units: u32, steps: u64, parts: u64) -> bool {
    let (heads, units) = (tile.heads(op), u64::from(units));
    let items = op.batch * (op.kv_heads / heads);
    items.saturating_mul(op.kv_len.div_ceil(tile.tokens(heads))) >= steps * units && items * parts >= units
}

/// The most rows that share keys for which the cost model is asked.
const MODEL_ROWS: u64 = 512;
/// The model's choice is taken where its time is below this share of the rules' choice. Steps of a decoder overlap, of which it knows nothing.
const CLEARLY: f64 = 0.92;
const CLEARLY_IN_STEPS: f64 = 0.7;
/// The longest caches for which it is asked in place of what was measured in a decoder.
const SHORT_STEPS: u64 = 150;
/// The longest sequences end to end that are never split for how few they are: a sentence's bits are the same whatever is beside it.
const ALONE_KEYS: u64 = 256;
/// Heads of a box whatever the head is. More are one where they lie in one page, or are the fewest whose rows fill whole lines of memory.
const FEW_HEADS: u64 = 2;

/// The ways to compute few rows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Boxes(Config),
    Split,
    Whole,
}

impl Way {
    /// The way that the rules take. `boxes` is the configuration of `sm90_decode`, where that can compute the operation.
    fn by_rule(op: &Attention, units: u32, boxes: Option<Config>) -> Self {
        let rows = key_rows(op);
        match boxes {
            Some(config) if config.tile(op).alone() || fills(config.tile(op), op, units, BESIDE_STEPS, BESIDE_PARTS) => Self::Boxes(config),
            _ if rows <= ALWAYS_SPLIT_ROWS || rows <= SPLIT_ROWS && op.batch * op.kv_heads < u64::from(units) => Self::Split,
            _ => Self::Whole,
        }
    }

    /// The modelled time in microseconds. `Whole` is in tiles of Ampere.
    fn cost(self, op: &Attention, units: u32) -> f64 {
        match self {
            Self::Boxes(config) => cost::boxes(op, config, units),
            Self::Split => cost::split(op, units),
            Self::Whole => cost::whole_sequences(op, units),
        }
    }

    /// The fastest way, with or without TMA boxes among the ways. It is the rules' choice, unless the model says that another is clearly
    /// faster.
    fn of(op: &Attention, target: &Target, boxes: bool) -> Self {
        let units = target.units;
        let fastest = fastest(op, units);
        let cut = boxes.then(|| able(op, fastest)).flatten();
        if key_rows(op) > MODEL_ROWS || op.q_len >= sm80::ROWS {
            return Self::of_many_queries(op, target).unwrap_or_else(|| Self::by_rule(op, units, cut));
        }
        let step = boxes.then(|| paged(op, units)).flatten();
        if let Some(config) = step.filter(|_| op.kv_len > SHORT_STEPS) {
            return Self::Boxes(config);
        }
        let ruled = step.map_or_else(|| Self::by_rule(op, units, cut), Self::Boxes);
        let (warps, clearly) = step.map_or((fastest.warps, CLEARLY), |config| (config.warps, CLEARLY_IN_STEPS));
        // How many warps is by the rules: it is for launches in a row.
        let worth = |config: &Config| (config.whole || config.warps == warps) && fills_lines(op, *config) && config.can_take(op).is_ok();
        let configs = Config::ALL.into_iter().filter(|config| boxes && worth(config)).map(Self::Boxes);
        let timed = [Self::Whole, Self::Split].into_iter().chain(configs).map(|way| (way.cost(op, units), way));
        match timed.min_by(|one, other| one.0.total_cmp(&other.0)) {
            Some((time, way)) if time < clearly * ruled.cost(op, units) => way,
            _ => ruled,
        }
    }

    /// The fastest way for 64 queries and more, of which whole sequences are in tiles of Hopper where those can compute them. None where the model
    /// is not asked.
    fn of_many_queries(op: &Attention, target: &Target) -> Option<Self> {
        let (units, asked) = (target.units, op.q_len >= sm80::ROWS && key_rows(op) <= MODEL_ROWS);
        if asked && matches!(op.form, Form::Varlen(_)) && op.kv_len <= ALONE_KEYS {
            return Some(Self::Whole);
        }
        if !asked || target.arch.0 != 90 || op.window.is_some() || op.slots.is_some() || !sm80::rows_aligned(op) {
            return None;
        }
        let whole = match op.form {
            Form::Dense => match cluster(op, units) {
                1 => return None,
                blocks => cost::tiles(op, blocks, units),
            },
            Form::Varlen(_) | Form::Paged(_) if op.head_dim > LISTED || box_keys(op) < LEAST_BOX => Self::Whole.cost(op, units),
            Form::Varlen(_) | Form::Paged(_) => cost::tiles(op, varlen_config(op, units).cluster, units),
            _ => return None,
        };
        Some(if Self::Split.cost(op, units) < CLEARLY * whole { Self::Split } else { Self::Whole })
    }
}

/// Whether so many heads of a box are worth it: one or two, those of a page, or the fewest whose rows fill whole lines of memory.
fn fills_lines(op: &Attention, Config { warps, heads, .. }: Config) -> bool {
    let whole_lines = |heads: u64| (heads * op.head_dim).is_multiple_of(PANEL);
    heads <= FEW_HEADS || heads == Tile::new(op.head_dim, key_rows(op), warps).heads(op) || whole_lines(heads) && !whole_lines(heads / 2)
}

/// The configuration of `sm90_decode` for a decoder's step over pages: eight warps with the heads of a page as one box, as long as few blocks share an
/// item. In a model, where launches overlap, they take less time than any other way from one sequence of 150 tokens on.
fn paged(op: &Attention, units: u32) -> Option<Config> {
    let tile = Tile::new(op.head_dim, key_rows(op), 8);
    let config = Config { warps: 8, heads: tile.heads(op), whole: false };
    let parts = u64::from(units).div_ceil((op.batch * (op.kv_heads / config.heads)).max(1)).min((op.kv_len * config.heads).div_ceil(LEAST_KEYS));
    (matches!(op.form, Form::Paged(_)) && key_rows(op) <= ROWS && parts <= PAGED_PARTS[usize::from(key_rows(op) > 1)] && config.can_take(op).is_ok())
        .then_some(config)
}

/// The configuration `fastest` of `sm90_decode`, or the first that can compute the operation.
fn able(op: &Attention, fastest: Config) -> Option<Config> {
    [fastest].into_iter().chain(Config::ALL).find(|config| config.can_take(op).is_ok())
}

/// The fastest configuration of `sm90_decode` that can compute the operation.
pub(crate) fn decode_boxes_config(op: &Attention, target: &Target) -> Config {
    let fastest = fastest(op, target.units);
    match Way::of(op, target, true) {
        Way::Boxes(config) => config,
        _ => able(op, fastest).unwrap_or(fastest),
    }
}

/// Whether split-KV with TMA boxes is worth taking, or why not.
pub(crate) fn decode_boxes(op: &Attention, target: &Target) -> Worth {
    when(matches!(Way::of(op, target, true), Way::Boxes(_)), || {
        format!("too few steps of {} sequences and {} heads for {} multiprocessors", op.batch, op.kv_heads, target.units)
    })
}

/// The longest caches of which a block has all keys of a head, and the most such blocks an SM.
const BLOCK_KEYS: u64 = 1024;
const BLOCK_ITEMS: u64 = 1;

/// Whether all keys of a sequence and a head are worth a block, or why not.
pub(crate) fn decode_block(op: &Attention, target: &Target) -> Worth {
    let items = op.batch * op.kv_heads;
    let few = matches!(op.form, Form::Paged(_)) && op.kv_len <= BLOCK_KEYS && items <= BLOCK_ITEMS * u64::from(target.units);
    when(few, || format!("{items} heads of {} keys: blocks that share keys take less time", op.kv_len))
}

/// Whether split-KV with cp.async is worth taking, or why not.
pub(crate) fn decode(op: &Attention, target: &Target) -> Worth {
    when(Way::of(op, target, false) == Way::Split, || format!("{} rows share {} keys: blocks of whole sequences take less time", key_rows(op), op.kv_len))
}

/// Whether tiles of Hopper are worth taking for dense sequences, or why not: of few tiles over long keys a cluster has too few blocks.
pub(crate) fn unsplit(op: &Attention, target: &Target) -> Worth {
    let split = matches!(op.form, Form::Dense) && Way::of_many_queries(op, target) == Some(Way::Split);
    when(!split, || format!("{} rows share {} keys: more blocks than a cluster has take less time", key_rows(op), op.kv_len))
}

/// Whether two k-blocks in flight for a warp are faster than three. They are where an SM has several sequences and heads to itself.
pub(crate) fn decode_shallow(op: &Attention, target: &Target) -> bool {
    key_rows(op) == 1 && op.batch * op.kv_heads >= 2 * u64::from(target.units)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::cuda::jit::Arch;
    use crate::dtype::DType;
    use crate::ops::index::{PageShape, VarlenShape};

    const TARGET: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };

    fn dense(batch: u64, heads: [u64; 2], kv_len: u64) -> Attention {
        Attention::dense(DType::F16, batch, heads, [1, kv_len], 128)
    }

    fn worth(op: &Attention) -> Option<Config> {
        decode_boxes(op, &TARGET).is_ok().then(|| decode_boxes_config(op, &TARGET))
    }

    #[test]
    fn short_launches_stand_side_by_side() {
        let warps = |batch, heads, kv_len| worth(&dense(batch, heads, kv_len)).map(|config| config.warps);
        assert_eq!([warps(16, [32, 32], 4096), warps(8, [32, 8], 4096), warps(64, [32, 8], 8192)], [Some(8); 3]);
        assert_eq!([warps(1, [32, 32], 4096), warps(4, [32, 8], 4096)], [Some(4); 2]);
        assert_eq!([warps(1, [32, 8], 4096), warps(1, [32, 8], 32768)], [None; 2]);
    }

    #[test]
    fn nothing_is_cut_where_as_good_as_all_multiprocessors_have_as_much() {
        let share = |batch, heads, kv_len| {
            let op = dense(batch, heads, kv_len);
            let share = decode_boxes_config(&op, &TARGET).share(&op, TARGET.units);
            [share.heads, share.items, share.blocks]
        };
        assert_eq!([share(16, [32, 32], 4096), share(64, [32, 8], 8192)], [[2, 256, 128]; 2]);
        assert_eq!(share(128, [16, 4], 8192), [2, 256, 128]);
        assert_eq!(share(256, [8, 1], 8192), [1, 256, 128], "one head");
        assert_eq!(share(15, [32, 32], 4096), [1, 480, 132], "of 132 too many would have nothing");
        assert_eq!(share(1, [32, 32], 4096), [1, 32, 132], "few and long");
        assert_eq!(share(1, [32, 32], 256), [1, 32, 32], "few and short");
    }

    /// Measured on an H100: 11.9 µs in whole sequences for 38.0 split; 56.7 split for 465.6; 9.6 and 9.7 whole for 18.1 and 16.
    #[test]
    fn few_keys_are_not_split_and_many_are() {
        let paged = |batch, heads, q_len, tokens, head_dim| {
            let shape = PageShape { batch, pages: u64::div_ceil(tokens, 32), page: 32, pool_pages: 1 << 16 };
            Attention { causal: true, ..Attention::paged(DType::F16, shape, heads, q_len, head_dim) }
        };
        let short = Attention { q_len: 4, causal: true, ..dense(6, [12, 3], 34) };
        assert!([paged(6, [16, 2], 8, 18, 256), short.clone(), paged(8, [4, 4], 22, 42, 256)].iter().all(|op| decode(op, &TARGET).is_err()));
        assert!(decode(&paged(1, [8, 2], 60, 11_394, 128), &TARGET).is_ok() && decode_boxes(&short, &TARGET).is_err());
    }

    #[test]
    fn a_box_lies_in_one_page() {
        let heads = |page, batch| {
            let shape = PageShape { batch, pages: 8192 / page, page, pool_pages: 1 << 16 };
            worth(&Attention::paged(DType::F16, shape, [32, 8], 1, 128)).map(|config| config.heads)
        };
        assert_eq!([heads(8, 64), heads(16, 64), heads(48, 64), heads(64, 64), heads(256, 64)], [None, Some(8), Some(8), Some(2), Some(1)]);
        // All heads of a page are one box, unless more blocks share an item than join it in time.
        assert_eq!([heads(16, 4), heads(16, 20), heads(64, 4)], [None, Some(8), Some(1)]);
    }

    #[test]
    fn many_heads_with_keys_of_their_own_take_two_stages() {
        let shallow = |batch, heads| decode_shallow(&dense(batch, heads, 4096), &TARGET);
        assert_eq!([shallow(16, [32, 32]), shallow(1, [32, 32]), shallow(64, [32, 8])], [true, false, false]);
    }

    #[test]
    fn long_prompts_are_not_split() {
        let of = |batch, heads, q_len| decode(&Attention { q_len, ..dense(batch, heads, 4096) }, &TARGET).is_ok();
        assert_eq!([of(16, [32, 8], 1), of(1, [32, 8], 16), of(64, [32, 8], 16), of(1, [32, 32], 65)], [true, true, false, false]);
    }

    #[test]
    fn sentences_are_not_split_for_how_few_they_are() {
        let of = |batch, longest| {
            let shape = VarlenShape { batch, total_q: batch * longest, total_kv: batch * longest, max_q: longest, max_kv: longest };
            decode(&Attention::varlen(DType::F16, shape, [12, 12], 64), &TARGET).is_ok()
        };
        assert!([1, 8, 300].into_iter().all(|batch| !of(batch, 64) && !of(batch, 256)));
    }

    /// Measured on an H100: 26.4 µs in a cluster of eight, 19.3 split.
    #[test]
    fn few_tiles_over_long_keys_are_split() {
        let op = |heads, tokens, head_dim| Attention { causal: true, ..Attention::dense(DType::F16, 1, [heads, heads], tokens, head_dim) };
        let few = op(1, [200, 6453], 96);
        assert!(unsplit(&few, &TARGET).is_err() && decode(&few, &TARGET).is_ok());
        for many in [op(2, [4096, 4096], 128), op(4, [64, 64], 128), op(32, [512, 512], 128)] {
            assert!(unsplit(&many, &TARGET).is_ok(), "{many:?}");
        }
    }
}
