//! The speed rules of `attention`, as measured: which variants are worth taking, and in which configuration. A variant itself says what its
//! kernels can compute.

mod decode;
mod decode_cost;
#[cfg(test)]
mod random;
pub(crate) mod split_kv;
#[cfg(test)]
mod tests;
mod tiles;
mod worth;

pub(crate) use decode::{decode, decode_block, decode_boxes, decode_boxes_config, decode_shallow};
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

/// Keys of a k-block of four warpgroups.
const SMALL_HEAD_KEYS: u64 = 128;
/// The fewest keys of a row for which a k-block is best read once for all warpgroups.
const LEAST_TALL: u64 = 2048;
/// The most keys of a causal row for which an uneven share of the last tiles of four warpgroups does not matter.
const MOST_CAUSAL: u64 = 512;
/// The longest of many short sequences. For longer ones, blocks with all keys would be better, and more rows a warp.
const LONGEST_SHORT: u64 = 512;

/// Whether intra-CTA split-KV is worth taking, or why not: four warpgroups have the same rows, each with every fourth k-block.
pub(crate) fn intra_split(op: &Attention, target: &Target) -> Worth {
    when(by_steps(&listed(op), target.units), || "tiles of 64 rows are not few, or their steps are many".into())
}

/// Whether heads that start anywhere are worth reading in place, or why not.
pub(crate) fn unaligned(op: &Attention, target: &Target) -> Worth {
    when(!Rows::of(op).iter().all(|rows| rows.aligned(op.dtype)), || "rows start on multiples of 16 bytes".into())?;
    many_tiles(op, target.units)
}

/// Whether the blocks of a cluster multicast the keys of neighbouring tiles of heads that start anywhere.
pub(crate) fn unaligned_multicast(op: &Attention, tile: Tile, target: &Target) -> bool {
    shares_keys(op, tile, target.units)
}

/// Whether four warpgroups an SM, of 64 rows each, are worth taking, or why not. They are where they beat tiles of two or three warpgroups,
/// by waves of tiles. Measured, a wave of 256 rows takes 7/5 of the time of a wave of 192, and that 6/5 of a wave of 128. Causal tiles
/// differ from each other, and need many to even out.
pub(crate) fn small_head(op: &Attention, target: &Target) -> Worth {
    let units = u64::from(target.units.max(1));
    let (tiles, waves) = (work(op, ROWS), |rows: u64, room: u64| work(op, rows).div_ceil(room));
    // Persistent blocks begin a tile of one k-block while the one before ends.
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

/// Whether an SM has one block of four warpgroups, which all read the same keys, rather than two blocks of two.
pub(crate) fn one_block_of_four_groups(op: &Attention) -> bool {
    !op.causal && op.kv_len >= LEAST_TALL
}

/// Whether the kernels for many short sequences end to end are worth taking, or why not. Hopper's tiles take three quarters of their time
/// for heads of more than 32 elements.
pub(crate) fn varlen_short(op: &Attention, target: &Target) -> Worth {
    let longest = op.q_len.max(op.kv_len);
    when(longest <= LONGEST_SHORT, || format!("sequences of {longest}: it is for at most {LONGEST_SHORT}"))?;
    when(target.arch.0 < 90 || held(op.head_dim) < NARROW || op.q_len < GROUP, || format!("head_dim {}: tiles of Hopper take less time", op.head_dim))
}

/// Whether tiles of two heads are faster than `work` tiles of one, of `rows` rows each, on `blocks` blocks that run at once. They are where
/// most sequences leave room for two heads, while there are enough tiles. With four heads the last tiles end later.
pub(crate) fn two_short_heads(op: &Attention, rows: u64, work: u64, blocks: u64) -> bool {
    op.q_extent().1 <= op.batch * rows / 2 && work >= 2 * blocks
}

/// Whether Hopper's varlen tiles are worth taking, or why not.
pub(crate) fn varlen(op: &Attention, _: &Target) -> Worth {
    when(held(op.head_dim) >= NARROW, || format!("head_dim {}: it is measured for heads of 64 and 128", op.head_dim))
}

/// The fastest configuration of `sm90_varlen` on `units` SMs. Page numbers are read ahead where pages are small, or where clusters share
/// tiles. Elsewhere that was slower, by 1 to 7 %.
pub(crate) fn varlen_config(op: &Attention, units: u32) -> VarlenConfig {
    let groups = varlen_groups(op, units);
    let sharing = |work, steps| if groups == 2 { sharing(work, steps, units) } else { 1 };
    let tile = VarlenConfig::new(groups, false, 1).tile(op);
    let cluster = sharing(most_work(op, tile.rows()), op.kv_len.div_ceil(tile.keys()));
    let ahead = VarlenConfig::new(groups, true, cluster);
    if ahead.can_take(op).is_ok() && (box_keys(op) <= LEAST_BOX || cluster > 1) { ahead } else { VarlenConfig::new(groups, false, 1) }
}

/// The warpgroups of a varlen tile: three for narrow heads where that is faster, as in `sm90`. The count of tiles is exact where all
/// sequences have equally many queries, and a mean otherwise.
fn varlen_groups(op: &Attention, units: u32) -> u64 {
    let tiles = |rows: u64| match op.form {
        Form::Varlen(_) => op.heads * (op.q_extent().1 + op.batch * rows / 2) / rows,
        _ => op.heads * op.batch * op.q_len.div_ceil(rows),
    };
    let waves = |rows: u64| tiles(rows).div_ceil(u64::from(units.max(1)));
    if op.head_dim <= NARROW && 6 * waves(3 * GROUP) < 5 * waves(2 * GROUP) { 3 } else { 2 }
}

/// Whether warps of twice the rows are faster on Ampere. They are where there are enough for all SMs.
pub(crate) fn wide(op: &Attention, target: &Target) -> bool {
    op.q_len > sm80::ROWS && sm80::work(op, sm80::Tile::of(op).wide_rows()) >= u64::from(target.units)
}
