//! The order in which thread blocks of sm90 `attention` take tiles.

use crate::ops::Attention;

/// Bytes of keys and values that stay in L2, which has 50 MB.
const CACHED_BYTES: u64 = 24 << 20;
/// The most blocks along the second and third axis of a grid, and along the first.
const MOST_ALONG: u64 = 65_535;
pub(crate) const MOST_BLOCKS: u64 = 1 << 30;

/// Heads whose keys and values fit L2 together, with room for other data.
pub(crate) fn band(op: &Attention) -> u64 {
    let keys = 2 * op.kv_len * op.head_dim * op.dtype.size();
    let together = (CACHED_BYTES / keys.max(1)).max(1) * (op.heads / op.kv_heads);
    together.min(op.batch * op.heads).max(1)
}

/// The grid of blocks with one tile each. For causal sequences its axes are heads, sequences and tiles, so that the longest tiles come
/// first. Otherwise they are tiles, heads and sequences.
pub(crate) fn one_tile_grid(op: &Attention, tiles: u32) -> [u32; 3] {
    let (heads, batch) = (op.heads as u32, op.batch as u32);
    if op.causal { [heads, batch, tiles] } else { [tiles, heads, batch] }
}

/// The grid of blocks that take 64 rows from a head's end and 64 from its beginning.
pub(crate) fn paired_grid(op: &Attention, tiles: u32) -> [u32; 3] {
    [tiles, op.heads as u32, op.batch as u32]
}

/// Whether a grid can be launched whose second and third axes are heads and sequences, or whose third is tiles.
pub(crate) fn grid_fits(op: &Attention, tiles: u64) -> std::result::Result<(), String> {
    let longest = op.heads.max(op.batch).max(if op.causal { tiles } else { 0 });
    if longest > MOST_ALONG { Err(format!("a grid of {longest} blocks along an axis: at most {MOST_ALONG}")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    #[test]
    fn heads_are_taken_together_while_their_keys_are_cached() {
        let op = |heads, keys| Attention::dense(DType::F16, 2, heads, [keys, keys], 128);
        assert_eq!([band(&op([32, 32], 16384)), band(&op([32, 8], 16384)), band(&op([32, 32], 512))], [3, 12, 64]);
    }
}
