//! Which variants of `attention` are worth taking, and in which configuration: the speed rules, as they were measured. What its kernels can run a
//! variant says itself.

mod decode;
mod decode_cost;
#[cfg(test)]
mod random;
pub(crate) mod split_kv;
#[cfg(test)]
mod tests;
mod tiles;
mod worth;

pub(crate) use decode::{decode, decode_boxes, decode_boxes_config, decode_shallow};
pub(crate) use tiles::tiles;
use tiles::{by_steps, many_tiles, shares_keys, sharing};
use worth::{Worth, when};

use crate::backends::cuda::attention::block_lists::listed;
use crate::backends::cuda::attention::repack::Rows;
use crate::backends::cuda::attention::sm80::tile as sm80;
use crate::backends::cuda::attention::sm90::tile::{GROUP, NARROW, ROWS, Tile, held, work};
use crate::backends::cuda::attention::sm90::varlen_tile::{Config as VarlenConfig, LEAST_BOX, box_keys, most_work};
use crate::backends::cuda::variant::Target;
use crate::ops::Attention;
use crate::ops::attention::Form;

/// Keys of a step of four groups.
const SMALL_HEAD_KEYS: u64 = 128;
/// Keys of a row from which on those of a step are best read once for all groups.
const LEAST_TALL: u64 = 2048;
/// Keys of a causal row up to which it does not matter that the last tiles of four groups are not shared evenly.
const MOST_CAUSAL: u64 = 512;
/// The longest of many short sequences: of longer ones blocks of all keys would be better, and more rows a warp.
const LONGEST_SHORT: u64 = 512;

/// Four groups of the same rows, each with every fourth step.
pub(crate) fn intra_split(op: &Attention, target: &Target) -> Worth {
    when(by_steps(&listed(op), target.units), || "tiles of 64 rows are not few, or their steps are many".into())
}

/// Heads that start anywhere, where they lie.
pub(crate) fn unaligned(op: &Attention, target: &Target) -> Worth {
    when(!Rows::of(op).iter().all(|rows| rows.aligned(op.dtype)), || "rows start on multiples of 16 bytes".into())?;
    many_tiles(op, target.units)
}

/// Whether the blocks of a cluster share the keys of neighbouring tiles of heads that start anywhere.
pub(crate) fn unaligned_multicast(op: &Attention, tile: Tile, target: &Target) -> bool {
    shares_keys(op, tile, target.units)
}

/// Four groups an SM, of 64 rows each: where that takes less time than tiles of two groups or three, by waves of tiles. Measured, a wave of
/// 256 rows takes 7/5 of the time of one of 192, and that 6/5 of one of 128. Causal tiles are not alike: those are taken where many can even out.
pub(crate) fn small_head(op: &Attention, target: &Target) -> Worth {
    let units = u64::from(target.units.max(1));
    let (tiles, waves) = (work(op, ROWS), |rows: u64, room: u64| work(op, rows).div_ceil(room));
    // Blocks that stay begin a tile of one step while the one before ends.
    let many_short = op.kv_len <= SMALL_HEAD_KEYS && tiles > 4 * units;
    let fewer = if op.causal {
        op.kv_len <= MOST_CAUSAL || tiles > 2 * units
    } else {
        42 * waves(ROWS, 2 * units) < (25 * waves(ROWS, units)).min(30 * waves(3 * GROUP, units))
    };
    when(held(op.head_dim) == NARROW && tiles > units && !many_short && fewer, || {
        format!("{tiles} tiles of heads of {}: two groups take less time", op.head_dim)
    })
}

/// Whether an SM has one block of four groups, which all read the same keys, rather than two of two.
pub(crate) fn one_block_of_four_groups(op: &Attention) -> bool {
    !op.causal && op.kv_len >= LEAST_TALL
}

/// Many short sequences end to end. Hopper's tiles take three quarters of the time for heads of more than 32 elements.
pub(crate) fn varlen_short(op: &Attention, target: &Target) -> Worth {
    let longest = op.q_len.max(op.kv_len);
    when(longest <= LONGEST_SHORT, || format!("sequences of {longest}: it is for at most {LONGEST_SHORT}"))?;
    when(target.arch.0 < 90 || held(op.head_dim) < NARROW || op.q_len < GROUP, || format!("head_dim {}: tiles of Hopper take less time", op.head_dim))
}

/// Whether tiles of two heads take less time than `work` tiles of one, of so many rows each, on so many blocks that run at once: where most sequences
/// leave room for two, as long as the tiles go round. With four heads the last tiles end later.
pub(crate) fn two_short_heads(op: &Attention, rows: u64, work: u64, blocks: u64) -> bool {
    op.q_extent().1 <= op.batch * rows / 2 && work >= 2 * blocks
}

/// Sequences of their own lengths, in Hopper's tiles.
pub(crate) fn varlen(op: &Attention, _: &Target) -> Worth {
    when(held(op.head_dim) >= NARROW, || format!("head_dim {}: it is measured for heads of 64 and 128", op.head_dim))
}

/// The configuration of `sm90_varlen` that takes the least time on so many SMs. Pages are looked up ahead where they are small, or where
/// clusters share tiles: elsewhere it was slower, by 1 to 7 %.
pub(crate) fn varlen_config(op: &Attention, units: u32) -> VarlenConfig {
    let groups = varlen_groups(op, units);
    let sharing = |work, steps| if groups == 2 { sharing(work, steps, units) } else { 1 };
    let tile = VarlenConfig::new(groups, false, 1).tile(op);
    let cluster = sharing(most_work(op, tile.rows()), op.kv_len.div_ceil(tile.keys()));
    let ahead = VarlenConfig::new(groups, true, cluster);
    if ahead.can_take(op).is_ok() && (box_keys(op) <= LEAST_BOX || cluster > 1) { ahead } else { VarlenConfig::new(groups, false, 1) }
}

/// Three groups for narrow heads where that takes less time, as in `sm90`, by the tiles that there are: exactly, where all sequences have as many
/// queries, or on average.
fn varlen_groups(op: &Attention, units: u32) -> u64 {
    let tiles = |rows: u64| match op.form {
        Form::Varlen(_) => op.heads * (op.q_extent().1 + op.batch * rows / 2) / rows,
        _ => op.heads * op.batch * op.q_len.div_ceil(rows),
    };
    let waves = |rows: u64| tiles(rows).div_ceil(u64::from(units.max(1)));
    if op.head_dim <= NARROW && 6 * waves(3 * GROUP) < 5 * waves(2 * GROUP) { 3 } else { 2 }
}

/// Whether warps of twice the rows take less time on Ampere: where they are enough for all SMs.
pub(crate) fn wide(op: &Attention, target: &Target) -> bool {
    op.q_len > sm80::ROWS && sm80::work(op, sm80::Tile::of(op).wide_rows()) >= u64::from(target.units)
}
