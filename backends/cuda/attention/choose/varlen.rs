//! The tiles of `attention` over sequences of lengths that only the device knows, with many queries: the speed rules of `sm80_varlen_short` and
//! `sm90_varlen`.

use crate::backends::cuda::attention::choose::tiles::sharing;
use crate::backends::cuda::attention::choose::worth::{Worth, when};
use crate::backends::cuda::attention::sm90::tile::{GROUP, NARROW, held};
use crate::backends::cuda::attention::sm90::varlen_tile::{Config, LEAST_BOX, box_keys, most_work};
use crate::backends::cuda::variant::Target;
use crate::ops::Attention;
use crate::ops::attention::Form;

/// The longest of many short sequences. For longer ones, blocks with all keys would be better, and more rows a warp.
const LONGEST_SHORT: u64 = 512;
/// The widest heads of which Hopper's tiles would be padded to four times the elements.
const NARROWEST: u64 = 16;

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

/// Whether Hopper's varlen tiles are worth taking, or why not. Heads of 32 take 0.4 to 0.9 of the time of Ampere's tiles, though they are padded to
/// 64 elements; narrower ones were not measured.
pub(crate) fn varlen(op: &Attention, _: &Target) -> Worth {
    when(op.head_dim > NARROWEST, || format!("head_dim {}: tiles are padded to {NARROW}", op.head_dim))
}

/// The fastest configuration of `sm90_varlen` on `units` SMs. Page numbers are read ahead where pages are small, or where clusters share
/// tiles. Elsewhere that was slower, by 1 to 7 %.
pub(crate) fn varlen_config(op: &Attention, units: u32) -> Config {
    let groups = varlen_groups(op, units);
    let sharing = |work, steps| if groups == 2 { sharing(work, steps, units) } else { 1 };
    let tile = Config::new(groups, false, 1).tile(op);
    let cluster = sharing(most_work(op, tile.rows()), op.kv_len.div_ceil(tile.keys()));
    let ahead = Config::new(groups, true, cluster);
    if ahead.can_take(op).is_ok() && (box_keys(op) <= LEAST_BOX || cluster > 1) { ahead } else { Config::new(groups, false, 1) }
}

/// The warpgroups of a varlen tile: three for narrow heads where that is faster. A tile of 192 rows was measured to take 5/4 of the time of one
/// of 128. The count of tiles is exact where all sequences have equally many queries, and a mean otherwise.
fn varlen_groups(op: &Attention, units: u32) -> u64 {
    let tiles = |rows: u64| match op.form {
        Form::Varlen(_) => op.heads * (op.q_extent().1 + op.batch * rows / 2) / rows,
        _ => op.heads * op.batch * op.q_len.div_ceil(rows),
    };
    let waves = |rows: u64| tiles(rows).div_ceil(u64::from(units.max(1)));
    if op.head_dim <= NARROW && 5 * waves(3 * GROUP) < 4 * waves(2 * GROUP) { 3 } else { 2 }
}
