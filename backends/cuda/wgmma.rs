//! Products on the tensor cores of Hopper: tiles, cuts and launches of `kernels/tile/wgmma_gemm.cuh`.

use super::adapter_basis::{AdaptedParams, AdapterSums};
use super::gemm::{GemmParams, Product};
use super::kernel::{Launch, Plan, Target, address};
use super::tma::{Layout, Swizzle};
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::Op;

/// A block's tile in `kernels/tile/wgmma_gemm.cuh`: 128 rows, 64 elements of K a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WgmmaTile {
    pub(super) columns: u64,
    stages: u64,
    pub(super) cluster: u64,
    /// The blocks of a cluster lie beside each other and share X's tile, not one below the other: for a single tile of rows.
    pub(super) across: bool,
}

impl WgmmaTile {
    pub(super) const WIDE: Self = Self::new(256, 4);
    /// Less work a tile, where few tiles would leave multiprocessors idle at the end.
    pub(super) const NARROW: Self = Self::new(128, 6);
    /// Half of the outputs of 384, an encoder's, where wide tiles would be half empty.
    const MIDDLE: Self = Self::new(192, 5);
    /// A width that few multiprocessors sit idle after: 11,008 outputs, Llama's, of 512 rows are 264 tiles for 132 of them.
    const FITTED: Self = Self::new(168, 6);
    /// Those of `linear`, with room for a way to Y through shared memory: of as many widths as there are counts of tiles that fill whole rounds.
    pub(super) const ALL: [Self; 9] = [
        Self::WIDE,
        Self::new(224, 4),
        Self::MIDDLE,
        Self::new(168, 5),
        Self::new(160, 5),
        Self::NARROW,
        Self::beside(160, 5),
        Self::beside(128, 6),
        Self::beside(96, 7),
    ];
    /// Those of `fused_mlp`: of its first product, which needs no way through shared memory, and of the second.
    pub(super) const OF_UP: [Self; 5] = [Self::WIDE, Self::new(224, 5), Self::MIDDLE, Self::FITTED, Self::NARROW];
    pub(super) const OF_DOWN: [Self; 5] = [Self::WIDE, Self::new(224, 4), Self::MIDDLE, Self::new(160, 5), Self::NARROW];
    pub(super) const ROWS: u64 = 128;
    pub(super) const DEPTH: u64 = 64;
    const THREADS: u32 = 384;
    /// Outputs that are in one order in Y and in another in shared memory, with a basis; and its rows.
    const RUN: u64 = 32;
    const BASIS_ROWS: u64 = 16;
    /// The width that is worth its rows: with fewer the time goes into reading W, which needs no wgmma.
    const LEAST_ROWS: u64 = 65;

    /// The least K, and the fewest outputs, of a product whose K may be cut: so long a K takes the time, and what is added up at the
    /// end is little beside it. An encoder has no such product, so that the sums of a sentence do not depend on the rows of its
    /// batch (see `model`).
    pub(super) const CUT_DEPTH: u64 = 4096;
    pub(super) const CUT_OUTPUTS: u64 = 1025;

    const fn new(columns: u64, stages: u64) -> Self {
        Self { columns, stages, cluster: 2, across: false }
    }

    const fn beside(columns: u64, stages: u64) -> Self {
        Self { across: true, ..Self::new(columns, stages) }
    }

    /// The tile of `tiles` that takes the least time for a product (rows, outputs, depth, gated) of `fused_mlp`.
    pub(super) fn choose<const N: usize>(tiles: [Self; N], product: (u64, u64, u64, bool), target: &Target) -> Self {
        tiles
            .into_iter()
            .filter(|tile| tile.gates() || !product.3)
            .min_by(|a, b| a.time(product, target).total_cmp(&b.time(product, target)))
            .unwrap_or(Self::WIDE)
    }

    /// The tile of a product that multiplies by adapters' basis too. By no more than the outputs and K it is decided that there is one: what a
    /// row gets is the same from both.
    pub(super) fn choose_with_basis(product: (u64, u64, u64, bool), target: &Target) -> Option<Self> {
        let (_, outputs, depth, gated) = product;
        let short = !gated && depth < Self::CUT_DEPTH && outputs < Self::CUT_OUTPUTS && outputs.is_multiple_of(Self::RUN);
        let tiles = [Self::MIDDLE, Self::NARROW].into_iter().filter(|_| short);
        tiles.min_by(|a, b| a.time(product, target).total_cmp(&b.time(product, target)))
    }

    /// Whether there is a kernel with a basis.
    pub(super) fn takes_basis(&self) -> bool {
        [Self::MIDDLE, Self::NARROW].contains(self)
    }

    /// Whether it is for gated products too: half of its columns, of each weight, are whole in runs of 32.
    pub(super) const fn gates(&self) -> bool {
        self.columns.is_multiple_of(64)
    }

    /// Whether kernels for parts of K are compiled: a wide tile has twice the sums to exchange.
    pub(super) fn cuts(&self) -> bool {
        self.columns.is_multiple_of(32) && self.columns <= 160
    }

    /// In columns × depth of a multiprocessor's work on 128 rows, whole rounds of tiles.
    pub(super) fn time(&self, product: (u64, u64, u64, bool), target: &Target) -> f64 {
        let rounds = self.blocks(product).div_ceil(u64::from(target.units));
        // A narrow tile reads as much X for half the products.
        let price = match self.columns {
            256 => 1.0,
            224 => 1.04,
            192 => 1.07,
            160 | 168 => 1.09,
            _ => 1.15,
        };
        // What it takes to begin and to end.
        price * rounds as f64 * self.columns as f64 * (product.2 + 256) as f64
    }

    /// Tiles of a product (rows, outputs, depth, gated), whole clusters of them.
    fn blocks(&self, (rows, outputs, _, gated): (u64, u64, u64, bool)) -> u64 {
        self.tiles(rows, outputs, gated)
    }

    /// Two counters for each of a tile's warp groups, in bytes.
    fn counter_bytes(tiles: u64) -> u64 {
        (tiles * 2 * 2 * 4).next_multiple_of(128)
    }

    /// Bytes of workspace for the sums of `parts` parts of K, and the counters by which their blocks find each other: zero when a
    /// launch starts, and when it ends.
    pub(super) fn cut_bytes(&self, rows: u64, outputs: u64, parts: u64) -> u64 {
        let tiles = self.tiles(rows, outputs, false);
        if parts == 1 { 0 } else { Self::counter_bytes(tiles) + tiles * parts * Self::ROWS * self.columns * 4 }
    }

    /// Whole clusters of tiles.
    pub(super) fn tiles(&self, rows: u64, outputs: u64, gated: bool) -> u64 {
        let width = if gated { self.columns / 2 } else { self.columns };
        let (down, across) = if self.across { (1, self.cluster) } else { (self.cluster, 1) };
        rows.div_ceil(Self::ROWS * down).saturating_mul(self.cluster).saturating_mul(outputs.div_ceil(width * across))
    }

    /// Of shared memory, for outputs that go straight to Y.
    pub(super) fn shared_bytes(&self) -> u32 {
        self.bytes(0)
    }

    /// The same with the rows of a basis in every stage.
    pub(super) fn basis_shared_bytes(&self) -> u32 {
        self.bytes(Self::BASIS_ROWS)
    }

    fn bytes(&self, basis: u64) -> u32 {
        // The stages, two barriers each, and what it takes to start on a multiple of 1,024.
        (self.stages * ((Self::ROWS + self.columns + basis) * Self::DEPTH * 2 + 16) + 1024) as u32
    }

    /// The same for outputs that go through shared memory (`kernels/tile/wgmma_odd.cuh`): eight rows a warp more,
    /// of a tile's columns and eight.
    pub(super) fn odd_shared_bytes(&self) -> u32 {
        self.shared_bytes() + (8 * 8 * (self.columns + 8) * 2) as u32
    }

    /// The most that a kernel of `linear` takes.
    pub(super) fn most_shared_bytes(&self) -> u32 {
        self.odd_shared_bytes().max(if self.takes_basis() { self.basis_shared_bytes() } else { 0 })
    }

    pub(super) fn defines(&self) -> Vec<(&'static str, String)> {
        vec![("WGMMA_COLUMNS", self.columns.to_string()), ("WGMMA_STAGES", self.stages.to_string()), ("CLUSTER", self.cluster.to_string())]
    }

    /// What there is of `linear` with this tile.
    pub(super) fn linear_defines(&self) -> [(&'static str, String); 3] {
        [("WGMMA_ACROSS", self.across.to_string()), ("WGMMA_CUTS", self.cuts().to_string()), ("WGMMA_BASIS", self.takes_basis().to_string())]
    }

    /// The same of the first product of `fused_mlp`, beside those of the second.
    pub(super) fn up_defines(&self) -> [(&'static str, String); 2] {
        [("UP_COLUMNS", self.columns.to_string()), ("UP_STAGES", self.stages.to_string())]
    }

    /// For the names of units.
    pub(super) const fn columns_name(&self) -> u64 {
        self.columns
    }

    fn layout<'a>(dtype: DType, dims: &'a [u64; 2], strides: &'a [u64; 1], box_dims: &'a [u32; 2]) -> Layout<'a> {
        Layout { dtype, dims, strides, box_dims, swizzle: Swizzle::B128 }
    }

    /// Whether TMA can read [rows, depth] elements with that stride, wherever they start, or why not.
    pub(super) fn reads(dtype: DType, rows: u64, depth: u64, stride: u64) -> std::result::Result<(), String> {
        if rows > i32::MAX as u64 - 512 || depth > i32::MAX as u64 - 512 {
            return Err(format!("places in [{rows}, {depth}] do not fit into 32 bits"));
        }
        Self::layout(dtype, &[depth, rows.max(1)], &[stride], &[64, 128]).validate().map_err(|error| error.to_string())
    }

    /// Why it is not for that many rows, if so.
    pub(super) fn enough_rows(rows: u64) -> std::result::Result<(), String> {
        if rows < Self::LEAST_ROWS { Err(format!("{rows} rows: smaller tiles read the weights as fast")) } else { Ok(()) }
    }
}

/// How a product's kernel is started.
pub(super) struct WgmmaLaunch {
    pub tile: WgmmaTile,
    /// The kernel, and that for outputs that cannot be moved 16 bytes at a time.
    pub entry: &'static str,
    pub odd_entry: &'static str,
    /// K is cut into parts.
    pub cut: Option<Cut>,
    /// It may start while the kernel before still runs.
    pub overlap: bool,
}

/// How K is cut.
pub(super) struct Cut {
    /// The kernel for it. That for odd outputs takes a cut as well.
    pub entry: &'static str,
    pub parts: u64,
    /// Of [`WgmmaTile::cut_bytes`].
    pub workspace: Slice<Cuda>,
}

impl Product<'_> {
    /// The parameters of a kernel of `tile/wgmma_gemm.cuh`, with what it reads X and the weights by.
    fn wgmma_params(&self, tile: &WgmmaTile) -> Result<GemmParams> {
        let mut params = self.params();
        let rows = |slice: &Slice<Cuda>, rows: u64, stride: u64, count: u64| {
            WgmmaTile::layout(self.dtype, &[self.depth, rows], &[stride], &[WgmmaTile::DEPTH as u32, count as u32]).encode(slice)
        };
        // Rows 8q + 2i + e, e first, then q, then i: see `Places` in the kernel. Whole eights are the outputs of those that use it.
        let (stride, eights) = (self.w_stride, self.columns / 8);
        let runs = |slice: &Slice<Cuda>, count: u32| {
            let (dims, box_dims) = ([self.depth, 2, eights, 4], [WgmmaTile::DEPTH as u32, 2, count, 4]);
            Layout { dtype: self.dtype, dims: &dims, strides: &[stride, 8 * stride, 2 * stride], box_dims: &box_dims, swizzle: Swizzle::B128 }.encode(slice)
        };
        params.x_map = rows(&self.x, self.rows, self.x_stride, if tile.across { WgmmaTile::ROWS / 2 } else { WgmmaTile::ROWS })?;
        if params.vector == 0 {
            // Blocks bring half of W's tile each, where that is whole in eights.
            let halves = !tile.across && (tile.columns / 2).is_multiple_of(8);
            params.w_map = rows(&self.w, self.columns, stride, if halves { tile.columns / 2 } else { tile.columns })?;
            return Ok(params);
        }
        params.w_map = runs(&self.w, 4)?;
        params.rest_map = runs(&self.w, 1)?;
        if let Some(gate) = &self.gate {
            params.gate_map = runs(gate, 4)?;
        }
        Ok(params)
    }

    /// Puts a kernel of `tile/wgmma_gemm.cuh` into the queue. Every row of X and of the weights starts on a multiple of 16 bytes; a
    /// gated product's outputs can be moved 16 bytes at a time.
    ///
    /// # Safety
    /// As [`Plan::launch`].
    pub(super) unsafe fn launch_wgmma<O: Op>(&self, queue: &mut Queue, plan: &Plan<O>, how: &WgmmaLaunch) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let tile = &how.tile;
        let mut params = self.wgmma_params(tile)?;
        let odd = params.vector == 0;
        let tiles = tile.tiles(self.rows, self.columns, self.gate.is_some());
        let room = u64::from(plan.target.units) / tile.cluster * tile.cluster;
        let cluster = [tile.cluster as u32, 1, 1];
        let one = Launch {
            shared_bytes: if odd { tile.odd_shared_bytes() } else { tile.shared_bytes() },
            cluster,
            overlap: how.overlap,
            ..Launch::new(tiles.min(room.max(tile.cluster)) as u32, WgmmaTile::THREADS)
        };
        if let Some(Cut { entry, parts, workspace }) = &how.cut {
            // Blocks that share a tile wait for each other: all are on the device at once.
            let cut = Launch { grid: [(tiles * parts) as u32, 1, 1], overlap: false, cooperative: true, ..one };
            let entry = if odd { how.odd_entry } else { entry };
            if plan.resident_clusters(entry, &cut)? * tile.cluster >= tiles * parts {
                params.parts = *parts as u32;
                params.arrived = address(workspace);
                params.partial = params.arrived + WgmmaTile::counter_bytes(tiles);
                // SAFETY: the caller's promise; the workspace is as large as the cut wants it.
                return unsafe { plan.launch(queue, entry, &cut, &params) };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { plan.launch(queue, if odd { how.odd_entry } else { how.entry }, &one, &params) }
    }

    /// The same with what adapters add, their basis as further rows of W. Nothing of theirs is in Y.
    ///
    /// # Safety
    /// As [`Plan::launch`].
    pub(super) unsafe fn launch_with_basis<O: Op>(&self, queue: &mut Queue, plan: &Plan<O>, entry: &str, tile: &WgmmaTile, sums: AdapterSums) -> Result<()> {
        let (k, run, stride) = (self.depth, WgmmaTile::RUN, self.w_stride);
        let x_box = [WgmmaTile::DEPTH as u32, WgmmaTile::ROWS as u32];
        let w = Layout {
            dtype: self.dtype,
            dims: &[k, 2, 4, 4, self.columns / run],
            strides: &[stride, 8 * stride, 2 * stride, run * stride],
            box_dims: &[WgmmaTile::DEPTH as u32, 2, 4, 4, (tile.columns / 2 / run) as u32],
            swizzle: Swizzle::B128,
        };
        let gemm = GemmParams {
            x_map: WgmmaTile::layout(self.dtype, &[k, self.rows], &[self.x_stride], &x_box).encode(&self.x)?,
            w_map: w.encode_at(address(&self.w))?,
            adds: 0,
            ..self.params()
        };
        let room = u64::from(plan.target.units) / tile.cluster * tile.cluster;
        let launch = Launch {
            shared_bytes: tile.basis_shared_bytes(),
            cluster: [tile.cluster as u32, 1, 1],
            // The kernel waits before it reads anything.
            overlap: true,
            ..Launch::new(tile.tiles(self.rows, self.columns, false).min(room.max(tile.cluster)) as u32, WgmmaTile::THREADS)
        };
        // SAFETY: the caller's promise.
        unsafe { plan.launch(queue, entry, &launch, &AdaptedParams { gemm, sums }) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::jit::Arch;
    use super::*;

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10 };

    fn choose((rows, outputs, depth, _): (u64, u64, u64, bool)) -> (WgmmaTile, u64) {
        super::super::wgmma_choice::Shape { rows, outputs, depth }.choose(&H200)
    }

    #[test]
    fn a_tile_is_as_small_as_the_work_asks_for() {
        let linear = |product| choose(product).0;
        assert_eq!(linear((4096, 4096, 4096, false)), WgmmaTile::WIDE);
        assert_eq!(linear((512, 4096, 4096, false)), WgmmaTile::NARROW, "64 wide tiles for 132 multiprocessors");
        for tile in WgmmaTile::ALL {
            assert!(tile.odd_shared_bytes() <= 227 << 10, "{tile:?}");
        }
        for tile in WgmmaTile::OF_UP {
            assert!(tile.shared_bytes() <= 227 << 10, "{tile:?}");
        }
    }

    #[test]
    fn a_first_product_fills_whole_rounds() {
        let up = |rows, gated| WgmmaTile::choose(WgmmaTile::OF_UP, (rows, 11008, 4096, gated), &H200);
        assert_eq!([256, 512, 1024].map(|rows| up(rows, false)), [WgmmaTile::FITTED; 3]);
        assert_ne!(up(512, true), WgmmaTile::FITTED, "half of its columns are not whole in eights");
        assert_eq!(WgmmaTile::FITTED.time((512, 11008, 4096, false), &H200), 1.09 * 2.0 * 168.0 * 4352.0, "two rounds");
    }

    #[test]
    fn both_products_of_an_mlp_fill_whole_rounds() {
        let widths = |rows, [up, down]: [(u64, u64); 2]| {
            let choose = |tiles, (outputs, depth)| WgmmaTile::choose(tiles, (rows, outputs, depth, false), &H200).columns;
            [choose(WgmmaTile::OF_UP, up), choose(WgmmaTile::OF_DOWN, down)]
        };
        // Llama-2's: 7B, 13B, 70B.
        assert_eq!(widths(512, [(11008, 4096), (4096, 11008)]), [168, 128]);
        assert_eq!([512, 1024].map(|rows| widths(rows, [(13824, 5120), (5120, 13824)])), [[224, 160]; 2]);
        assert_eq!(widths(512, [(28672, 8192), (8192, 28672)]), [224, 256]);
    }

    #[test]
    fn a_long_k_is_cut_where_tiles_are_few_and_the_sums_fit() {
        for product in [(4096, 4096, 4096, false), (256, 1024, 4096, false), (256, 4096, 1024, false)] {
            assert_eq!(choose(product).1, 1, "{product:?}");
        }
        for (rows, outputs, depth) in [(129, 4096, 4096), (256, 4096, 4096), (256, 4096, 11008), (65, 2048, 8192)] {
            let (tile, parts) = choose((rows, outputs, depth, false));
            assert!(parts > 1 && tile.tiles(rows, outputs, false) * parts <= 132, "{rows} × {outputs} × {depth}: {parts} of {tile:?}");
            assert!(tile.cut_bytes(rows, outputs, parts) <= 32 << 20);
        }
    }

    #[test]
    fn what_tma_cannot_read_is_refused() {
        assert!(WgmmaTile::reads(DType::F16, 100, 4096, 4096).is_ok());
        assert!(WgmmaTile::reads(DType::F16, 100, 4095, 4095).is_err());
        assert!(WgmmaTile::reads(DType::BF16, 1 << 31, 64, 64).is_err());
    }
}
