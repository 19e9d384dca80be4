//! Tiles of `kernels/gemm/sm90/swap_ab.cuh`, and a model of their time.

use crate::backends::cuda::gemm::problem::{GemmParams, Product};
use crate::backends::cuda::gemm::sm90::cost::Shape;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::variant::{Cuda, Target};
use crate::device::Slice;
use crate::error::Result;

/// A swap-AB tile: rows of W, tokens, and the blocks of a cluster, each of which has a part of K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SwapAbTile {
    pub(crate) outputs: u64,
    pub(crate) tokens: u64,
    pub(crate) parts: u64,
}

const fn tile_of(outputs: u64, tokens: u64, parts: u64) -> SwapAbTile {
    SwapAbTile { outputs, tokens, parts }
}

/// The tiles that the model below prefers where tiles of 128 rows are furthest behind (`lab/linear-tiles.md`), and a small one.
pub(crate) const TILES: [SwapAbTile; 8] = [
    tile_of(64, 48, 1),
    tile_of(64, 72, 1),
    tile_of(64, 104, 1),
    tile_of(64, 136, 1),
    tile_of(128, 104, 1),
    tile_of(128, 152, 2),
    tile_of(128, 176, 1),
    tile_of(192, 176, 1),
];

/// The tiles that are compiled for wide outputs too: those that the head of a language model takes.
pub(crate) const WIDE: [SwapAbTile; 4] = [tile_of(64, 136, 1), tile_of(128, 104, 1), tile_of(128, 176, 1), tile_of(192, 176, 1)];

/// What an H200 takes, in microseconds, measured at 55 products of 129 to 2,048 rows.
mod cost {
    /// `LAUNCH` is from a launch to its first products, and from its last outputs to the next launch. Clusters add `CLUSTER`.
    pub(crate) const LAUNCH: f64 = 4.7;
    pub(crate) const CLUSTER: f64 = 1.3;
    /// A k-block of 64 elements takes `STEP`, and `TOKEN` more for 64 outputs of each token.
    pub(crate) const STEP: f64 = 0.03;
    pub(crate) const TOKEN: f64 = 0.0013;
    /// `STEP` and `TOKEN` where one warpgroup multiplies: each k-block waits for the one before.
    pub(crate) const STEP_ALONE: f64 = 0.15;
    pub(crate) const TOKEN_ALONE: f64 = 0.0005;
    /// A tile's epilogue, what an activation adds to it, and a wave behind another.
    pub(crate) const OUTPUTS: f64 = 1.2;
    pub(crate) const ACTIVATION: f64 = 1.1;
    pub(crate) const ROUND: f64 = 2.0;
    /// What outputs that are no multiple of 8 add: for each token of a tile, and in all for tiles of `sm90`.
    pub(crate) const UNALIGNED_TOKEN: f64 = 0.05;
    pub(crate) const UNALIGNED: f64 = 1.5;
    /// Every doubling of the parts of K.
    pub(crate) const MEET: f64 = 2.0;
    /// Bytes a microsecond from memory, the part of that rate which is lost with no SM at work, and bytes a microsecond from L2.
    pub(crate) const MEMORY: f64 = 3.7e6;
    pub(crate) const IDLE: f64 = 0.3;
    pub(crate) const CACHE: f64 = 14e6;
    /// What tiles of `sm90` with few columns take, by what `gemm::sm90::cost` says; and the most columns that are few.
    pub(crate) const NARROW: f64 = 1.1;
    pub(crate) const NARROW_COLUMNS: u64 = 80;
}

impl SwapAbTile {
    /// Warpgroups that multiply, and how many times 64 outputs each of them has.
    const fn groups(&self) -> [u64; 2] {
        let each = if self.outputs > 192 { 2 } else { 1 };
        [self.outputs / 64 / each, each]
    }

    /// Threads of a block: the warpgroups that multiply, and one of which a single warp loads.
    pub(crate) const fn threads(&self) -> u32 {
        self.groups()[0] as u32 * 128 + 128
    }

    /// Bytes of a stage, with its two barriers.
    const fn stage_bytes(&self) -> u64 {
        (self.outputs + self.tokens) * WgmmaTile::DEPTH * 2 + 16
    }

    const fn stages(&self) -> u64 {
        let room = (WgmmaTile::SHARED_BYTES - WgmmaTile::START) / self.stage_bytes();
        if room < 12 { room } else { 12 }
    }

    pub(crate) const fn shared_bytes(&self) -> u32 {
        (self.stages() * self.stage_bytes() + WgmmaTile::START) as u32
    }

    pub(crate) fn blocks(&self, rows: u64, outputs: u64) -> u64 {
        rows.div_ceil(self.tokens).saturating_mul(outputs.div_ceil(self.outputs)).saturating_mul(self.parts)
    }

    pub(crate) fn time(&self, shape: &Shape, target: &Target) -> f64 {
        let (blocks, room) = (self.blocks(shape.rows, shape.outputs), WgmmaTile::room_of(self.parts, target));
        let (rounds, idle) = (blocks.div_ceil(room) as f64, 1.0 - blocks.min(room) as f64 / room as f64);
        let steps = shape.depth.div_ceil(WgmmaTile::DEPTH).div_ceil(self.parts) as f64;
        let step = match self.groups() {
            [1, 1] => cost::STEP_ALONE + cost::TOKEN_ALONE * self.tokens as f64,
            _ => cost::STEP + cost::TOKEN * (self.outputs / 64 * self.tokens) as f64,
        };
        let odd = if shape.has_unaligned_outputs() { cost::UNALIGNED_TOKEN * self.tokens as f64 } else { 0.0 };
        let outputs = cost::OUTPUTS + odd + if shape.activated { cost::ACTIVATION } else { 0.0 };
        let products = rounds * (steps * step + outputs) + (rounds - 1.0) * cost::ROUND;
        let memory = shape.bytes() / cost::MEMORY * (1.0 + cost::IDLE * idle);
        let lines = if shape.straddles { 2.0 } else { 1.0 };
        let read = blocks as f64 * steps * (self.outputs + self.tokens) as f64 * lines * 2.0 * WgmmaTile::DEPTH as f64;
        let cluster = if self.parts > 1 { cost::CLUSTER } else { 0.0 };
        cost::LAUNCH + cluster + products.max(memory).max(read / cost::CACHE) + cost::MEET * (self.parts as f64).log2()
    }

    /// Whether every part of this K has a k-block, or why not. The kernel needs sums from each part.
    pub(crate) fn has_parts(&self, depth: u64) -> std::result::Result<(), String> {
        if depth.div_ceil(WgmmaTile::DEPTH) < self.parts { Err(format!("K of {depth} in {} parts", self.parts)) } else { Ok(()) }
    }

    /// The configuration's name: rows of X by rows of W, and the parts of K.
    pub(crate) fn config(&self) -> String {
        let parts = if self.parts > 1 { format!("-splitk{}", self.parts) } else { String::new() };
        format!("{}x{}{parts}", self.tokens, self.outputs)
    }

    pub(crate) fn name(&self) -> String {
        let Self { outputs, tokens, parts } = self;
        if *parts > 1 { format!("{outputs} columns by {tokens}, K in {parts} parts") } else { format!("{outputs} columns by {tokens}") }
    }

    pub(crate) fn defines(&self) -> Vec<(&'static str, String)> {
        let [groups, each] = self.groups();
        let values = [
            ("SWAP_AB_TOKENS", self.tokens),
            ("SWAP_AB_GROUPS", groups),
            ("SWAP_AB_EACH", each),
            ("SWAP_AB_THREADS", u64::from(self.threads())),
            ("WGMMA_STAGES", self.stages()),
            ("CLUSTER", self.parts),
        ];
        values.map(|(name, value)| (name, value.to_string())).into()
    }

    /// A product's parameters, with tensor maps of X and W.
    pub(crate) fn params(&self, product: &Product<'_>) -> Result<GemmParams> {
        let map = |slice: &Slice<Cuda>, count: u64, stride: u64, rows: u64| WgmmaTile::rows_map(product.dtype, slice, [count, product.depth], stride, rows);
        Ok(GemmParams {
            x_map: map(&product.x, product.rows, product.x_stride, self.tokens)?,
            x_last_map: map(&product.x, product.rows, product.x_stride, WgmmaTile::last_box(product.rows, self.tokens))?,
            w_map: map(&product.w, product.columns, product.w_stride, self.outputs)?,
            rest_map: map(&product.w, product.columns, product.w_stride, WgmmaTile::last_box(product.columns, self.outputs))?,
            ..product.params()
        })
    }
}

/// The one of `tiles` with the least modelled time, and that time.
pub(crate) fn choose(tiles: &[SwapAbTile], shape: &Shape, target: &Target) -> (SwapAbTile, f64) {
    let takes = |tile: &SwapAbTile| tile.parts == 1 || shape.splits();
    let timed = tiles.iter().copied().filter(takes).map(|tile| (tile, tile.time(shape, target)));
    timed.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((WIDE[0], f64::INFINITY))
}

/// Whether swap-AB is faster for a product than the tile of 128 rows that it would take.
pub(crate) fn beats_rows(shape: &Shape, target: &Target) -> bool {
    let tile = shape.choose(target);
    let narrow = tile.columns <= cost::NARROW_COLUMNS && tile.parts() == 1;
    let rows = shape.time(&tile, target) * if narrow { cost::NARROW } else { 1.0 } + if shape.has_unaligned_outputs() { cost::UNALIGNED } else { 0.0 };
    choose(&TILES, shape, target).1 < rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_divide_the_rows_that_there_are() {
        for (rows, outputs, depth, tile) in [
            (300, 3584, 18944_u64, tile_of(128, 152, 2)),
            (700, 18944, 3584, tile_of(192, 176, 1)),
            (700, 6144, 4096, tile_of(192, 176, 1)),
            (700, 4096, 14336, tile_of(128, 176, 1)),
            (129, 4096, 4096, tile_of(64, 72, 1)),
            (129, 14336, 4096, tile_of(64, 136, 1)),
            (512, 1432, 4096, tile_of(64, 104, 1)),
            (1000, 384, 1536, tile_of(64, 48, 1)),
            (300, 4096, 1432, tile_of(128, 104, 1)),
        ] {
            let straddles = !depth.is_multiple_of(64);
            assert_eq!(choose(&TILES, &Shape { rows, outputs, depth, straddles, ..Shape::default() }, &Target::H200).0, tile, "{rows} × {outputs} × {depth}");
        }
    }

    #[test]
    fn every_tile_has_room() {
        for tile in TILES {
            assert!(tile.shared_bytes() <= 227 << 10 && tile.threads() <= 512, "{tile:?}");
        }
    }

    #[test]
    fn an_encoder_has_no_product_whose_sums_depend_on_its_rows() {
        for rows in [65, 128, 129, 300, 4096] {
            for (outputs, depth) in [(384, 1536), (1024, 4096), (4096, 1024), (3072, 768)] {
                assert_eq!(choose(&TILES, &Shape { rows, outputs, depth, ..Shape::default() }, &Target::H200).0.parts, 1, "{rows} × {outputs} × {depth}");
            }
        }
    }
}
