//! Tiles and launches of the sm90 products: `kernels/gemm/sm90/mainloop.cuh`, `gemm/sm90/mixed_width.cuh`, `gemm/sm90/pingpong.cuh`,
//! `gemm/sm90/split_k_multicast.cuh` and `gemm/sm90/split_k_cluster.cuh`.

use crate::backends::cuda::variant::{Launch, Target};

/// What the thread blocks of a cluster share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shares {
    /// W's tile, shared by multicast between two blocks, one below the other. Each loads half of it. The blocks are persistent.
    W,
    /// Nothing: a persistent block outside clusters.
    Nothing,
    /// A tile of outputs, split along K among this many blocks of a cluster. A block has one tile.
    SplitKCluster(u64),
    /// W's tile between two blocks by multicast, and the tile of outputs along K among this many such pairs. A block has one tile.
    SplitKMulticast(u64),
}

/// A thread block's tile, with 64 elements of K a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WgmmaTile {
    /// 128, for both warpgroups together; 64 in ping-pong, where each has a tile of its own (`gemm/sm90/pingpong.cuh`).
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    /// Columns of a product's last tiles. They may be narrower so that tiles fill whole waves (`gemm/sm90/mixed_width.cuh`).
    pub(crate) last: u64,
    stages: u64,
    pub(crate) shares: Shares,
}

impl WgmmaTile {
    pub(crate) const WIDE: Self = Self::new(256);
    /// A tile with less work, where few tiles would leave SMs idle at the end.
    pub(crate) const NARROW: Self = Self::new(128);
    /// Half of 384 outputs, an encoder's, where wide tiles would be half empty.
    pub(crate) const MIDDLE: Self = Self::new(192);
    /// A width after which few SMs are idle: 11,008 outputs, Llama's, of 512 rows are 264 tiles for 132 SMs. It has one stage more than a
    /// tile with its outputs' staging in shared memory.
    pub(crate) const FITTED: Self = Self { stages: 6, ..Self::new(168) };
    /// The narrowest tile of whole runs, for a K of one or two k-blocks (`gemm/sm90/single_shot.cuh`), where few wider tiles leave SMs idle.
    pub(crate) const SLIM: Self = Self::new(64);
    /// The ping-pong tile, for a K so short that epilogues take a good part of the time.
    pub(crate) const PINGPONG: Self = Self { rows: Self::ROWS / 2, stages: 5, ..Self::WIDE };
    pub(crate) const ROWS: u64 = 128;
    pub(crate) const DEPTH: u64 = 64;
    const THREADS: u32 = 384;
    /// Shared memory of a thread block, and the bytes that stages may skip to start at a multiple of 1,024.
    pub(crate) const SHARED_BYTES: u64 = 227 << 10;
    pub(crate) const START: u64 = 1024;
    /// Outputs in a run, which with a LoRA basis have one order in Y and another in shared memory; then the rows of the basis.
    pub(crate) const RUN: u64 = 32;
    const BASIS_ROWS: u64 = 16;

    /// The least K, and the fewest outputs, of a product whose K may be split. A K this long takes the time, and the sums at its end are
    /// little beside it. An encoder has no such product, so a sentence's sums do not depend on the rows of its batch (see `model`).
    pub(crate) const CUT_DEPTH: u64 = 4096;
    pub(crate) const CUT_OUTPUTS: u64 = 1025;

    /// A tile with as many stages as fit, beside the epilogue's staging in shared memory.
    pub(crate) const fn new(columns: u64) -> Self {
        let stages = (Self::SHARED_BYTES - Self::START - Self::way_bytes(columns)) / Self::stage_bytes(Self::ROWS + columns);
        Self { rows: Self::ROWS, columns, last: columns, stages, shares: Shares::W }
    }

    /// This tile in clusters of two, where there are kernels for that. Blocks outside clusters are as fast unless rows straddle lines of
    /// L2. There these widths stand in for the others too, at 2.5 % more modelled time in the mean.
    pub(crate) fn in_clusters(self) -> Option<Self> {
        const WIDTHS: [WgmmaTile; 6] =
            [WgmmaTile::WIDE, WgmmaTile::PINGPONG, WgmmaTile::ending(160), WgmmaTile::MIDDLE, WgmmaTile::new(160), WgmmaTile::NARROW];
        WIDTHS.contains(&self).then_some(self)
    }

    /// This tile outside clusters, where there is a kernel for that.
    pub(crate) fn alone(self) -> Option<Self> {
        (self.shares == Shares::W && !self.is_pingpong()).then_some(Self { shares: Shares::Nothing, ..self })
    }

    pub(crate) const fn is_pingpong(&self) -> bool {
        self.rows < Self::ROWS
    }

    /// A tile of the widest width whose last tiles have `last` columns.
    pub(crate) const fn ending(last: u64) -> Self {
        Self { last, ..Self::WIDE }
    }

    /// Whether the last tiles are narrower.
    pub(crate) const fn has_mixed_width(&self) -> bool {
        self.last != self.columns
    }

    /// This tile in the kernel for outputs that cannot be moved 16 bytes at a time. That kernel has no two widths, and clusters at the
    /// widest width alone.
    pub(crate) const fn of_odd_outputs(self) -> Self {
        let shares = match self.shares {
            Shares::W if self.columns < Self::WIDE.columns => Shares::Nothing,
            shares => shares,
        };
        Self { last: self.columns, shares, ..self }
    }

    /// A split-K tile with as many stages as fit. Its outputs leave through the stages.
    pub(crate) const fn split_k_cluster(columns: u64, parts: u64) -> Self {
        let stages = (Self::SHARED_BYTES - Self::START) / Self::stage_bytes(Self::ROWS + columns);
        Self { stages, shares: Shares::SplitKCluster(parts), ..Self::new(columns) }
    }

    pub(crate) const fn split_k_multicast(parts: u64) -> Self {
        Self { shares: Shares::SplitKMulticast(parts), ..Self::NARROW }
    }

    /// Bytes of the epilogue's staging in shared memory (`kernels/gemm/sm90/unaligned_epilogue.cuh`): eight rows a warp, eight columns
    /// wider than the tile.
    const fn way_bytes(columns: u64) -> u64 {
        8 * 8 * (columns + 8) * 2
    }

    /// Bytes of a stage with this many rows of X and W, and its two barriers.
    const fn stage_bytes(rows: u64) -> u64 {
        rows * Self::DEPTH * 2 + 16
    }

    /// Whether `gemm/sm90/split_k_cluster.cuh` computes the tile.
    pub(crate) const fn is_split_k_cluster(&self) -> bool {
        matches!(self.shares, Shares::SplitKCluster(_))
    }

    /// Whether the tile's blocks are persistent.
    const fn stays(&self) -> bool {
        matches!(self.shares, Shares::W | Shares::Nothing)
    }

    /// Whether blocks each add up a part of a sum.
    pub(crate) const fn in_parts(&self) -> bool {
        !self.stays()
    }

    /// Whether the blocks that share a tile of outputs lie in several clusters.
    pub(crate) const fn meets_outside(&self) -> bool {
        matches!(self.shares, Shares::SplitKMulticast(_))
    }

    /// Blocks of a cluster.
    pub(crate) const fn cluster(&self) -> u64 {
        match self.shares {
            Shares::Nothing => 1,
            Shares::SplitKCluster(parts) => parts,
            _ => 2,
        }
    }

    /// Parts of K.
    pub(crate) const fn parts(&self) -> u64 {
        match self.shares {
            Shares::SplitKCluster(parts) | Shares::SplitKMulticast(parts) => parts,
            _ => 1,
        }
    }

    /// Whether there is a kernel of this tile with a LoRA basis.
    pub(crate) fn takes_lora(&self) -> bool {
        Self::WITH_LORA.contains(self)
    }

    /// Whether gated products take the tile: one width, and a multiple of 32 columns for each weight.
    pub(crate) const fn gates(&self) -> bool {
        self.columns.is_multiple_of(64) && !self.has_mixed_width() && !self.is_pingpong()
    }

    /// Tiles of clusters, one below the other.
    pub(crate) fn down(&self, rows: u64) -> u64 {
        rows.div_ceil(self.rows * if matches!(self.shares, Shares::W | Shares::SplitKMulticast(_)) { 2 } else { 1 })
    }

    /// Thread blocks that have work, in whole clusters.
    pub(crate) fn blocks(&self, rows: u64, outputs: u64, gated: bool) -> u64 {
        let width = if gated { self.columns / 2 } else { self.columns };
        // Each block of a cluster has a tile of its own, a part of one, or both.
        let blocks = if self.meets_outside() { 2 * self.parts() } else { self.cluster() };
        self.down(rows).saturating_mul(blocks).saturating_mul(outputs.div_ceil(width))
    }

    /// Rows of X in the box of a last tile, in whole patterns of the swizzle.
    pub(crate) const fn last_rows(&self, rows: u64) -> u64 {
        Self::last_box(rows, self.rows)
    }

    /// Rows of the last box, of `count` rows in boxes of `height`.
    pub(crate) const fn last_box(count: u64, height: u64) -> u64 {
        ((count - 1) % height + 1).next_multiple_of(8)
    }

    /// Thread blocks that are surely resident at once. On an H200's 132 SMs, 30 of 33 clusters of four find a place, and 14 of 16 of eight.
    pub(crate) fn room(&self, target: &Target) -> u64 {
        Self::room_of(self.cluster(), target)
    }

    /// Thread blocks in clusters of `cluster` that are surely resident at once.
    pub(crate) fn room_of(cluster: u64, target: &Target) -> u64 {
        let clusters = u64::from(target.units) / cluster;
        let placed = if cluster > 2 { clusters * 7 / 8 } else { clusters };
        placed.max(1) * cluster
    }

    /// The launch: clusters for all tiles, or as many persistent clusters as are resident at once.
    pub(crate) fn launch(&self, rows: u64, outputs: u64, gated: bool, target: &Target) -> Launch {
        let blocks = self.blocks(rows, outputs, gated);
        let blocks = if self.stays() { blocks.min(self.room(target)) } else { blocks };
        Launch { cluster: [self.cluster() as u32, 1, 1], ..Launch::new(blocks as u32, Self::THREADS) }
    }

    /// Bytes of shared memory, where outputs go straight to Y or over the stages of a single tile.
    pub(crate) fn shared_bytes(&self) -> u32 {
        self.bytes(0)
    }

    /// Bytes of shared memory with the rows of a LoRA basis in every stage.
    pub(crate) fn lora_shared_bytes(&self) -> u32 {
        self.bytes(Self::BASIS_ROWS)
    }

    fn bytes(&self, basis: u64) -> u32 {
        (self.stages * Self::stage_bytes(self.rows + self.columns + basis) + Self::START) as u32
    }

    /// Bytes of shared memory with the epilogue's staging, where that does not lie over the stages.
    pub(crate) fn unaligned_shared_bytes(&self) -> u32 {
        self.shared_bytes() + if self.is_split_k_cluster() || self.is_pingpong() { 0 } else { Self::way_bytes(self.columns) as u32 }
    }

    /// The most bytes of shared memory that a kernel of `linear` with this tile takes.
    pub(crate) fn most_shared_bytes(&self) -> u32 {
        self.unaligned_shared_bytes().max(if self.takes_lora() { self.lora_shared_bytes() } else { 0 })
    }

    pub(crate) fn defines(&self) -> Vec<(&'static str, String)> {
        let numbers = [
            ("WGMMA_COLUMNS", self.columns),
            ("WGMMA_LAST", self.last),
            ("WGMMA_STAGES", self.stages),
            ("WGMMA_PARTS", self.parts()),
            ("CLUSTER", self.cluster()),
        ];
        let kinds =
            [("WGMMA_SPLIT_K_CLUSTER", self.is_split_k_cluster()), ("WGMMA_SPLIT_K_MULTICAST", self.meets_outside()), ("WGMMA_PINGPONG", self.is_pingpong())];
        [numbers.map(|(name, value)| (name, value.to_string())).to_vec(), kinds.map(|(name, is)| (name, is.to_string())).to_vec()].concat()
    }

    /// The configuration's name: rows of X by rows of W, and what the blocks share.
    pub(crate) fn config(&self) -> String {
        let last = if self.has_mixed_width() { format!("-{}", self.last) } else { String::new() };
        let shares = match self.shares {
            Shares::W if self.is_pingpong() => "-pingpong".into(),
            Shares::W => "-cluster2".into(),
            Shares::Nothing => String::new(),
            Shares::SplitKCluster(parts) => format!("-splitk{parts}"),
            Shares::SplitKMulticast(parts) => format!("-multicast-splitk{parts}"),
        };
        format!("{}x{}{last}{shares}", self.rows, self.columns)
    }

    /// The tile as names of units write it.
    pub(crate) fn name(&self) -> String {
        let columns = self.columns;
        if *self == Self::FITTED || Some(*self) == Self::FITTED.alone() {
            return format!("{columns} columns, {} stages{}", self.stages, if self.cluster() == 1 { " alone" } else { "" });
        }
        match self.shares {
            Shares::W if self.is_pingpong() => format!("{columns} columns pingpong"),
            Shares::W if self.has_mixed_width() => format!("{columns} columns, at last {}", self.last),
            Shares::W => format!("{columns} columns"),
            Shares::Nothing if self.has_mixed_width() => format!("{columns} columns alone, at last {}", self.last),
            Shares::Nothing => format!("{columns} columns alone"),
            Shares::SplitKCluster(parts) => format!("{columns} columns, K in {parts} parts"),
            Shares::SplitKMulticast(parts) => format!("{columns} columns shared, K in {parts} parts"),
        }
    }
}
