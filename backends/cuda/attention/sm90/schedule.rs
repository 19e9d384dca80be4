//! Which tiles of `attention` on Hopper a block of threads takes, and what it shares with others.

use crate::backends::cuda::attention::sm90::tile::{NARROW, ROWS, Tile, held, keys, work};
use crate::ops::Attention;
use crate::ops::attention::Form;

/// Steps from which on two tiles share them.
const SHARED_STEPS: u64 = 16;
/// Bytes of keys and values that stay in L2, of 50 MB.
const CACHED_BYTES: u64 = 24 << 20;
/// Blocks that take one tile each begin sooner than those that stay, which begin a tile while the one before ends: they are taken up to one tile an SM
/// for so many steps of each, and so many tiles at most.
const ROUND_STEPS: u64 = 4;
const MOST_ROUNDS: u64 = 4;
/// Bytes of keys and values that are read again while L2 still has them, where all heads are taken side by side.
const SIDE_BY_SIDE_BYTES: u64 = 40 << 20;
/// Blocks along the second and third axis of a grid.
const MOST_ALONG: u64 = 65_535;
/// Parts of a chip (GPCs) in which clusters lie.
const PARTS: u64 = 8;

/// Heads whose keys and values fit L2 together, with room for what else goes through it.
pub(crate) fn band(op: &Attention) -> u64 {
    let keys = 2 * op.kv_len * op.head_dim * op.dtype.size();
    let together = (CACHED_BYTES / keys.max(1)).max(1) * (op.heads / op.kv_heads);
    together.min(op.batch * op.heads).max(1)
}

/// Steps of a tile, as far as the shape tells.
pub(crate) fn mean_steps(op: &Attention) -> u64 {
    match op.form {
        Form::Blocks(shape) => u64::from(shape.capacity / (shape.patterns * shape.q_blocks).max(1)),
        _ => op.kv_len.div_ceil(keys(held(op.head_dim))),
    }
}

/// Blocks that share the keys of a tile: as many as fill the GPU at once, as long as each has four steps. A cluster lies in one part of the chip,
/// whose SMs are an even number: some of each part may be left over.
pub(crate) fn cluster(op: &Attention, units: u32) -> u64 {
    sharing(work(op, ROWS), mean_steps(op), units)
}

/// The same of so many tiles of so many steps.
pub(crate) fn sharing(tiles: u64, steps: u64, units: u32) -> u64 {
    [8, 4, 2].into_iter().find(|&size| tiles * size + PARTS * (size - 2) <= u64::from(units) && steps >= 4 * size).unwrap_or(1)
}

/// Whether the two blocks of a cluster take neighbouring tiles of a head and share its keys, which halves what is asked of L2.
/// It pays where there are many steps, and where all of a pair's are wanted by both; heads that [`Tile::of`] has three groups for ask for less.
pub(crate) fn shares_keys(op: &Attention, tile: Tile, units: u32) -> bool {
    let (all_seen, tiles) = (matches!(op.form, Form::Dense) && !op.causal && op.window.is_none(), op.q_len.div_ceil(tile.rows()));
    // Of an odd number of tiles the last pair has one.
    let paired = tiles > 1 && (tiles.is_multiple_of(2) || tiles >= 32);
    all_seen && paired && op.head_dim > NARROW && op.kv_len.div_ceil(tile.keys()) >= SHARED_STEPS && cluster(op, units) == 1
}

/// How tiles are taken where each block of threads has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OneTile {
    /// 64 rows from a head's end and 64 from its beginning, so that of causal sequences with one tile an SM none takes longest.
    CausalPaired,
    /// By heads, sequences and tiles, so that the longest come first.
    LateFirst,
    /// By tiles, heads and sequences.
    InOrder,
}

impl OneTile {
    /// Where it takes less time than blocks that stay: only a tile's last step has keys that some row does not see, and tiles are few.
    pub(crate) fn of(op: &Attention, tile: Tile, units: u32) -> Option<Self> {
        let tiles = work(op, ROWS);
        if !matches!(op.form, Form::Dense) || op.window.is_some() || tile.rows() != ROWS || cluster(op, units) > 1 {
            return None;
        }
        // Narrow heads that are not causal are not worth it: measured.
        let rounds = if op.causal || op.head_dim > NARROW { (op.kv_len / tile.keys() / ROUND_STEPS).clamp(1, MOST_ROUNDS) } else { 1 };
        if tiles > rounds * u64::from(units) {
            return None;
        }
        if !op.causal {
            return Some(Self::InOrder);
        }
        // Where the diagonal runs through corners of steps.
        let aligned = tile.keys() == ROWS && op.kv_len >= op.q_len && (op.kv_len - op.q_len).is_multiple_of(ROWS);
        let side_by_side = op.batch * op.kv_heads * op.kv_len * op.head_dim * 2 * op.dtype.size() <= SIDE_BY_SIDE_BYTES;
        match (op.q_len > ROWS && tiles <= units.into(), aligned, side_by_side) {
            (true, true, _) => Some(Self::CausalPaired),
            (false, true, true) => Some(Self::LateFirst),
            _ => None,
        }
    }

    pub(crate) fn grid(self, op: &Attention, tiles: u32) -> [u32; 3] {
        let (heads, batch) = (op.heads as u32, op.batch as u32);
        if self == Self::LateFirst { [heads, batch, tiles] } else { [tiles, heads, batch] }
    }
}

/// Whether a grid with heads and sequences as its second and third axes, or tiles as its third, can be launched.
pub(crate) fn grid_fits(op: &Attention, tiles: u64) -> std::result::Result<(), String> {
    let longest = op.heads.max(op.batch).max(if op.causal { tiles } else { 0 });
    if longest > MOST_ALONG { Err(format!("a grid of {longest} blocks along an axis: at most {MOST_ALONG}")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    const UNITS: u32 = 132;

    #[test]
    fn few_tiles_are_shared_by_clusters() {
        let op = |heads, queries, keys| Attention::dense(DType::F16, 1, [heads, heads], [queries, keys], 64);
        let of = |heads, queries, keys| cluster(&op(heads, queries, keys), UNITS);
        assert_eq!((of(32, 4096, 4096), of(1, 8192, 8192), of(1, 1024, 4096), of(8, 512, 512)), (1, 2, 8, 1));
        assert_eq!((of(1, 2048, 4096), of(1, 4096, 4096)), (4, 2), "more of four and eight may not find room at once");
    }

    #[test]
    fn long_rows_of_keys_are_shared_by_two_tiles() {
        let op = |queries, keys, head_dim| Attention::dense(DType::F16, 1, [32, 8], [queries, keys], head_dim);
        let of = |op: &Attention| shares_keys(op, Tile::of(op, UNITS), UNITS);
        assert!(of(&op(2048, 2048, 128)) && of(&op(512, 4096, 65)) && of(&op(8064, 8064, 128)));
        assert!(!of(&op(1024, 1024, 128)) && !of(&op(4096, 4096, 64)) && !of(&op(384, 4096, 128)), "few steps, narrow heads, three tiles");
        assert!(!of(&Attention { causal: true, ..op(4096, 4096, 128) }) && !of(&Attention { window: Some(3000), ..op(4096, 4096, 128) }));
        assert!(!of(&Attention { heads: 2, kv_heads: 2, ..op(4096, 4096, 128) }), "a cluster shares one tile");
    }

    #[test]
    fn few_tiles_are_one_a_block() {
        use OneTile::{CausalPaired, InOrder, LateFirst};
        let op = |heads, tokens| Attention { causal: true, ..Attention::dense(DType::F16, 1, [heads, heads], [tokens, tokens], 128) };
        let of = |op: &Attention| OneTile::of(op, Tile::of(op, UNITS), UNITS);
        let each = |all: &[(u64, u64)]| all.iter().map(|&(heads, tokens)| of(&op(heads, tokens))).collect::<Vec<_>>();
        assert_eq!(
            each(&[(32, 512), (16, 1000), (32, 1024), (32, 2048), (32, 128)]),
            [Some(CausalPaired), Some(CausalPaired), Some(LateFirst), Some(LateFirst), Some(LateFirst)]
        );
        assert_eq!(each(&[(2, 4096), (34, 500), (32, 4096)]), [None, None, None], "clusters, short tiles, many tiles");
        let whole = |heads, tokens| Attention { causal: false, ..op(heads, tokens) };
        assert_eq!([of(&whole(32, 512)), of(&whole(32, 1024)), of(&whole(64, 512)), of(&whole(2, 4096))], [Some(InOrder), Some(InOrder), None, None]);
        assert_eq!([of(&Attention { head_dim: 64, ..whole(32, 1024) }), of(&Attention { head_dim: 64, ..op(32, 1024) })], [None, Some(LateFirst)]);
        assert_eq!([of(&Attention { window: Some(99), ..op(32, 512) }), of(&Attention { kv_len: 600, ..op(32, 512) })], [None, None]);
    }

    #[test]
    fn heads_are_taken_together_while_their_keys_are_cached() {
        let op = |heads, keys| Attention::dense(DType::F16, 2, heads, [keys, keys], 128);
        assert_eq!([band(&op([32, 32], 16384)), band(&op([32, 8], 16384)), band(&op([32, 32], 512))], [3, 12, 64]);
    }
}
