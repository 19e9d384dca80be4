//! Products on the tensor cores of Hopper: tiles and launches of `kernels/gemm/sm90/mainloop.cuh`, `gemm/sm90/mixed_width.cuh`, `gemm/sm90/pingpong.cuh`,
//! `gemm/sm90/split_k_multicast.cuh` and `gemm/sm90/split_k_cluster.cuh`.

use crate::backends::cuda::variant::{Launch, Target};

/// What the blocks of a cluster have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shares {
    /// Two, one below the other: W's tile, of which each brings half. Blocks take tile after tile.
    W,
    /// Nothing: a block is by itself. It takes tile after tile too.
    Nothing,
    /// So many: the tile of outputs, each with a part of K. A block has one tile, as with the next.
    SplitKCluster(u64),
    /// Two, as with the first, W's tile; and so many of such pairs the tile of outputs, each with a part of K.
    SplitKMulticast(u64),
}

/// A block's tile: 64 elements of K a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WgmmaTile {
    /// 128, of both warpgroups; 64 where they take turns, each with a tile of its own (`gemm/sm90/pingpong.cuh`).
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    /// Those of a product's last tiles, where they are narrower so that they fill whole waves (`gemm/sm90/mixed_width.cuh`).
    pub(crate) last: u64,
    stages: u64,
    pub(crate) shares: Shares,
}

impl WgmmaTile {
    pub(crate) const WIDE: Self = Self::new(256);
    /// Less work a tile, where few tiles would leave SMs idle at the end.
    pub(crate) const NARROW: Self = Self::new(128);
    /// Half of the outputs of 384, an encoder's, where wide tiles would be half empty.
    pub(crate) const MIDDLE: Self = Self::new(192);
    /// A width that few SMs sit idle after: 11,008 outputs, Llama's, of 512 rows are 264 tiles for 132 of them. One stage more than
    /// where outputs go through shared memory.
    pub(crate) const FITTED: Self = Self { stages: 6, ..Self::new(168) };
    /// The narrowest of whole runs for a K of a step or two (`gemm/sm90/single_shot.cuh`), of which few would leave SMs idle.
    pub(crate) const SLIM: Self = Self::new(64);
    /// A K so short that outputs take a good part of the time.
    pub(crate) const PINGPONG: Self = Self { rows: Self::ROWS / 2, stages: 5, ..Self::WIDE };
    pub(crate) const ROWS: u64 = 128;
    pub(crate) const DEPTH: u64 = 64;
    const THREADS: u32 = 384;
    /// Of a block on Hopper; and what it may take to start on a multiple of 1,024.
    pub(crate) const SHARED_BYTES: u64 = 227 << 10;
    pub(crate) const START: u64 = 1024;
    /// Outputs that are in one order in Y and in another in shared memory, with a basis; and its rows.
    pub(crate) const RUN: u64 = 32;
    const BASIS_ROWS: u64 = 16;

    /// The least K, and the fewest outputs, of a product whose K may be split: so long a K takes the time, and what is added up at the
    /// end is little beside it. An encoder has no such product, so that the sums of a sentence do not depend on the rows of its
    /// batch (see `model`).
    pub(crate) const CUT_DEPTH: u64 = 4096;
    pub(crate) const CUT_OUTPUTS: u64 = 1025;

    /// With as many stages as there is room for, beside outputs on their way through shared memory.
    pub(crate) const fn new(columns: u64) -> Self {
        let stages = (Self::SHARED_BYTES - Self::START - Self::way_bytes(columns)) / Self::stage_bytes(Self::ROWS + columns);
        Self { rows: Self::ROWS, columns, last: columns, stages, shares: Shares::W }
    }

    /// The same in clusters, where there are kernels for that: blocks by themselves are as fast but where rows straddle lines of L2,
    /// and there these widths are for the others too, at 2.5 % more time in the mean of what then takes another, as the model has it.
    pub(crate) fn in_clusters(self) -> Option<Self> {
        const WIDTHS: [WgmmaTile; 6] =
            [WgmmaTile::WIDE, WgmmaTile::PINGPONG, WgmmaTile::ending(160), WgmmaTile::MIDDLE, WgmmaTile::new(160), WgmmaTile::NARROW];
        WIDTHS.contains(&self).then_some(self)
    }

    /// The same of blocks that are in no cluster, where there is a kernel for that.
    pub(crate) fn alone(self) -> Option<Self> {
        (self.shares == Shares::W && !self.is_pingpong()).then_some(Self { shares: Shares::Nothing, ..self })
    }

    pub(crate) const fn is_pingpong(&self) -> bool {
        self.rows < Self::ROWS
    }

    /// Wide ones, and last ones of so many columns.
    pub(crate) const fn ending(last: u64) -> Self {
        Self { last, ..Self::WIDE }
    }

    /// Whether its last tiles are narrower.
    pub(crate) const fn has_mixed_width(&self) -> bool {
        self.last != self.columns
    }

    /// As the kernel for outputs that cannot be moved 16 bytes at a time has it: two widths, and clusters of any width but the widest, are for all others.
    pub(crate) const fn of_odd_outputs(self) -> Self {
        let shares = match self.shares {
            Shares::W if self.columns < Self::WIDE.columns => Shares::Nothing,
            shares => shares,
        };
        Self { last: self.columns, shares, ..self }
    }

    /// With as many stages as there is room for: outputs leave through it.
    pub(crate) const fn split_k_cluster(columns: u64, parts: u64) -> Self {
        let stages = (Self::SHARED_BYTES - Self::START) / Self::stage_bytes(Self::ROWS + columns);
        Self { stages, shares: Shares::SplitKCluster(parts), ..Self::new(columns) }
    }

    pub(crate) const fn split_k_multicast(parts: u64) -> Self {
        Self { shares: Shares::SplitKMulticast(parts), ..Self::NARROW }
    }

    /// Of outputs on their way through shared memory (`kernels/gemm/sm90/unaligned_epilogue.cuh`): eight rows a warp, of a tile's columns and eight.
    const fn way_bytes(columns: u64) -> u64 {
        8 * 8 * (columns + 8) * 2
    }

    /// Of a stage of so many rows of X and W, with its two barriers.
    const fn stage_bytes(rows: u64) -> u64 {
        rows * Self::DEPTH * 2 + 16
    }

    /// Whether it is one of `gemm/sm90/split_k_cluster.cuh`.
    pub(crate) const fn is_split_k_cluster(&self) -> bool {
        matches!(self.shares, Shares::SplitKCluster(_))
    }

    /// Whether its blocks take tile after tile.
    const fn stays(&self) -> bool {
        matches!(self.shares, Shares::W | Shares::Nothing)
    }

    /// Whether the blocks that share a tile of outputs are of several clusters.
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

    /// Whether there is a kernel with a basis.
    pub(crate) fn takes_lora(&self) -> bool {
        Self::WITH_LORA.contains(self)
    }

    /// Whether it is for gated products too: of one width, half of whose columns, of each weight, are whole in runs of 32.
    pub(crate) const fn gates(&self) -> bool {
        self.columns.is_multiple_of(64) && !self.has_mixed_width() && !self.is_pingpong()
    }

    /// Clusters' tiles, one below the other.
    pub(crate) fn down(&self, rows: u64) -> u64 {
        rows.div_ceil(self.rows * if matches!(self.shares, Shares::W | Shares::SplitKMulticast(_)) { 2 } else { 1 })
    }

    /// Blocks that there is work for, whole clusters of them.
    pub(crate) fn blocks(&self, rows: u64, outputs: u64, gated: bool) -> u64 {
        let width = if gated { self.columns / 2 } else { self.columns };
        // Of a cluster all blocks have tiles of their own, or parts of one, or both.
        let blocks = if self.meets_outside() { 2 * self.parts() } else { self.cluster() };
        self.down(rows).saturating_mul(blocks).saturating_mul(outputs.div_ceil(width))
    }

    /// Rows of X that there are in a last tile, in whole patterns of the swizzle.
    pub(crate) const fn last_rows(&self, rows: u64) -> u64 {
        Self::last_box(rows, self.rows)
    }

    /// Of `count` rows in boxes of so many, those of the last.
    pub(crate) const fn last_box(count: u64, height: u64) -> u64 {
        ((count - 1) % height + 1).next_multiple_of(8)
    }

    /// Blocks that are surely at work at once: of an H200's SMs, 132, clusters of four find place for 30 of 33, and of eight for 14 of 16.
    pub(crate) fn room(&self, target: &Target) -> u64 {
        Self::room_of(self.cluster(), target)
    }

    /// The same of clusters of so many.
    pub(crate) fn room_of(cluster: u64, target: &Target) -> u64 {
        let clusters = u64::from(target.units) / cluster;
        let placed = if cluster > 2 { clusters * 7 / 8 } else { clusters };
        placed.max(1) * cluster
    }

    /// Clusters for all of that, or as many as are at work at once and take one tile after the other.
    pub(crate) fn launch(&self, rows: u64, outputs: u64, gated: bool, target: &Target) -> Launch {
        let blocks = self.blocks(rows, outputs, gated);
        let blocks = if self.stays() { blocks.min(self.room(target)) } else { blocks };
        Launch { cluster: [self.cluster() as u32, 1, 1], ..Launch::new(blocks as u32, Self::THREADS) }
    }

    /// Of shared memory, for outputs that go straight to Y, or over the stages of a single tile.
    pub(crate) fn shared_bytes(&self) -> u32 {
        self.bytes(0)
    }

    /// The same with the rows of a basis in every stage.
    pub(crate) fn lora_shared_bytes(&self) -> u32 {
        self.bytes(Self::BASIS_ROWS)
    }

    fn bytes(&self, basis: u64) -> u32 {
        (self.stages * Self::stage_bytes(self.rows + self.columns + basis) + Self::START) as u32
    }

    /// The same with their way through shared memory, where that is not over the stages.
    pub(crate) fn unaligned_shared_bytes(&self) -> u32 {
        self.shared_bytes() + if self.is_split_k_cluster() || self.is_pingpong() { 0 } else { Self::way_bytes(self.columns) as u32 }
    }

    /// The most that a kernel of `linear` takes.
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

    /// As a configuration: rows of X by rows of W, and what its blocks share.
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

    /// In the names of units.
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
