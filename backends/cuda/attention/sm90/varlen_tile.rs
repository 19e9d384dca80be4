//! The tiles of `attention` on Hopper over sequences of their own lengths, how many there may be, and what brings their keys.

use crate::backends::cuda::attention::sm90::schedule::sharing;
use crate::backends::cuda::attention::sm90::tile::{GROUP, NARROW, Tile, held, keys};
use crate::ops::Attention;
use crate::ops::attention::Form;

/// The least keys of a box, and what those of pages come in at most.
pub(crate) const LEAST_BOX: u64 = 16;

/// Three groups for narrow heads where that takes less time, as in [`Tile::of`], by the tiles that there are on average.
pub(crate) fn tile(op: &Attention, units: u32) -> Tile {
    let waves = |rows: u64| (op.heads * (op.q_extent().0 * op.q_extent().1 + op.batch * rows / 2)).div_ceil(rows * u64::from(units.max(1)));
    let three = op.head_dim <= NARROW && 6 * waves(3 * GROUP) < 5 * waves(2 * GROUP);
    Tile { held: held(op.head_dim).max(NARROW), consumers: if three { 3 } else { 2 } }
}

/// Keys of a box.
pub(crate) fn box_keys(op: &Attention) -> u64 {
    let step = keys(held(op.head_dim).max(NARROW));
    match op.form {
        Form::Paged(shape) => 1 << shape.page.trailing_zeros().min(step.trailing_zeros()),
        _ => step,
    }
}

/// Tiles of all heads, at most: how long each sequence is only the device knows.
pub(crate) fn most_work(op: &Attention, rows: u64) -> u64 {
    let each = op.batch * op.q_len.div_ceil(rows);
    let all = match op.form {
        Form::Varlen(shape) => each.min((shape.total_q + op.batch * (rows - 1)) / rows),
        _ => each,
    };
    all * op.heads
}

/// Blocks that share the keys of a tile, where there are few.
pub(crate) fn cluster(op: &Attention, tile: Tile, units: u32) -> u64 {
    if tile.consumers == 2 { sharing(most_work(op, tile.rows()), op.kv_len.div_ceil(tile.keys()), units) } else { 1 }
}
