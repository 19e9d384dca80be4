//! Products of a few rows by a matrix that is read once: tiles, cuts and parameters of `kernels/gemm/sm90/skinny.cuh` and its ring of
//! stages.

use crate::backends::cuda::gemm::problem::{GemmParams, Product};
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::variant::Launch;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::tensor_map::{Layout, Promotion, Swizzle};
use crate::dtype::DType;
use crate::error::Result;

params! {
    /// Parameters of a product in a launch of its own.
    SkinnyParams {
        gemm: GemmParams,
        tile_rows: u32,
        /// Whether W stays in L2.
        keeps: u32,
        /// Whether W and bias are read before the PDL wait.
        ahead: u32,
    }
}

/// The shape of a block's stages: how many rows of X and of W it has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SkinnyShape {
    pub(super) tokens: u64,
    pub(super) weight_rows: u64,
    stages: u64,
    cluster: u64,
    /// Bytes of a stage for what lies beside X and W.
    beside: u64,
}

impl SkinnyShape {
    /// The shapes with the most stages that fit into 227 KiB.
    pub(crate) const ALL: [Self; 4] = [Self::new(16, 6), Self::new(32, 5), Self::new(64, 4), Self::new(128, 3)];
    /// The most rows of X.
    pub(crate) const MOST_ROWS: u64 = 128;
    const THREADS: u32 = 384;
    /// Blocks of a cluster. Two SMs share a texture processing cluster, so clusters of two leave no SM out.
    pub(super) const CLUSTER: u64 = 2;
    /// The most rows of a tile of W.
    const WEIGHT_ROWS: u64 = 128;
    /// The most rows of a tile of W with split-K.
    pub(super) const SPLIT_ROWS: u64 = 64;
    const DEPTH: u64 = 128;
    /// The fewest tokens for which a stage has no more room than a tile takes.
    const FITTED_ROWS: u64 = 128;
    /// The fewest stages of a block that shares its memory with other data.
    const LEAST_STAGES: u64 = 3;
    const MOST_STAGES: u64 = 8;

    const fn new(tokens: u64, stages: u64) -> Self {
        Self { tokens, weight_rows: Self::WEIGHT_ROWS, stages, cluster: Self::CLUSTER, beside: 0 }
    }

    /// Rows of W that a stage has room for, by `tile_rows` and whether K is split. Two warpgroups that take different rows read past those
    /// of a smaller stage, and leave unused what they find there.
    pub(crate) const fn weight_rows_for(tile_rows: u32, split: bool) -> u64 {
        match tile_rows {
            _ if split => Self::SPLIT_ROWS,
            ..=96 => 96,
            _ => Self::WEIGHT_ROWS,
        }
    }

    /// Every room that `weight_rows_for` gives, and whether K is split.
    pub(crate) const WEIGHT_ROWS_FOR: [(u64, bool); 3] = [(Self::SPLIT_ROWS, true), (96, false), (Self::WEIGHT_ROWS, false)];

    /// A shape with room for `weight_rows` of W and `beside` bytes of other data. It has as many stages as `room` bytes hold, up to a count
    /// at which enough of W is in flight.
    pub(crate) fn within(room: u64, tokens: u64, weight_rows: u64, beside: u64) -> Option<Self> {
        let tile = Self { tokens, weight_rows, stages: 0, cluster: Self::CLUSTER, beside };
        let stages = (room.checked_sub(tile.shared_bytes().into())? / tile.stage_bytes()).min(Self::MOST_STAGES);
        (stages >= Self::LEAST_STAGES).then_some(Self { stages, ..tile })
    }

    /// This shape for clusters of four with split-K. A block takes half of the stages of a cluster of two.
    pub(crate) const fn quartered(self) -> Self {
        Self { cluster: 4, ..self }
    }

    /// Whether columns so few and a K so long are worth clusters of four. Some SMs find no place in such clusters.
    pub(crate) const fn quarters(columns: u64, depth: u64, units: u32) -> bool {
        depth > 4096 && columns <= Self::quarter_clusters(units) * Self::SPLIT_ROWS
    }

    /// Clusters of four that surely fit: 30 of 33 do on an H200.
    pub(crate) const fn quarter_clusters(units: u32) -> u64 {
        units as u64 / 4 * 7 / 8
    }

    /// Blocks of a cluster.
    pub(crate) const fn cluster(&self) -> u64 {
        self.cluster
    }

    /// The smallest shape for this many rows of X.
    pub(crate) fn choose(rows: u64) -> Self {
        Self::ALL.into_iter().find(|tile| rows <= tile.tokens).unwrap_or(Self::ALL[3])
    }

    /// This shape with only the room that tiles of `tile_rows` rows of W take, and more stages in its place. It changes where tokens take
    /// half of a stage, which leaves little of W in flight.
    pub(crate) fn fitted(self, tile_rows: u32, split: bool) -> Self {
        if self.tokens < Self::FITTED_ROWS { self } else { self.filled(tile_rows, split) }
    }

    /// [`Self::fitted`] for any number of tokens. Where launches follow each other, more stages are requested before the launch before has
    /// ended.
    pub(crate) fn filled(self, tile_rows: u32, split: bool) -> Self {
        Self::within(227 << 10, self.tokens, Self::weight_rows_for(tile_rows, split), 0).unwrap_or(self)
    }

    /// This shape for tiles of at most 64 rows that both warpgroups of a block take: room for 64 rows, and more stages. It stays as it is
    /// at 16 tokens, where W has most of a stage, and at 128, which would gain no stage.
    pub(crate) fn grouped(self) -> Self {
        match self.tokens {
            32 | 64 => Self::within(227 << 10, self.tokens, Self::SPLIT_ROWS, 0).unwrap_or(self),
            _ => self,
        }
    }

    /// Every shape of tiles that both warpgroups of a block take.
    pub(crate) fn all_grouped() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().map(|tile| tile.fitted(Self::SPLIT_ROWS as u32, false).grouped())
    }

    /// Every shape that `fit`, which is `fitted` or `filled`, makes for split-K tiles or for others.
    pub(crate) fn every(split: bool, fit: fn(Self, u32, bool) -> Self) -> Vec<Self> {
        let rows = Self::WEIGHT_ROWS_FOR.into_iter().filter(|(_, of)| *of == split).map(|(rows, _)| rows as u32);
        let mut all: Vec<_> = rows.flat_map(|rows| Self::ALL.map(|tile| fit(tile, rows, split))).collect();
        all.sort_by_key(|tile| (tile.tokens, tile.weight_rows));
        all.dedup();
        all
    }

    /// Whether the kernels can compute this product, or why not. `strides` are elements from row to row of X and of W.
    pub(crate) fn supports(dtype: DType, [rows, columns, depth]: [u64; 3], strides: [u64; 2]) -> std::result::Result<(), String> {
        if rows > Self::MOST_ROWS {
            return Err(format!("{rows} rows > {}: it is no longer the weights' bytes that take the time", Self::MOST_ROWS));
        }
        strides.into_iter().try_for_each(|stride| WgmmaTile::reads(dtype, columns, depth, stride))
    }

    const fn stage_bytes(&self) -> u64 {
        // Three barriers.
        (self.weight_rows + self.tokens) * Self::DEPTH * 2 + self.beside + 24
    }

    pub(crate) fn shared_bytes(&self) -> u32 {
        // The first stage may skip up to 1,024 bytes to start at a multiple of 1,024.
        (self.stages * self.stage_bytes() + 1024) as u32
    }

    pub(crate) fn defines(&self, split: bool) -> Vec<(&'static str, String)> {
        let values = [
            ("TOKENS", self.tokens),
            ("SKINNY_ROWS", self.weight_rows),
            ("SKINNY_STAGES", self.stages),
            ("SKINNY_CLUSTER", self.cluster),
            ("SKINNY_BESIDE", self.beside),
        ];
        values.map(|(name, value)| (name, value.to_string())).into_iter().chain([("SKINNY_SPLIT", split.to_string())]).collect()
    }

    /// The shape as names of units write it.
    pub(crate) fn name(&self) -> String {
        let Self { tokens, weight_rows, .. } = self;
        if *weight_rows == Self::WEIGHT_ROWS { format!("{tokens} rows") } else { format!("{tokens} rows, {weight_rows} of W") }
    }

    /// Rows of W that a stage has room for.
    pub(crate) const fn weight_rows(&self) -> u64 {
        self.weight_rows
    }

    /// Clusters that fill this many SMs.
    pub(crate) const fn clusters(units: u32) -> u64 {
        let clusters = units as u64 / Self::CLUSTER;
        if clusters == 0 { 1 } else { clusters }
    }

    /// Whether the last product of an MLP with this many columns is split along K. Narrow tiles would each read all of X for few rows of W.
    pub(crate) const fn splits(columns: u64, clusters: u64) -> bool {
        columns <= clusters * Self::SPLIT_ROWS
    }

    /// Whether each block has one tile, of so few rows that one warpgroup would multiply it alone. Then both warpgroups take the tile, half
    /// of a stage each.
    pub(crate) const fn by_groups(columns: u64, clusters: u64) -> bool {
        columns <= clusters * Self::CLUSTER * Self::SPLIT_ROWS
    }

    /// Rows of a tile of W, where `columns` rows are dealt to `clusters` and a stage has room for any of them.
    pub(crate) fn tile_rows(columns: u64, clusters: u64, split: bool) -> u32 {
        if split { Self::rows_of(columns, clusters, columns) } else { Self::rows_of(columns, clusters * Self::CLUSTER, Self::WEIGHT_ROWS) }
    }

    /// Rows of a tile of W for `lots` takers. Each takes as few tiles of at most `most` rows as cover its share.
    pub(super) fn rows_of(columns: u64, lots: u64, most: u64) -> u32 {
        columns.div_ceil(lots * columns.div_ceil(lots * most)).next_multiple_of(4).max(8) as u32
    }

    /// Clusters that have work.
    pub(crate) const fn clusters_of(columns: u64, tile_rows: u32, split: bool) -> u64 {
        let tiles = columns.div_ceil(tile_rows as u64);
        if split { tiles } else { tiles.div_ceil(Self::CLUSTER) }
    }

    /// The parameters of a product, with its tensor maps.
    pub(crate) fn params(&self, product: &Product<'_>, tile_rows: u32) -> Result<GemmParams> {
        let map = |slice, rows: u64, stride: u64, box_rows: u64| {
            let box_dims = [64, box_rows as u32];
            Layout {
                dtype: product.dtype,
                dims: &[product.depth, rows],
                strides: &[stride],
                box_dims: &box_dims,
                swizzle: Swizzle::B128,
                promotion: Promotion::B128,
            }
            .encode(slice)
        };
        let parts = if product.gate.is_some() { 1 } else { 2 };
        let mut params = product.params();
        params.x_map = map(&product.x, product.rows, product.x_stride, (self.tokens * parts / self.cluster).max(8))?;
        params.w_map = map(&product.w, product.columns, product.w_stride, u64::from(tile_rows))?;
        if let Some(gate) = &product.gate {
            params.gate_map = map(gate, product.columns, product.w_stride, u64::from(tile_rows))?;
        }
        Ok(params)
    }

    /// The launch on this many clusters.
    pub(crate) fn launch(&self, clusters: u64) -> Launch {
        let grid = (clusters * self.cluster) as u32;
        Launch { shared_bytes: self.shared_bytes(), cluster: [self.cluster as u32, 1, 1], ..Launch::new(grid, Self::THREADS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_fit_and_take_every_count_of_rows() {
        for tile in SkinnyShape::ALL {
            assert!(tile.shared_bytes() <= 227 << 10, "{tile:?}: {}", tile.shared_bytes());
        }
        for (split, count) in [(true, 4), (false, 5)] {
            let fitted = SkinnyShape::every(split, SkinnyShape::fitted);
            assert_eq!(fitted.len(), count, "{fitted:?}");
            assert!(fitted.iter().all(|tile| tile.shared_bytes() <= 227 << 10 && tile.stages >= SkinnyShape::LEAST_STAGES), "{fitted:?}");
        }
        // Tiles of 4,096 and 11,008 outputs on 132 SMs, and a larger one.
        for (rows, split, stages) in [(64, true, 4), (84, false, 4), (108, false, 3)] {
            let tile = SkinnyShape::choose(128).fitted(rows, split);
            assert_eq!(tile.stages, stages, "{rows}");
            assert!(tile.weight_rows >= rows.into() && SkinnyShape::every(split, SkinnyShape::fitted).contains(&tile));
        }
        let filled = [(16, 8), (32, 7), (64, 5), (128, 4)];
        for (tokens, stages) in filled {
            let tile = SkinnyShape::choose(tokens).filled(84, false);
            assert_eq!(tile.stages, stages, "{tokens}");
            assert!(SkinnyShape::every(false, SkinnyShape::filled).contains(&tile));
        }
        for rows in 0..=SkinnyShape::MOST_ROWS {
            assert!(SkinnyShape::choose(rows).tokens >= rows);
        }
        assert!(SkinnyShape::supports(DType::F16, [129, 64, 64], [64; 2]).is_err());
        assert!(SkinnyShape::supports(DType::F16, [1, 64, 4095], [4096, 4095]).is_err());
        assert!(SkinnyShape::supports(DType::F16, [1, 64, 4095], [4096; 2]).is_ok());
    }

    #[test]
    fn a_block_gets_one_tile_where_one_would_do() {
        for columns in [1, 7, 33, 512, 4096, 4097, 8192, 8448, 8449, 11008, 16896, 16897, 32000] {
            let split = SkinnyShape::splits(columns, 66);
            for split in [split, false] {
                let rows = SkinnyShape::tile_rows(columns, 66, split);
                assert!((8..=if split { 64 } else { 128 }).contains(&rows) && rows.is_multiple_of(2), "{columns}: {rows}");
                assert!(columns > 132 * 128 || SkinnyShape::clusters_of(columns, rows, split) <= 66, "{columns}: {rows}");
            }
        }
        assert_eq!(SkinnyShape::tile_rows(11008, 66, false), 84, "132 tiles for 132 multiprocessors");
    }
}
