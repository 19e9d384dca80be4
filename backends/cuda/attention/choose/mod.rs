//! The speed rules of `attention`, as measured: which variants are worth taking, and in which configuration. A variant itself says what its
//! kernels can compute.

mod cost;
mod decode;
#[cfg(test)]
mod random;
pub(crate) mod split_kv;
#[cfg(test)]
mod tests;
mod tiles;
mod varlen;
mod worth;

pub(crate) use decode::{decode, decode_block, decode_boxes, decode_boxes_config, decode_shallow, unsplit};
pub(crate) use tiles::tiles;
use tiles::{by_steps, many_tiles, shares_keys};
pub(crate) use varlen::{two_short_heads, varlen, varlen_config, varlen_short};
use worth::{Worth, when};

use crate::backends::cuda::attention::block_lists::listed;
use crate::backends::cuda::attention::repack::Rows;
use crate::backends::cuda::attention::sm80::tile as sm80;
use crate::backends::cuda::attention::sm90::tile::{GROUP, NARROW, ROWS, Tile, held, work};
use crate::backends::cuda::variant::Target;
use crate::ops::Attention;

/// Keys of a k-block of four warpgroups.
const SMALL_HEAD_KEYS: u64 = 128;
/// The fewest keys of a row for which a k-block is best read once for all warpgroups.
const LEAST_TALL: u64 = 2048;
/// The most keys of a causal row for which an uneven share of the last tiles of four warpgroups does not matter.
const MOST_CAUSAL: u64 = 512;

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

/// Whether warps of twice the rows are faster on Ampere. They are where there are enough for all SMs.
pub(crate) fn wide(op: &Attention, target: &Target) -> bool {
    op.q_len > sm80::ROWS && sm80::work(op, sm80::Tile::of(op).wide_rows()) >= u64::from(target.units)
}
