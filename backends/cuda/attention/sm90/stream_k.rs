//! Multicast pairs of neighbouring tiles of sm90 `attention`: how clusters share them, and stream-K for the last ones.

use crate::backends::cuda::attention::sm90::tile::{NARROW, ROWS, Tile};
use crate::ops::Attention;
use crate::ops::attention::Form;

/// The longest head whose tiles are cut, in `kernels/attention/sm90/stream_k.cuh`.
const MOST_CUT: u64 = 192;
/// The most k-blocks of a unit that is cut. For up to 90 clusters, 32 bits then count the k-blocks of two units a cluster, times the
/// clusters.
const MOST_CUT_STEPS: u64 = 1 << 18;
/// Blocks of a cluster, and parts of a tile.
const BLOCKS: u64 = 2;
const PARTS: u64 = 2;

/// How clusters share units. A unit is a pair of tiles, or of causal sequences two pairs, one from a head's end and one from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamK {
    /// Units of a head, and of all heads and sequences.
    pub(crate) units: u64,
    pub(crate) work: u64,
    /// Clusters of the launch.
    pub(crate) clusters: u64,
    /// Whether the last units are shared by k-blocks, so that all clusters end at the same time (stream-K).
    pub(crate) cut: bool,
}

impl StreamK {
    /// The units of an operation, on this many SMs. With `cut` the last ones are shared by k-blocks.
    pub(crate) fn of(op: &Attention, tile: Tile, multiprocessors: u32, cut: bool) -> Self {
        let units = op.q_len.div_ceil(Self::rows(op, tile));
        let work = op.batch * op.heads * units;
        Self { units, work, clusters: work.min(Self::most(multiprocessors)), cut }
    }

    /// Clusters that run at once.
    pub(crate) fn most(multiprocessors: u32) -> u64 {
        (u64::from(multiprocessors) / BLOCKS).max(1)
    }

    /// Rows of a unit.
    pub(crate) fn rows(op: &Attention, tile: Tile) -> u64 {
        BLOCKS * tile.rows() * if op.causal { 2 } else { 1 }
    }

    /// K-blocks of a unit.
    pub(crate) fn steps(op: &Attention, tile: Tile) -> u64 {
        let keys = if op.causal { 2 * op.kv_len - op.q_len + 2 * ROWS } else { op.kv_len };
        keys.div_ceil(tile.keys())
    }

    /// Whether the kernel can compute an operation, and with `cut` share its last units, or why not.
    pub(crate) fn can_take(op: &Attention, tile: Tile, cut: bool) -> std::result::Result<(), String> {
        if !matches!(op.form, Form::Dense) || op.window.is_some() {
            return Err("neighbouring tiles share their keys in the dense form without a window".into());
        }
        if tile.held <= NARROW {
            return Err(format!("head_dim {} <= {NARROW}: it is compiled for wider heads", op.head_dim));
        }
        // All units of a causal sequence have equally many k-blocks.
        if op.causal && (tile.keys() != ROWS || !op.q_len.is_multiple_of(Self::rows(op, tile)) || op.kv_len < op.q_len) {
            return Err(format!("causal sequences of no multiple of {} queries, or in steps of {} keys", Self::rows(op, tile), tile.keys()));
        }
        if cut && (tile.held > MOST_CUT || Self::steps(op, tile) > MOST_CUT_STEPS) {
            return Err(format!("tiles are cut of heads up to {MOST_CUT}, and {MOST_CUT_STEPS} steps"));
        }
        Ok(())
    }

    /// Bytes of the workspace for partial results, two for each cluster. Counters of the warps' parts follow.
    pub(crate) fn parts_bytes(self, tile: Tile) -> u64 {
        if self.cut { self.clusters * BLOCKS * PARTS * tile.sums_bytes() } else { 0 }
    }

    pub(crate) fn bytes(self, tile: Tile) -> u64 {
        let counters = if self.cut { self.clusters * BLOCKS * tile.consumers * 4 * 4 } else { 0 };
        self.parts_bytes(tile) + counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_room() {
        let runs = StreamK { units: 16, work: 512, clusters: 66, cut: true };
        let tile = Tile { held: 128, consumers: 2 };
        // 16 warps of a cluster, two parts each, of 64 numbers and 4 a lane.
        assert_eq!((runs.parts_bytes(tile), runs.bytes(tile)), (66 * 16 * 2 * 32 * 68 * 4, 66 * 16 * (2 * 32 * 68 * 4 + 4)));
        assert_eq!(StreamK { cut: false, ..runs }.bytes(tile), 0);
    }
}
