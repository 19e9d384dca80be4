//! Products on the tensor cores of Hopper: tiles and launches of `kernels/tile/wgmma_gemm.cuh`, `wgmma_widths.cuh`, `wgmma_turns.cuh`,
//! `wgmma_parts.cuh` and `wgmma_single.cuh`.

use super::adapter_basis::{AdaptedParams, AdapterSums};
use super::gemm::{GemmParams, Product};
use super::kernel::{Launch, Plan, Target, address};
use super::tma::{Layout, Swizzle};
use super::wgmma_choice::Shape;
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::Op;

/// What the blocks of a cluster have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shares {
    /// Two, one below the other: W's tile, of which each brings half. Blocks take tile after tile.
    W,
    /// Nothing: a block is by itself. It takes tile after tile too.
    Nothing,
    /// So many: the tile of outputs, each with a part of K. A block has one tile, as with the next.
    Tile(u64),
    /// Two, as with the first, W's tile; and so many of such pairs the tile of outputs, each with a part of K.
    Both(u64),
}

/// A block's tile: 64 elements of K a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WgmmaTile {
    /// 128, of both warp groups; 64 where they take turns, each with a tile of its own (`tile/wgmma_turns.cuh`).
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// Those of a product's last tiles, where they are narrower so that they fill whole rounds of multiprocessors (`tile/wgmma_widths.cuh`).
    pub(super) last: u64,
    stages: u64,
    pub(super) shares: Shares,
}

impl WgmmaTile {
    pub(super) const WIDE: Self = Self::new(256);
    /// Less work a tile, where few tiles would leave multiprocessors idle at the end.
    pub(super) const NARROW: Self = Self::new(128);
    /// Half of the outputs of 384, an encoder's, where wide tiles would be half empty.
    pub(super) const MIDDLE: Self = Self::new(192);
    /// A width that few multiprocessors sit idle after: 11,008 outputs, Llama's, of 512 rows are 264 tiles for 132 of them. One stage more than
    /// where outputs go through shared memory.
    pub(super) const FITTED: Self = Self { stages: 6, ..Self::new(168) };
    /// The narrowest of whole runs for a K of a step or two (`tile/wgmma_short.cuh`), of which few would leave multiprocessors idle.
    pub(super) const SLIM: Self = Self::new(64);
    /// A K so short that outputs take a good part of the time.
    pub(super) const IN_TURNS: Self = Self { rows: Self::ROWS / 2, stages: 5, ..Self::WIDE };
    pub(super) const ROWS: u64 = 128;
    pub(super) const DEPTH: u64 = 64;
    const THREADS: u32 = 384;
    /// Of a block on Hopper; and what it may take to start on a multiple of 1,024.
    pub(super) const SHARED_BYTES: u64 = 227 << 10;
    pub(super) const START: u64 = 1024;
    /// Outputs that are in one order in Y and in another in shared memory, with a basis; and its rows.
    pub(super) const RUN: u64 = 32;
    const BASIS_ROWS: u64 = 16;
    /// The width that is worth its rows: with fewer the time goes into reading W, which needs no wgmma.
    const LEAST_ROWS: u64 = 65;

    /// The least K, and the fewest outputs, of a product whose K may be split: so long a K takes the time, and what is added up at the
    /// end is little beside it. An encoder has no such product, so that the sums of a sentence do not depend on the rows of its
    /// batch (see `model`).
    pub(super) const CUT_DEPTH: u64 = 4096;
    pub(super) const CUT_OUTPUTS: u64 = 1025;

    /// With as many stages as there is room for, beside outputs on their way through shared memory.
    pub(super) const fn new(columns: u64) -> Self {
        let stages = (Self::SHARED_BYTES - Self::START - Self::way_bytes(columns)) / Self::stage_bytes(Self::ROWS + columns);
        Self { rows: Self::ROWS, columns, last: columns, stages, shares: Shares::W }
    }

    /// The same of blocks that are in no cluster, where there is a kernel for that.
    pub(super) fn alone(self) -> Option<Self> {
        (self.shares == Shares::W && !self.takes_turns()).then_some(Self { shares: Shares::Nothing, ..self })
    }

    pub(super) const fn takes_turns(&self) -> bool {
        self.rows < Self::ROWS
    }

    /// Wide ones, and last ones of so many columns.
    pub(super) const fn ending(last: u64) -> Self {
        Self { last, ..Self::WIDE }
    }

    /// Whether its last tiles are narrower.
    pub(super) const fn has_widths(&self) -> bool {
        self.last != self.columns
    }

    /// With as many stages as there is room for: outputs leave through it.
    pub(super) const fn split(columns: u64, parts: u64) -> Self {
        let stages = (Self::SHARED_BYTES - Self::START) / Self::stage_bytes(Self::ROWS + columns);
        Self { stages, shares: Shares::Tile(parts), ..Self::new(columns) }
    }

    pub(super) const fn both(parts: u64) -> Self {
        Self { shares: Shares::Both(parts), ..Self::NARROW }
    }

    /// Of outputs on their way through shared memory (`kernels/tile/wgmma_odd.cuh`): eight rows a warp, of a tile's columns and eight.
    const fn way_bytes(columns: u64) -> u64 {
        8 * 8 * (columns + 8) * 2
    }

    /// Of a stage of so many rows of X and W, with its two barriers.
    const fn stage_bytes(rows: u64) -> u64 {
        rows * Self::DEPTH * 2 + 16
    }

    /// Whether it is one of `wgmma_single.cuh`.
    const fn is_single(&self) -> bool {
        matches!(self.shares, Shares::Tile(_))
    }

    /// Whether its blocks take tile after tile.
    const fn stays(&self) -> bool {
        matches!(self.shares, Shares::W | Shares::Nothing)
    }

    /// Whether the blocks that share a tile of outputs are of several clusters.
    pub(super) const fn meets_outside(&self) -> bool {
        matches!(self.shares, Shares::Both(_))
    }

    /// Blocks of a cluster.
    pub(super) const fn cluster(&self) -> u64 {
        match self.shares {
            Shares::Nothing => 1,
            Shares::Tile(parts) => parts,
            _ => 2,
        }
    }

    /// Parts of K.
    pub(super) const fn parts(&self) -> u64 {
        match self.shares {
            Shares::Tile(parts) | Shares::Both(parts) => parts,
            _ => 1,
        }
    }

    /// Whether there is a kernel with a basis.
    pub(super) fn takes_basis(&self) -> bool {
        [Self::MIDDLE, Self::NARROW].contains(self)
    }

    /// Whether it is for gated products too: of one width, half of whose columns, of each weight, are whole in runs of 32.
    pub(super) const fn gates(&self) -> bool {
        self.columns.is_multiple_of(64) && !self.has_widths() && !self.takes_turns()
    }

    /// Clusters' tiles, one below the other.
    pub(super) fn down(&self, rows: u64) -> u64 {
        rows.div_ceil(self.rows * if matches!(self.shares, Shares::W | Shares::Both(_)) { 2 } else { 1 })
    }

    /// Blocks that there is work for, whole clusters of them.
    pub(super) fn blocks(&self, rows: u64, outputs: u64, gated: bool) -> u64 {
        let width = if gated { self.columns / 2 } else { self.columns };
        // Of a cluster all blocks have tiles of their own, or parts of one, or both.
        let blocks = if self.meets_outside() { 2 * self.parts() } else { self.cluster() };
        self.down(rows).saturating_mul(blocks).saturating_mul(outputs.div_ceil(width))
    }

    /// Rows of X that there are in a last tile, in whole patterns of the swizzle.
    const fn last_rows(&self, rows: u64) -> u64 {
        Self::last_box(rows, self.rows)
    }

    /// Of `count` rows in boxes of so many, those of the last.
    pub(super) const fn last_box(count: u64, height: u64) -> u64 {
        ((count - 1) % height + 1).next_multiple_of(8)
    }

    /// Blocks that are surely at work at once: of an H200's multiprocessors, 132, clusters of four find place for 30 of 33, and of eight for 14 of 16.
    pub(super) fn room(&self, target: &Target) -> u64 {
        Self::room_of(self.cluster(), target)
    }

    /// The same of clusters of so many.
    pub(super) fn room_of(cluster: u64, target: &Target) -> u64 {
        let clusters = u64::from(target.units) / cluster;
        let placed = if cluster > 2 { clusters * 7 / 8 } else { clusters };
        placed.max(1) * cluster
    }

    /// Clusters for all of that, or as many as are at work at once and take one tile after the other.
    fn launch(&self, rows: u64, outputs: u64, gated: bool, target: &Target) -> Launch {
        let blocks = self.blocks(rows, outputs, gated);
        let blocks = if self.stays() { blocks.min(self.room(target)) } else { blocks };
        Launch { cluster: [self.cluster() as u32, 1, 1], ..Launch::new(blocks as u32, Self::THREADS) }
    }

    /// Of shared memory, for outputs that go straight to Y, or over the stages of a single tile.
    pub(super) fn shared_bytes(&self) -> u32 {
        self.bytes(0)
    }

    /// The same with the rows of a basis in every stage.
    pub(super) fn basis_shared_bytes(&self) -> u32 {
        self.bytes(Self::BASIS_ROWS)
    }

    fn bytes(&self, basis: u64) -> u32 {
        (self.stages * Self::stage_bytes(self.rows + self.columns + basis) + Self::START) as u32
    }

    /// The same with their way through shared memory, where that is not over the stages.
    pub(super) fn odd_shared_bytes(&self) -> u32 {
        self.shared_bytes() + if self.is_single() || self.takes_turns() { 0 } else { Self::way_bytes(self.columns) as u32 }
    }

    /// The most that a kernel of `linear` takes.
    pub(super) fn most_shared_bytes(&self) -> u32 {
        self.odd_shared_bytes().max(if self.takes_basis() { self.basis_shared_bytes() } else { 0 })
    }

    pub(super) fn defines(&self) -> Vec<(&'static str, String)> {
        let columns = [("WGMMA_COLUMNS", self.columns), ("WGMMA_LAST", self.last), ("WGMMA_STAGES", self.stages), ("CLUSTER", self.cluster())];
        columns.map(|(name, value)| (name, value.to_string())).into()
    }

    /// What there is of `linear` with this tile.
    pub(super) fn linear_defines(&self) -> [(&'static str, String); 5] {
        let kinds = [("WGMMA_SINGLE", self.is_single()), ("WGMMA_BOTH", self.meets_outside()), ("WGMMA_BASIS", self.takes_basis())];
        let [single, both, basis] = kinds.map(|(name, is)| (name, is.to_string()));
        [single, both, basis, ("WGMMA_IN_TURNS", self.takes_turns().to_string()), ("WGMMA_PARTS", self.parts().to_string())]
    }

    /// The same of the first product of `fused_mlp`, beside those of the second.
    pub(super) fn up_defines(&self) -> [(&'static str, String); 4] {
        let [columns, last, stages] =
            [("UP_COLUMNS", self.columns), ("UP_LAST", self.last), ("UP_STAGES", self.stages)].map(|(name, value)| (name, value.to_string()));
        [columns, last, stages, ("UP_IN_TURNS", self.takes_turns().to_string())]
    }

    /// In the names of units.
    pub(super) fn name(&self) -> String {
        let columns = self.columns;
        match self.shares {
            Shares::W if self.takes_turns() => format!("{columns} columns in turns"),
            Shares::W if self.has_widths() => format!("{columns} columns, at last {}", self.last),
            Shares::W => format!("{columns} columns"),
            Shares::Nothing if self.has_widths() => format!("{columns} columns alone, at last {}", self.last),
            Shares::Nothing => format!("{columns} columns alone"),
            Shares::Tile(parts) => format!("{columns} columns, K in {parts} parts"),
            Shares::Both(parts) => format!("{columns} columns shared, K in {parts} parts"),
        }
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
    /// It may start while the kernel before still runs, if it is short (see [`Shape::starts_early`]) or comes on top of what that one writes.
    pub overlap: bool,
    /// And, if it does, read the weights meanwhile: nothing that may still run writes them.
    pub weights_early: bool,
}

impl WgmmaLaunch {
    /// The kernel for a product's outputs.
    pub(super) const fn entry_of(&self, params: &GemmParams) -> &'static str {
        if params.vector == 0 { self.odd_entry } else { self.entry }
    }
}

impl Product<'_> {
    /// The parameters of a kernel of `tile/wgmma_gemm.cuh`, with what it reads X and the weights by.
    fn wgmma_params(&self, tile: &WgmmaTile) -> Result<GemmParams> {
        let mut params = self.params();
        let rows = |slice: &Slice<Cuda>, rows: u64, stride: u64, count: u64| WgmmaTile::rows_map(self.dtype, slice, [rows, self.depth], stride, count);
        // Rows 8q + 2i + e, e first, then q, then i: see `Places` in the kernel. Whole eights are the outputs of those that use it.
        let (stride, eights) = (self.w_stride, self.columns / 8);
        let runs = |slice: &Slice<Cuda>, count: u32| {
            let (dims, box_dims) = ([self.depth, 2, eights, 4], [WgmmaTile::DEPTH as u32, 2, count, 4]);
            Layout {
                dtype: self.dtype,
                dims: &dims,
                strides: &[stride, 8 * stride, 2 * stride],
                box_dims: &box_dims,
                swizzle: Swizzle::B128,
                promotion: WgmmaTile::promotion(self.dtype, stride),
            }
            .encode(slice)
        };
        params.x_map = rows(&self.x, self.rows, self.x_stride, tile.rows)?;
        params.x_last_map = rows(&self.x, self.rows, self.x_stride, tile.last_rows(self.rows))?;
        if params.vector == 0 || tile.is_single() {
            // Blocks that share W's tile bring half of it each, where that is whole in eights.
            let halves = !tile.is_single() && tile.cluster() == 2 && (tile.columns / 2).is_multiple_of(8);
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

    /// The parameters of a kernel of `tile/wgmma_gemm.cuh`, and how it is started. Every row of X and of the weights starts on a multiple of 16
    /// bytes; a gated product's outputs can be moved 16 bytes at a time.
    pub(super) fn wgmma_start(&self, how: &WgmmaLaunch, target: &Target) -> Result<(GemmParams, Launch)> {
        let (tile, mut params) = (&how.tile, self.wgmma_params(&how.tile)?);
        let outputs = if self.gate.is_some() { 2 * self.columns } else { self.columns };
        let shape = Shape { rows: self.rows, outputs, depth: self.depth, ..Shape::default() };
        let overlap = how.overlap && (self.adds || shape.starts_early(tile, target));
        params.weights_early = (how.weights_early && overlap).into();
        params.wide = shape.wide(tile, target) as u32;
        let shared_bytes = if params.vector == 0 { tile.odd_shared_bytes() } else { tile.shared_bytes() };
        Ok((params, Launch { shared_bytes, overlap, ..tile.launch(self.rows, self.columns, self.gate.is_some(), target) }))
    }

    /// Puts it into the queue.
    ///
    /// # Safety
    /// As [`Plan::launch`].
    pub(super) unsafe fn launch_wgmma<O: Op>(&self, queue: &mut Queue, plan: &Plan<O>, how: &WgmmaLaunch) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let (params, launch) = self.wgmma_start(how, &plan.target)?;
        // SAFETY: the caller's promise.
        unsafe { plan.launch(queue, how.entry_of(&params), &launch, &params) }
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
            promotion: WgmmaTile::promotion(self.dtype, stride),
        };
        let gemm = GemmParams {
            x_map: WgmmaTile::layout(self.dtype, &[k, self.rows], &[self.x_stride], &x_box).encode(&self.x)?,
            w_map: w.encode_at(address(&self.w))?,
            adds: 0,
            ..self.params()
        };
        let launch = Launch {
            shared_bytes: tile.basis_shared_bytes(),
            // The kernel waits before it reads anything.
            overlap: true,
            ..tile.launch(self.rows, self.columns, false, &plan.target)
        };
        // SAFETY: the caller's promise.
        unsafe { plan.launch(queue, entry, &launch, &AdaptedParams { gemm, sums }) }
    }
}
