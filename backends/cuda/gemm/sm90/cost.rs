//! The choice of a tile for the products of `linear`, of `fused_mlp`, and of products with a LoRA basis. The tile with the least modelled
//! time wins.
//! The kernels are those of `kernels/gemm/sm90/`: `mainloop.cuh`, `mixed_width.cuh`, `pingpong.cuh`, `split_k_multicast.cuh` and
//! `split_k_cluster.cuh`. One model serves every shape: tiles, waves, k-blocks, bytes, and the exchange of partial sums.

use crate::backends::cuda::gemm::sm90::tile::{Shares, WgmmaTile};
use crate::backends::cuda::variant::Target;
use crate::dtype::DType;

/// A product of `linear`: rows of X, outputs, K, and whether the outputs' activation takes an exponential.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    pub rows: u64,
    pub outputs: u64,
    pub depth: u64,
    pub activated: bool,
    /// Whether some rows of X or of W start inside a line of L2. What a k-block reads of such a row lies in two lines.
    pub straddles: bool,
}

/// What an H200 takes, in microseconds, measured at Llama-2's projections.
mod h200 {
    /// Time from a launch to its first products, and from its last outputs to the next launch.
    pub(crate) const LAUNCH: f64 = 4.2;
    /// [`LAUNCH`] within `fused_mlp`, where the launch before is its own. The figure includes what chunks of fewer tokens lose.
    pub(crate) const NEXT: f64 = 2.7;
    /// What clusters add to a launch: their blocks start together and wait for each other.
    pub(crate) const CLUSTER: f64 = 1.3;
    /// A k-block of 64 elements takes `STEP`, and `COLUMN` more for every column of a tile. `OUTPUTS` is a tile's epilogue. Products in the
    /// narrower tiles behind wide ones take `NARROWER` times as long.
    pub(crate) const STEP: f64 = 0.03;
    pub(crate) const COLUMN: f64 = 0.0025;
    pub(crate) const OUTPUTS: f64 = 1.2;
    pub(crate) const NARROWER: f64 = 1.03;
    /// What an activation adds to a tile's epilogue.
    pub(crate) const ACTIVATION: f64 = 1.1;
    /// The time of the two ping-pong tiles that take a tile's place, by that of the tile: they read W twice.
    pub(crate) const TURN: f64 = 1.1;
    /// `MEMORY` is bytes a microsecond from memory. `IDLE` is the part of that rate which is lost with no SM at work.
    pub(crate) const MEMORY: f64 = 3.7e6;
    pub(crate) const IDLE: f64 = 0.3;
    /// Bytes a microsecond from L2 to the SMs: to clusters that share rows of W (`CACHE`), to those that share a tile (`CACHE_PARTS`), and
    /// to blocks outside clusters (`CACHE_ALONE`).
    pub(crate) const CACHE: f64 = 12e6;
    pub(crate) const CACHE_PARTS: f64 = 10.5e6;
    pub(crate) const CACHE_ALONE: f64 = 14e6;
    /// Rates of products with more rows, whose tiles read more different bytes at a time, as an H100's times have them (`lab/choice.md`): of
    /// more than `PARTS_ROWS` rows in place of `CACHE_PARTS`, of more than `ALONE_ROWS` in place of `CACHE_ALONE`. Tiles alone whose columns
    /// are no multiple of 32 read at `UNEVEN` of that.
    pub(crate) const PARTS_ROWS: u64 = 256;
    pub(crate) const CACHE_PARTS_MANY: f64 = 7e6;
    pub(crate) const ALONE_ROWS: u64 = 1024;
    pub(crate) const CACHE_ALONE_MANY: f64 = 10.5e6;
    pub(crate) const UNEVEN: f64 = 0.9;
    /// Split-K blocks of a tile wait for each other and exchange sums. Every doubling of them takes `MEET` in one cluster, `MEET_OUTSIDE`
    /// among several.
    pub(crate) const MEET: f64 = 2.0;
    pub(crate) const MEET_OUTSIDE: f64 = 3.0;
    /// Kernels that take longer than this start after the launch before has ended. Blocks of neighbouring numbers, which read the same rows
    /// of W, then lie in one GPC. A kernel that starts earlier takes each SM as it becomes free.
    pub(crate) const PLACED: f64 = 60.0;
}

/// The most waves of wide tiles that narrower last tiles replace.
const NARROW_ROUNDS: u64 = 3;

/// The fewest rows for ping-pong tiles. Fewer rows were not timed.
const PINGPONG_ROWS: u64 = 1024;

/// Up to this many rows W is streamed: tiles of 128 rows would mostly be empty.
const TILE_ROWS: u64 = 64;

/// The fewest rows that are worth a tile of 128. With fewer, reading W takes the time, and that needs no wgmma.
const LEAST_ROWS: u64 = 65;

/// Whether this many rows are worth a tile of 128, or why not.
pub(crate) fn enough_rows(rows: u64) -> std::result::Result<(), String> {
    if rows < LEAST_ROWS { Err(format!("{rows} rows: smaller tiles read the weights as fast")) } else { Ok(()) }
}

/// Whether some rows of these strides, in elements, start inside a line of L2.
pub(crate) fn straddles(dtype: DType, strides: [u64; 2]) -> bool {
    const LINE: u64 = 128;
    strides.into_iter().any(|stride| !(stride * dtype.size()).is_multiple_of(LINE))
}

impl Shape {
    /// Bytes of the operands and of Y.
    pub(crate) fn bytes(&self) -> f64 {
        2.0 * (self.rows as f64 * (self.depth + self.outputs) as f64 + self.outputs as f64 * self.depth as f64)
    }

    /// Whether the outputs are no multiple of 8, so that they are stored one by one.
    pub(crate) fn has_unaligned_outputs(&self) -> bool {
        !self.outputs.is_multiple_of(8)
    }

    /// Whether K may be split: see [`WgmmaTile::CUT_DEPTH`]. An encoder's K is never long enough.
    pub(crate) fn splits(&self) -> bool {
        self.depth >= WgmmaTile::CUT_DEPTH && (self.outputs >= WgmmaTile::CUT_OUTPUTS || self.depth > WgmmaTile::CUT_DEPTH)
    }

    /// Microseconds of `rounds` waves of tiles of `columns` columns.
    fn rounds(&self, tile: &WgmmaTile, columns: u64, rounds: u64) -> f64 {
        let steps = self.depth.div_ceil(WgmmaTile::DEPTH).div_ceil(tile.parts()) as f64;
        let products = steps * (h200::STEP + h200::COLUMN * columns as f64);
        if tile.is_pingpong() {
            // Ping-pong tiles have half as many rows. All epilogues but the last run beside the other warpgroup's products.
            return rounds as f64 * products * 0.5 * h200::TURN + h200::OUTPUTS;
        }
        rounds as f64 * (products + h200::OUTPUTS)
    }

    /// The columns of wide tiles of a tile of two widths, in nearly whole waves; the waves in all; and their time. None unless the outputs
    /// are a multiple of 8, since the other kernels have one width.
    fn widths(&self, tile: &WgmmaTile, target: &Target) -> Option<(u64, u64, f64)> {
        let (clusters, down) = (tile.room(target) / tile.cluster(), tile.down(self.rows).max(1));
        let whole = (self.outputs / tile.columns).saturating_mul(down) / clusters;
        let split = |round: u64| {
            let wide = clusters * round / down;
            let left = self.outputs.checked_sub(wide * tile.columns).filter(|&left| left > 0)?;
            let (first, all) = ((wide * down).div_ceil(clusters), ((wide + left.div_ceil(tile.last)) * down).div_ceil(clusters));
            let time = self.rounds(tile, tile.columns, first) + h200::NARROWER * self.rounds(tile, tile.last, all - first);
            Some((wide, all, time))
        };
        let rounds = whole.saturating_sub(NARROW_ROUNDS)..=whole;
        rounds.filter(|_| self.outputs.is_multiple_of(8)).filter_map(split).min_by(|a, b| a.2.total_cmp(&b.2))
    }

    /// The columns of tiles that are wide, where `tile` has two widths.
    pub(crate) fn wide(&self, tile: &WgmmaTile, target: &Target) -> u64 {
        if tile.has_mixed_width() { self.widths(tile, target).map_or(0, |(wide, ..)| wide) } else { 0 }
    }

    /// Whether `tile` has two widths and none of its tiles would be wide.
    fn narrow_alone(&self, tile: &WgmmaTile, target: &Target) -> bool {
        tile.has_mixed_width() && self.wide(tile, target) == 0
    }

    /// Whether a ping-pong tile is of use: both warpgroups get a tile, and the outputs are a multiple of 8 as its kernel needs.
    fn turns(&self, tile: &WgmmaTile, target: &Target) -> bool {
        self.rows >= PINGPONG_ROWS && self.outputs.is_multiple_of(8) && tile.blocks(self.rows, self.outputs, false) > tile.room(target)
    }

    /// Whether a tile's kernel is of use for the product, or why not. Split-K blocks of several clusters must all be resident.
    pub(crate) fn can_take(&self, tile: &WgmmaTile, target: &Target) -> std::result::Result<(), String> {
        if matches!(tile.shares, Shares::W | Shares::SplitKMulticast(_)) && self.rows <= WgmmaTile::ROWS {
            return Err(format!("{} rows: of tiles that share W there is but one", self.rows));
        }
        self.can_compute(tile, target)
    }

    /// Whether a tile's kernel can compute the product, or why not. One of two blocks that share W may have no rows.
    pub(crate) fn can_compute(&self, tile: &WgmmaTile, target: &Target) -> std::result::Result<(), String> {
        let (blocks, room) = (tile.blocks(self.rows, self.outputs, false), tile.room(target));
        if self.has_unaligned_outputs() && (tile.is_pingpong() || *tile != tile.of_odd_outputs()) {
            return Err(format!("{} outputs: this tile is for multiples of 8", self.outputs));
        }
        if self.narrow_alone(tile, target) {
            return Err("all tiles would be of the last ones' width".into());
        }
        if self.depth.div_ceil(WgmmaTile::DEPTH) < tile.parts() {
            return Err(format!("K of {} in {} parts", self.depth, tile.parts()));
        }
        if tile.meets_outside() && blocks > room {
            return Err(format!("{blocks} blocks that wait for each other, of which {room} are resident"));
        }
        Ok(())
    }

    /// Whether a tile of persistent blocks is of use.
    fn takes(&self, tile: &WgmmaTile, target: &Target) -> bool {
        let there = !self.has_unaligned_outputs() || *tile == tile.of_odd_outputs();
        there && !self.narrow_alone(tile, target) && (!tile.is_pingpong() || self.turns(tile, target))
    }

    /// Bytes a microsecond from L2 to this tile's SMs.
    fn cache(&self, tile: &WgmmaTile) -> f64 {
        match tile.shares {
            Shares::W | Shares::SplitKMulticast(_) => h200::CACHE,
            Shares::SplitKCluster(_) if self.rows > h200::PARTS_ROWS => h200::CACHE_PARTS_MANY,
            Shares::SplitKCluster(_) => h200::CACHE_PARTS,
            Shares::Nothing if self.rows <= h200::ALONE_ROWS => h200::CACHE_ALONE,
            Shares::Nothing if tile.columns.is_multiple_of(32) => h200::CACHE_ALONE_MANY,
            Shares::Nothing => h200::CACHE_ALONE_MANY * h200::UNEVEN,
        }
    }

    /// Microseconds from one launch to the next with this tile.
    pub(crate) fn time(&self, tile: &WgmmaTile, target: &Target) -> f64 {
        let parts = tile.parts();
        let blocks = tile.blocks(self.rows, self.outputs, false);
        let room = tile.room(target);
        let idle = 1.0 - blocks.min(room) as f64 / room as f64;
        let steps = self.depth.div_ceil(WgmmaTile::DEPTH).div_ceil(parts) as f64;
        let rows = self.rows.min(tile.rows) as f64;
        let (rounds, products) = if tile.has_mixed_width() {
            self.widths(tile, target).map_or((1, f64::INFINITY), |(_, rounds, time)| (rounds, time))
        } else {
            let rounds = blocks.div_ceil(room);
            (rounds, self.rounds(tile, tile.columns, rounds))
        };
        // With multicast, each block of a cluster reads its part of W's tile.
        let (x, w) = match tile.shares {
            Shares::W | Shares::SplitKMulticast(_) => (rows, 0.5 * tile.columns as f64),
            Shares::Nothing | Shares::SplitKCluster(_) => (rows, tile.columns as f64),
        };
        let lines = if self.straddles { 2.0 } else { 1.0 };
        let read = blocks as f64 * steps * (x + w) * lines * 2.0 * WgmmaTile::DEPTH as f64;
        let exchange = if tile.meets_outside() { h200::MEET_OUTSIDE } else { h200::MEET } * (parts as f64).log2();
        let memory = self.bytes() / h200::MEMORY * (1.0 + h200::IDLE * idle) + (rounds as f64 - 1.0) * h200::OUTPUTS;
        let activation = if !self.activated { 0.0 } else { h200::ACTIVATION * if tile.is_pingpong() { 1.0 } else { rounds as f64 } };
        let launch = h200::LAUNCH + if tile.shares == Shares::Nothing { 0.0 } else { h200::CLUSTER };
        launch + (products + activation).max(memory).max(read / self.cache(tile)) + exchange
    }

    /// Whether the launch may start while the launch before still runs (PDL). An early start gains a microsecond. It places blocks
    /// anywhere, which takes up to a tenth longer.
    pub(crate) fn starts_early(&self, tile: &WgmmaTile, target: &Target) -> bool {
        Self::starts_early_after(self.time(tile, target))
    }

    /// Whether a product of this time may start while the launch before still runs.
    pub(crate) fn starts_early_after(time: f64) -> bool {
        time <= h200::PLACED
    }

    /// The tile with the least modelled time.
    pub(crate) fn choose(&self, target: &Target) -> WgmmaTile {
        let takes = |tile: &WgmmaTile| match tile.shares {
            // With a single tile of rows there is none below it to share W with.
            Shares::W | Shares::SplitKMulticast(_) if self.rows <= WgmmaTile::ROWS => false,
            Shares::W | Shares::Nothing => self.takes(tile, target),
            Shares::SplitKCluster(_) | Shares::SplitKMulticast(_) => self.splits() && tile.blocks(self.rows, self.outputs, false) <= tile.room(target),
        };
        let timed = WgmmaTile::all().filter(takes).map(|tile| (tile, self.time(&tile, target)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(WgmmaTile::WIDE, |(tile, _)| tile)
    }

    /// Whether a tile is faster than streaming W, for few rows: wherever K is long and one wave of tiles is enough.
    pub(crate) fn tiles_beat_skinny(&self, target: &Target) -> bool {
        let tile = self.choose(target);
        self.rows > TILE_ROWS && self.splits() && tile.blocks(self.rows, self.outputs, false) <= tile.room(target)
    }
}

impl WgmmaTile {
    /// The one of `tiles` with which `products` take the least time, and that time. Each product comes with a count.
    pub(crate) fn least(tiles: impl Iterator<Item = Self>, products: &[(Shape, u64)], target: &Target) -> (Self, f64) {
        let takes = |tile: &Self| products.first().is_none_or(|(shape, _)| shape.takes(tile, target));
        let there = || products.iter().filter(|(shape, times)| shape.rows * times > 0);
        let time = |tile: &Self| there().map(|(shape, times)| *times as f64 * (shape.time(tile, target) - h200::LAUNCH + h200::NEXT)).sum::<f64>();
        let timed = tiles.filter(takes).map(|tile| (tile, time(&tile)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((Self::WIDE, f64::INFINITY))
    }

    /// The tile of a product that multiplies by adapters' basis too. Outputs and K alone decide whether there is one; a row's result is the
    /// same from each of them.
    pub(crate) fn choose_with_lora(shape: Shape, target: &Target) -> Option<Self> {
        let Shape { outputs, depth, .. } = shape;
        let short = depth < Self::CUT_DEPTH && outputs < Self::CUT_OUTPUTS && outputs.is_multiple_of(Self::RUN);
        short.then(|| Self::least(Self::WITH_LORA.into_iter(), &[(shape, 1)], target).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Target = Target::H200;

    fn chosen(rows: u64, outputs: u64, depth: u64) -> (u64, Shares) {
        let tile = Shape { rows, outputs, depth, ..Shape::default() }.choose(&H200);
        (tile.columns, tile.shares)
    }

    #[test]
    fn a_tile_is_as_small_as_the_work_asks_for() {
        assert_eq!(chosen(4096, 4096, 4096), (256, Shares::Nothing));
        assert_eq!(chosen(512, 4096, 4096), (128, Shares::Nothing), "64 wide tiles for 132 multiprocessors");
        for tile in WgmmaTile::all() {
            assert!(tile.unaligned_shared_bytes() <= 227 << 10, "{tile:?}");
        }
        for tile in WgmmaTile::OF_UP {
            assert!(tile.shared_bytes() <= 227 << 10, "{tile:?}");
        }
    }

    #[test]
    fn widths_fill_whole_rounds() {
        for (rows, outputs, depth, columns) in
            [(512, 5120, 5120, 160), (1024, 5120, 13824, 160), (512, 11008, 4096, 168), (4096, 4096, 4096, 256), (1792, 2384, 11008, 160)]
        {
            assert_eq!(chosen(rows, outputs, depth), (columns, Shares::Nothing), "{rows} × {outputs} × {depth}");
        }
    }

    #[test]
    fn narrow_tiles_of_many_rows_share_what_they_read() {
        for (rows, outputs, depth) in [(2048, 1192, 11008), (2221, 1024, 14336)] {
            assert_eq!(chosen(rows, outputs, depth), (160, Shares::W), "{rows} × {outputs} × {depth}");
        }
    }

    #[test]
    fn wide_tiles_fill_whole_rounds_and_narrower_ones_the_last() {
        for (rows, outputs, depth, last, wide) in [
            (512, 13824, 5120, 168, 33),
            (1024, 11008, 4096, 160, 33),
            (1024, 13824, 5120, 168, 33),
            (2048, 13824, 5120, 160, 49),
            (2048, 5120, 13824, 128, 16),
        ] {
            let shape = Shape { rows, outputs, depth, ..Shape::default() };
            let tile = shape.choose(&H200);
            assert_eq!((tile.columns, tile.last, shape.wide(&tile, &H200)), (256, last, wide), "{rows} × {outputs} × {depth}");
        }
        let odd = Shape { rows: 1024, outputs: 13823, depth: 5120, ..Shape::default() };
        assert!(!odd.choose(&H200).has_mixed_width(), "outputs that are not whole in eights");
    }

    #[test]
    fn a_long_k_of_more_than_64_rows_is_tiles_and_of_fewer_a_stream() {
        let beats = |rows, outputs, depth| Shape { rows, outputs, depth, ..Shape::default() }.tiles_beat_skinny(&H200);
        for (outputs, depth) in [(5120, 5120), (8192, 8192), (5120, 13824), (10240, 8192), (11008, 4096), (28672, 8192), (8192, 28672), (1024, 8192)] {
            assert!(beats(128, outputs, depth) && chosen(128, outputs, depth).1 != Shares::W, "{outputs} × {depth}");
        }
        for (rows, outputs, depth) in [(64, 10240, 8192), (128, 100_000, 8192), (128, 1536, 384), (16, 4096, 4096)] {
            assert!(!beats(rows, outputs, depth), "{rows} × {outputs} × {depth}");
        }
    }

    #[test]
    fn k_is_split_where_tiles_of_all_of_it_leave_multiprocessors_idle() {
        for (rows, outputs, depth, columns, parts) in [(128, 5120, 13824, 80, 2), (128, 4096, 11008, 64, 2), (128, 1024, 8192, 40, 4), (256, 1024, 8192, 96, 4)]
        {
            assert_eq!(chosen(rows, outputs, depth), (columns, Shares::SplitKCluster(parts)), "{rows} × {outputs} × {depth}");
        }
        for (rows, outputs, depth, parts) in
            [(1024, 1024, 8192, 2), (512, 1024, 8192, 4), (447, 640, 11008, 4), (256, 4096, 11008, 2), (129, 4096, 9000, 2), (129, 2001, 9000, 4)]
        {
            assert_eq!(chosen(rows, outputs, depth), (128, Shares::SplitKMulticast(parts)), "{rows} × {outputs} × {depth}");
        }
        for (outputs, depth, columns) in [(10240, 8192, 80), (12288, 4096, 96), (13824, 5120, 112), (15360, 5120, 128)] {
            assert_eq!(chosen(128, outputs, depth), (columns, Shares::Nothing), "{outputs} × {depth}");
        }
    }

    #[test]
    fn long_products_wait_for_the_launch_before() {
        let early = |rows, outputs, depth| {
            let shape = Shape { rows, outputs, depth, ..Shape::default() };
            shape.starts_early(&shape.choose(&H200), &H200)
        };
        for (rows, outputs, depth) in [(512, 12288, 4096), (512, 11008, 4096), (512, 4096, 11008), (512, 10240, 8192), (1024, 4096, 11008)] {
            assert!(!early(rows, outputs, depth), "{rows} × {outputs} × {depth}");
        }
        for (rows, outputs, depth) in [(256, 11008, 4096), (256, 4096, 11008), (512, 4096, 4096), (512, 3072, 768), (4096, 768, 768)] {
            assert!(early(rows, outputs, depth), "{rows} × {outputs} × {depth}");
        }
    }

    #[test]
    fn a_short_k_is_pingpong() {
        let turns = |rows, outputs, depth, activated| Shape { rows, outputs, depth, activated, ..Shape::default() }.choose(&H200).is_pingpong();
        assert!(turns(8192, 2304, 768, false) && turns(4096, 3072, 768, true) && turns(4096, 4096, 1024, true), "as timed");
        assert!(turns(2060, 2544, 392, true) && turns(2060, 2544, 136, true), "as the cases have it");
        assert!(!turns(4096, 4096, 1024, false) && !turns(2048, 4096, 4096, true), "products hide their outputs");
        assert!(!turns(8192, 2303, 768, true), "outputs that are not whole in eights");
        assert!(!turns(1024, 768, 768, true), "one tile for both warp groups");
    }

    #[test]
    fn an_encoder_has_no_product_whose_sums_depend_on_its_rows() {
        for rows in [65, 128, 129, 256, 4096] {
            for (outputs, depth) in [(384, 1536), (1024, 4096), (4096, 1024), (3072, 768)] {
                assert_eq!(Shape { rows, outputs, depth, activated: true, ..Shape::default() }.choose(&H200).parts(), 1, "{rows} × {outputs} × {depth}");
            }
        }
        assert!(Shape { rows: 512, outputs: 1024, depth: 8192, ..Shape::default() }.choose(&H200).parts() > 1, "32 tiles for 132 multiprocessors");
    }

    #[test]
    fn every_tile_that_is_chosen_has_kernels() {
        let compiled: Vec<WgmmaTile> = WgmmaTile::all().collect();
        let odd: Vec<WgmmaTile> = compiled.iter().map(|tile| tile.of_odd_outputs()).collect();
        for (rows, outputs) in [65, 129, 300, 512, 1000, 4096].into_iter().flat_map(|rows| [384, 1001, 2047, 4096, 11007, 11008].map(|outputs| (rows, outputs)))
        {
            for (depth, straddles) in [(384, false), (1432, true), (4096, false), (4104, true), (11008, false)] {
                let shape = Shape { rows, outputs, depth, straddles, ..Shape::default() };
                let tile = shape.choose(&H200);
                let of = if shape.has_unaligned_outputs() { &odd } else { &compiled };
                assert!(of.contains(&tile), "{tile:?}: {shape:?}");
            }
        }
    }
}
