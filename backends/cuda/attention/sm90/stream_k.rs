//! Pairs of neighbouring tiles of `attention` on Hopper, whose keys the two blocks of a cluster share, and how clusters share them out.

use crate::backends::cuda::attention::sm90::schedule::{OneTile, cluster, shares_keys};
use crate::backends::cuda::attention::sm90::tile::{NARROW, ROWS, Tile};
use crate::ops::Attention;
use crate::ops::attention::Form;

/// Steps from which on two tiles of a causal sequence share them: the earlier one passes over a step more than it would alone.
const CAUSAL_STEPS: u64 = 64;
/// Steps that a cluster would wait for the last ones, on average, from which on tiles are cut: leaving a part and joining it takes as long as six.
const LEAST_WAIT: u64 = 7;
/// The longest head whose tiles are cut, in `kernels/attention/sm90/stream_k.cuh`.
const MOST_CUT: u64 = 192;
/// Blocks of a cluster, and parts of a tile.
const BLOCKS: u64 = 2;
const PARTS: u64 = 2;

/// A unit is a pair of tiles; of causal sequences two, one from a head's end and one from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamK {
    /// Units of a head, and of all.
    pub(crate) units: u64,
    pub(crate) work: u64,
    /// What they are taken by.
    pub(crate) clusters: u64,
    /// Whether the last ones are shared out by steps, so that all end at the same time.
    pub(crate) cut: bool,
}

impl StreamK {
    /// Those of an operation in which tiles share keys, on so many SMs.
    pub(crate) fn of(op: &Attention, tile: Tile, multiprocessors: u32) -> Option<Self> {
        let most = u64::from(multiprocessors) / BLOCKS;
        let units = op.q_len.div_ceil(Self::rows(op, tile));
        let work = op.batch * op.heads * units;
        if !(shares_keys(op, tile, multiprocessors) || shares_causal_keys(op, tile, multiprocessors) && work >= most) {
            return None;
        }
        let clusters = work.min(most);
        let keys = if op.causal { 2 * op.kv_len - op.q_len + 2 * ROWS } else { op.kv_len };
        let waiting = (work.next_multiple_of(clusters.max(1)) - work) * keys.div_ceil(tile.keys()) / clusters.max(1);
        Some(Self { units, work, clusters, cut: tile.held <= MOST_CUT && waiting >= LEAST_WAIT })
    }

    fn rows(op: &Attention, tile: Tile) -> u64 {
        BLOCKS * tile.rows() * if op.causal { 2 } else { 1 }
    }

    /// Of the workspace: what is summed over parts of tiles, two for each cluster. Counters of the warps' parts follow.
    pub(crate) fn parts_bytes(self, tile: Tile) -> u64 {
        if self.cut { self.clusters * BLOCKS * PARTS * tile.sums_bytes() } else { 0 }
    }

    pub(crate) fn bytes(self, tile: Tile) -> u64 {
        let counters = if self.cut { self.clusters * BLOCKS * tile.consumers * 4 * 4 } else { 0 };
        self.parts_bytes(tile) + counters
    }
}

/// Whether all units have as many steps, and many; where blocks have one tile each they are as fast.
fn shares_causal_keys(op: &Attention, tile: Tile, multiprocessors: u32) -> bool {
    let plain = matches!(op.form, Form::Dense) && op.causal && op.window.is_none() && op.head_dim > NARROW && tile.keys() == ROWS;
    let long = op.q_len.is_multiple_of(StreamK::rows(op, tile)) && op.kv_len >= op.q_len && op.kv_len >= CAUSAL_STEPS * ROWS;
    plain && long && cluster(op, multiprocessors) == 1 && OneTile::of(op, tile, multiprocessors).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    const UNITS: u32 = 132;

    fn of(heads: u64, tokens: u64, head_dim: u64, causal: bool) -> Option<StreamK> {
        let op = Attention { causal, ..Attention::dense(DType::F16, 1, [heads, heads], [tokens, tokens], head_dim) };
        StreamK::of(&op, Tile::of(&op, UNITS), UNITS)
    }

    #[test]
    fn tiles_are_cut_where_clusters_would_wait_for_one() {
        let cut = |heads, tokens, head_dim| of(heads, tokens, head_dim, false).map(|runs| runs.cut);
        assert_eq!([cut(32, 4096, 128), cut(32, 16_384, 128), cut(32, 2048, 128), cut(24, 4096, 128)], [Some(true), Some(true), Some(false), Some(false)]);
        assert_eq!([cut(32, 4096, 256), cut(32, 1024, 128), cut(32, 4096, 64)], [Some(false), None, None], "full registers, few steps, narrow heads");
        assert_eq!(of(32, 4096, 128, false), Some(StreamK { units: 16, work: 512, clusters: 66, cut: true }));
    }

    #[test]
    fn two_pairs_of_a_long_causal_sequence_are_one_unit() {
        assert_eq!(of(32, 8192, 128, true), Some(StreamK { units: 16, work: 512, clusters: 66, cut: true }));
        assert_eq!([of(32, 4096, 128, true), of(32, 8448, 128, true), of(2, 16_384, 128, true), of(32, 8192, 192, true)], [None; 4]);
        assert_eq!(of(8, 8192, 128, true), None, "a tile a block");
    }

    #[test]
    fn every_part_has_room() {
        let runs = StreamK { units: 16, work: 512, clusters: 66, cut: true };
        let tile = Tile { held: 128, consumers: 2 };
        // 16 warps of a cluster, two parts each, of 64 numbers and 4 a lane.
        assert_eq!((runs.parts_bytes(tile), runs.bytes(tile)), (66 * 16 * 2 * 32 * 68 * 4, 66 * 16 * (2 * 32 * 68 * 4 + 4)));
        assert_eq!(StreamK { cut: false, ..runs }.bytes(tile), 0);
    }
}
