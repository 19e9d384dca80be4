//! Which tile of `kernels/tile/wgmma_gemm.cuh` a product of `linear` takes, and into how many parts its K is cut: what the model below
//! says takes the least time. One model for every shape: tiles, rounds of multiprocessors, steps of K, bytes, and the exchange of sums.

use super::kernel::Target;
use super::stream::StreamTile;
use super::wgmma::WgmmaTile;

/// A product of `linear`: rows of X, outputs, K.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub rows: u64,
    pub outputs: u64,
    pub depth: u64,
}

/// What an H200 takes, in microseconds, as measured at Llama-2's projections.
mod cost {
    /// From a launch to its first products, and from the last outputs to the next launch.
    pub(super) const LAUNCH: f64 = 7.0;
    /// A step of 64 elements of K, and more for every column of a tile.
    pub(super) const STEP: f64 = 0.012;
    pub(super) const COLUMN: f64 = 0.0025;
    /// A tile's outputs; and, where there are several rounds, what the widest tiles gain on all others.
    pub(super) const OUTPUTS: f64 = 1.2;
    pub(super) const NARROWER: f64 = 1.03;
    /// Bytes a microsecond from memory, as W is streamed, and as tiles read it; of that, the part that is lost with no multiprocessor at work.
    pub(super) const MEMORY: f64 = 4.1e6;
    pub(super) const BY_TILES: f64 = 3.6e6;
    pub(super) const IDLE: f64 = 0.1;
    /// Bytes a microsecond from the second-level cache to the multiprocessors.
    pub(super) const CACHE: f64 = 9e6;
    /// Blocks that share a tile's K wait for each other, and move their sums twice.
    pub(super) const MEET: f64 = 2.0;
    pub(super) const SUMS: f64 = 6e6;
    /// A stage of `sm90_stream`, by rows of X (32, 64, 128): where two blocks share K, where two warp groups share a stage's K, and where
    /// each of those has rows of W of its own.
    pub(super) const STAGE: [[f64; 3]; 3] = [[0.22, 0.37, 0.45], [0.28, 0.43, 0.55], [0.5, 0.62, 0.2]];
    /// More for every row of W, of 128 rows of X.
    pub(super) const STAGE_ROW: f64 = 0.008;
}

/// Up to as many rows W is streamed: tiles of 128 rows would mostly be empty.
const TILE_ROWS: u64 = 64;

impl Shape {
    /// Of the operands and Y.
    fn bytes(&self) -> f64 {
        2.0 * (self.rows as f64 * (self.depth + self.outputs) as f64 + self.outputs as f64 * self.depth as f64)
    }

    /// Whether K may be cut: see [`WgmmaTile::CUT_DEPTH`]. An encoder's K is no longer than that.
    fn cuts(&self) -> bool {
        self.depth >= WgmmaTile::CUT_DEPTH && (self.outputs >= WgmmaTile::CUT_OUTPUTS || self.depth > WgmmaTile::CUT_DEPTH)
    }

    /// Of a tile with K in `parts`.
    fn time(&self, tile: &WgmmaTile, parts: u64, target: &Target) -> f64 {
        let blocks = tile.tiles(self.rows, self.outputs, false).saturating_mul(parts);
        let room = (u64::from(target.units) / tile.cluster * tile.cluster).max(1);
        let rounds = blocks.div_ceil(room) as f64;
        let idle = 1.0 - blocks.min(room) as f64 / room as f64;
        let steps = self.depth.div_ceil(WgmmaTile::DEPTH).div_ceil(parts) as f64;
        let rows = self.rows.min(WgmmaTile::ROWS) as f64;
        let price = if rounds > 1.0 && *tile != WgmmaTile::WIDE { cost::NARROWER } else { 1.0 };
        let products = price * rounds * (steps * (cost::STEP + cost::COLUMN * tile.columns as f64) + cost::OUTPUTS);
        // Of what the blocks of a cluster share each brings its part.
        let (x, w) = if tile.across { (0.5 * rows, tile.columns as f64) } else { (rows, 0.5 * tile.columns as f64) };
        let read = blocks as f64 * steps * (x + w) * 2.0 * WgmmaTile::DEPTH as f64;
        let exchange = if parts == 1 { 0.0 } else { cost::MEET + blocks as f64 * rows * tile.columns as f64 * 8.0 / cost::SUMS };
        let memory = self.bytes() / cost::BY_TILES * (1.0 + cost::IDLE * idle) + (rounds - 1.0) * cost::OUTPUTS;
        cost::LAUNCH + products.max(memory).max(read / cost::CACHE) + exchange
    }

    /// Of `sm90_stream`.
    fn stream_time(&self, target: &Target) -> f64 {
        let room = StreamTile::clusters(target.units);
        let split = StreamTile::splits(self.outputs, room);
        let tile_rows = StreamTile::tile_rows(self.outputs, room, split);
        let clusters = StreamTile::clusters_of(self.outputs, tile_rows, split).max(1);
        let by_rows = match self.rows {
            0..=32 => 0,
            33..=64 => 1,
            _ => 2,
        };
        let way = match (split, StreamTile::by_groups(self.outputs, room)) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        };
        let more = if by_rows == 2 && way == 2 { cost::STAGE_ROW * f64::from(tile_rows) } else { 0.0 };
        let stage = cost::STAGE[by_rows][way] + more;
        let parts = match split {
            true if StreamTile::quarters(self.outputs, self.depth, target.units) => 4,
            true => 2,
            false => 1,
        };
        let stages = (self.depth.div_ceil(128) * clusters.div_ceil(room)).div_ceil(parts);
        cost::LAUNCH + 1.0 + (stages as f64 * stage).max(self.bytes() / cost::MEMORY) + if split { cost::MEET } else { 0.0 }
    }

    /// The tile, its parts of K, and the time.
    fn best(&self, target: &Target) -> (WgmmaTile, u64, f64) {
        // A single tile of rows is shared by blocks beside each other: below it there is none.
        let beside = self.rows <= WgmmaTile::ROWS;
        let tiles = WgmmaTile::ALL.into_iter().filter(|tile| tile.across == beside);
        let cuts = tiles.flat_map(|tile| (1..=4).map(move |parts| (tile, parts)));
        let fits = |tile: &WgmmaTile, parts: u64| {
            let blocks = tile.tiles(self.rows, self.outputs, false).saturating_mul(parts);
            parts == 1 || (self.cuts() && tile.cuts() && blocks <= u64::from(target.units))
        };
        cuts.filter(|(tile, parts)| fits(tile, *parts))
            .map(|(tile, parts)| (tile, parts, self.time(&tile, parts, target)))
            .min_by(|a, b| a.2.total_cmp(&b.2))
            .unwrap_or((WgmmaTile::WIDE, 1, f64::INFINITY))
    }

    /// The tile, and into how many parts K is cut: blocks of their own take each part.
    pub(super) fn choose(&self, target: &Target) -> (WgmmaTile, u64) {
        let (tile, parts, _) = self.best(target);
        (tile, parts)
    }

    /// Whether that is faster than streaming W, for few rows: where the stages of `sm90_stream` take longer than their bytes.
    pub(super) fn tiles_beat_stream(&self, target: &Target) -> bool {
        if self.rows <= TILE_ROWS || self.rows > StreamTile::MOST_ROWS || !self.cuts() {
            return false;
        }
        let (tile, parts, time) = self.best(target);
        let one_round = tile.tiles(self.rows, self.outputs, false).saturating_mul(parts) <= u64::from(target.units);
        one_round && time < self.stream_time(target)
    }
}

#[cfg(test)]
mod tests {
    use super::super::jit::Arch;
    use super::*;

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10 };

    fn chosen(rows: u64, outputs: u64, depth: u64) -> (u64, bool, u64) {
        let (tile, parts) = Shape { rows, outputs, depth }.choose(&H200);
        (tile.columns, tile.across, parts)
    }

    #[test]
    fn widths_fill_whole_rounds() {
        for (rows, outputs, depth, columns) in [
            (512, 5120, 5120, 160),
            (1024, 5120, 13824, 160),
            (512, 11008, 4096, 168),
            (1024, 13824, 5120, 224),
            (512, 28672, 8192, 224),
            (8192, 8192, 8192, 256),
        ] {
            assert_eq!(chosen(rows, outputs, depth), (columns, false, 1), "{rows} × {outputs} × {depth}");
        }
    }

    #[test]
    fn few_rows_of_a_wide_product_are_tiles_and_of_a_narrow_one_a_stream() {
        let beats = |rows, outputs, depth| Shape { rows, outputs, depth }.tiles_beat_stream(&H200);
        for (rows, outputs, depth) in [(128, 5120, 5120), (128, 5120, 13824), (128, 10240, 8192), (128, 11008, 4096), (128, 13824, 5120), (128, 15360, 5120)] {
            assert!(beats(rows, outputs, depth) && chosen(rows, outputs, depth).1, "{rows} × {outputs} × {depth}");
        }
        for (rows, outputs, depth) in [(64, 10240, 8192), (128, 1024, 8192), (128, 28672, 8192), (128, 1536, 384), (16, 4096, 4096)] {
            assert!(!beats(rows, outputs, depth), "{rows} × {outputs} × {depth}");
        }
    }

    #[test]
    fn an_encoder_has_no_product_whose_sums_depend_on_its_rows() {
        for rows in [65, 128, 129, 256, 4096] {
            for (outputs, depth) in [(384, 1536), (1024, 4096), (4096, 1024), (3072, 768)] {
                assert_eq!(chosen(rows, outputs, depth).2, 1, "{rows} × {outputs} × {depth}");
            }
        }
        assert!(chosen(512, 1024, 8192).2 > 1, "32 tiles for 132 multiprocessors");
    }
}
