//! The configurations of `attention/sm90`: how blocks share the tiles, and what each configuration can compute.

use crate::backends::cuda::attention::sm90::block_sparse::Cut;
use crate::backends::cuda::attention::sm90::ready::rows_of_16_bytes;
use crate::backends::cuda::attention::sm90::schedule::{MOST_BLOCKS, grid_fits};
use crate::backends::cuda::attention::sm90::stream_k::StreamK;
use crate::backends::cuda::attention::sm90::tile::{NARROW, ROWS, Tile, held, work};
use crate::ops::Attention;
use crate::ops::attention::Form;

/// How thread blocks share the tiles of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Config {
    /// Persistent blocks take one tile after another, with this many warpgroups.
    Persistent(u64),
    /// The blocks of a cluster of this size share the keys of a tile.
    Cluster(u64),
    /// The two blocks of a cluster take neighbouring tiles. Each loads half of the keys and multicasts it to both.
    Multicast {
        /// Whether the last tiles are shared by k-blocks (stream-K).
        streamk: bool,
    },
    /// A block takes one tile.
    SingleTile,
    /// A block takes 64 rows from a causal head's end and 64 from its beginning.
    CausalPaired,
    /// Long rows of blocks are cut into parts (split-KV).
    SplitKv,
}

impl Config {
    pub(crate) const ALL: [Self; 10] = [
        Self::Persistent(2),
        Self::Persistent(3),
        Self::Cluster(2),
        Self::Cluster(4),
        Self::Cluster(8),
        Self::Multicast { streamk: false },
        Self::Multicast { streamk: true },
        Self::SingleTile,
        Self::CausalPaired,
        Self::SplitKv,
    ];

    /// The configuration's name in `--variant sm90:config`.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Persistent(2) => "persistent".into(),
            Self::Persistent(groups) => format!("persistent-{groups}wg"),
            Self::Cluster(blocks) => format!("cluster{blocks}"),
            Self::Multicast { streamk: false } => "multicast".into(),
            Self::Multicast { streamk: true } => "multicast-streamk".into(),
            Self::SingleTile => "single_tile".into(),
            Self::CausalPaired => "causal_paired".into(),
            Self::SplitKv => "split_kv".into(),
        }
    }

    /// What the configuration's kernel for an operation is compiled for.
    pub(crate) fn tile(self, op: &Attention) -> Tile {
        Tile { held: held(op.head_dim), consumers: if let Self::Persistent(groups) = self { groups } else { 2 } }
    }

    /// Whether the kernel can compute an operation that the tiles can, or why not. `op` has no map.
    pub(crate) fn can_take(self, op: &Attention) -> std::result::Result<(), String> {
        let tile = self.tile(op);
        match self {
            Self::Persistent(2) => Ok(()),
            Self::Persistent(_) if !matches!(op.form, Form::Dense) || tile.held > NARROW => {
                Err(format!("three groups are for dense heads of {NARROW} at most"))
            }
            Self::Persistent(_) => Ok(()),
            Self::Cluster(blocks) if work(op, ROWS).saturating_mul(blocks) > MOST_BLOCKS => Err(format!("a grid of more than {MOST_BLOCKS} blocks")),
            Self::Cluster(_) => Ok(()),
            Self::Multicast { streamk } => StreamK::can_take(op, tile, streamk),
            Self::SingleTile | Self::CausalPaired => self.can_take_one_tile(op, tile),
            Self::SplitKv => Cut::of(op, 1).map(drop),
        }
    }

    /// Whether a kernel whose blocks have one tile can compute the operation, or why not. Only a tile's last k-block may hold masked keys,
    /// and O leaves by TMA.
    fn can_take_one_tile(self, op: &Attention, tile: Tile) -> std::result::Result<(), String> {
        let paired = self == Self::CausalPaired;
        if !matches!(op.form, Form::Dense) || op.window.is_some() {
            return Err("a block takes one tile of the dense form without a window".into());
        }
        if paired && !op.causal {
            return Err("it pairs tiles of causal sequences".into());
        }
        if op.causal && !diagonal_in_corners(op, tile) {
            return Err(format!("the diagonal does not run through corners of steps of {ROWS} keys"));
        }
        if !rows_of_16_bytes(op) {
            return Err("rows of o do not start on multiples of 16 bytes".into());
        }
        grid_fits(op, if paired { 0 } else { op.q_len.div_ceil(ROWS) })
    }
}

/// Whether the diagonal of a causal sequence runs through corners of k-blocks.
pub(crate) fn diagonal_in_corners(op: &Attention, tile: Tile) -> bool {
    tile.keys() == ROWS && op.kv_len >= op.q_len && (op.kv_len - op.q_len).is_multiple_of(ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    fn able(op: &Attention) -> Vec<String> {
        Config::ALL.into_iter().filter(|config| config.can_take(op).is_ok()).map(Config::name).collect()
    }

    #[test]
    fn what_each_can_compute_follows_from_the_operation_alone() {
        let op = |tokens, head_dim| Attention::dense(DType::F16, 1, [8, 8], [tokens, tokens], head_dim);
        let clusters = ["cluster2", "cluster4", "cluster8"];
        let with = |first: &[&'static str], last: &[&'static str]| [first, &clusters, last].concat();
        assert_eq!(able(&op(99, 128)), with(&["persistent"], &["multicast", "multicast-streamk", "single_tile"]));
        assert_eq!(able(&op(99, 256)), with(&["persistent"], &["multicast", "single_tile"]), "full registers");
        assert_eq!(able(&op(99, 64)), with(&["persistent", "persistent-3wg"], &["single_tile"]), "narrow heads");
        assert_eq!(able(&op(99, 107)), with(&["persistent"], &["multicast", "multicast-streamk"]), "rows of o start anywhere");
        let causal = |tokens| Attention { causal: true, ..op(tokens, 128) };
        assert_eq!(able(&causal(512)), with(&["persistent"], &["multicast", "multicast-streamk", "single_tile", "causal_paired"]));
        assert_eq!(able(&causal(500)), with(&["persistent"], &["single_tile", "causal_paired"]));
        assert_eq!(able(&Attention { kv_len: 600, ..causal(512) }), with(&["persistent"], &["multicast", "multicast-streamk"]));
        assert_eq!(able(&Attention { window: Some(9), ..causal(512) }), with(&["persistent"], &[]));
    }
}
