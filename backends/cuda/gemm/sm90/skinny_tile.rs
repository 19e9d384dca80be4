//! Products of up to 128 rows in one tile a block, which prefetch weights before the PDL wait: tiles and launches of
//! `kernels/gemm/sm90/skinny_tile.cuh`.

use crate::backends::cuda::gemm::problem::{GemmParams, Product};
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::tensor_map::TensorMap;
use crate::backends::cuda::variant::{Launch, Plan, Target, range};
use crate::error::Result;
use crate::ops::Op;

/// Rates in bytes a microsecond, from memory and into an SM; then microseconds of a tile's epilogue, and of every doubling of split-K
/// parts.
const MEMORY: f64 = 4.2e6;
const INTO_A_UNIT: f64 = 90e3;
const OUTPUTS: f64 = 1.2;
const MEET: f64 = 1.5;

/// What a thread block computes at once: a tile of outputs for all tokens, or a part of its K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SkinnyTile {
    pub columns: u64,
    /// Parts of K, one for each block of a cluster.
    pub parts: u64,
    /// Whether there are two weights, one of them the gate's.
    pub gated: bool,
    /// Whether a block takes one tile after another, where not all tiles are resident at once.
    pub several: bool,
}

impl SkinnyTile {
    /// The kernel's name.
    pub(crate) const ENTRY: &str = "gemm_skinny_tile";
    /// The most rows of X.
    pub(crate) const ROWS: u64 = 128;
    const DEPTH: u64 = 64;
    const THREADS: u32 = 384;
    const SHARED_BYTES: u64 = 227 << 10;
    /// Bytes that the first stage may skip to start at a multiple of 1,024.
    const START: u64 = 1024;

    pub(crate) const fn new(columns: u64, parts: u64) -> Self {
        Self { columns, parts, gated: false, several: parts == 1 }
    }

    pub(crate) const fn gated(columns: u64) -> Self {
        Self { columns, parts: 1, gated: true, several: true }
    }

    /// This tile for blocks that have one tile each.
    pub(crate) const fn once(self) -> Self {
        Self { several: false, ..self }
    }

    /// The configuration's name: rows of X by columns of a weight, and the parts of K.
    pub(crate) fn config(&self) -> String {
        let parts = if self.parts > 1 { format!("-splitk{}", self.parts) } else { String::new() };
        format!("{}x{}{parts}", Self::ROWS, self.columns)
    }

    /// Bytes of a stage of this many rows, with its two barriers.
    const fn stage_bytes(rows: u64) -> u64 {
        rows * Self::DEPTH * 2 + 16
    }

    /// Stages of X. The rest of shared memory is for W. A wide stage of W takes so long that fewer stages of X are enough.
    pub(crate) const fn x_stages(&self) -> u64 {
        if self.weight_rows() > 128 { 4 } else { 7 }
    }

    const fn x_bytes(&self) -> u64 {
        self.x_stages() * Self::stage_bytes(Self::ROWS)
    }

    /// Rows of W in a stage.
    const fn weight_rows(&self) -> u64 {
        if self.gated { 2 * self.columns } else { self.columns }
    }

    /// Stages of W.
    pub(crate) const fn stages(&self) -> u64 {
        (Self::SHARED_BYTES - Self::START - self.x_bytes()) / Self::stage_bytes(self.weight_rows())
    }

    pub(crate) const fn shared_bytes(&self) -> u32 {
        (self.stages() * Self::stage_bytes(self.weight_rows()) + self.x_bytes() + Self::START) as u32
    }

    /// Parts of tiles: the thread blocks, where all of them are resident at once.
    const fn blocks(&self, outputs: u64) -> u64 {
        outputs.div_ceil(self.columns).saturating_mul(self.parts)
    }

    /// Thread blocks that are resident at once. Blocks that share a tile are all resident, or none is.
    fn room(&self, target: &Target) -> u64 {
        (u64::from(target.units) / self.parts * self.parts).max(1)
    }

    /// Waves: the most tiles that one block takes.
    pub(crate) fn rounds(&self, outputs: u64, target: &Target) -> u64 {
        self.blocks(outputs).div_ceil(self.room(target))
    }

    /// The one of `tiles` with the fewest columns a block over at most `most` waves. None where it would leave more than a quarter of the
    /// SMs idle.
    pub(crate) fn choose(tiles: &[Self], outputs: u64, most: u64, target: &Target) -> Option<Self> {
        let units = u64::from(target.units);
        let there = tiles.iter().copied().map(|tile| (tile, tile.rounds(outputs, target))).filter(|&(_, rounds)| rounds <= most);
        let (tile, rounds) = there.min_by_key(|(tile, rounds)| (rounds * tile.columns, tile.columns))?;
        (tile.blocks(outputs) * 4 >= units * rounds * 3).then_some(tile)
    }

    /// Microseconds from a product's first k-block to its last output, reckoned for an H200 and not yet fitted to one. A k-block takes as
    /// long as its bytes take into an SM, and all take at least what memory takes. The exchange of parts comes on top.
    fn time(&self, [outputs, depth]: [u64; 2], target: &Target) -> f64 {
        let rounds = self.rounds(outputs, target) as f64;
        let steps = depth.div_ceil(Self::DEPTH).div_ceil(self.parts) as f64;
        let bytes = ((Self::ROWS + self.columns) * Self::DEPTH * 2) as f64;
        let memory = 2.0 * outputs as f64 * depth as f64 / MEMORY;
        (rounds * steps * bytes / INTO_A_UNIT).max(memory) + rounds * OUTPUTS + MEET * (self.parts as f64).log2()
    }

    /// The one of `tiles` that takes the least time for a product of these outputs and K. Tiles with parts of K have one wave.
    pub(crate) fn least(tiles: &[Self], sizes: [u64; 2], target: &Target) -> Option<Self> {
        let there = tiles.iter().copied().filter(|tile| tile.parts == 1 || tile.rounds(sizes[0], target) == 1);
        there.min_by(|a, b| a.time(sizes, target).total_cmp(&b.time(sizes, target)))
    }

    fn launch(&self, outputs: u64, target: &Target) -> Launch {
        let all = self.blocks(outputs);
        let blocks = if self.several { all.min(self.room(target)) } else { all };
        Launch { shared_bytes: self.shared_bytes(), cluster: [self.parts as u32, 1, 1], ..Launch::new(blocks as u32, Self::THREADS) }
    }

    fn params(&self, product: &Product<'_>) -> Result<GemmParams> {
        let mut params = product.params();
        params.x_map = WgmmaTile::rows_map(product.dtype, &product.x, [product.rows, product.depth], product.x_stride, product.rows.next_multiple_of(8))?;
        let weights = |w| WgmmaTile::rows_map(product.dtype, w, [product.columns, product.depth], product.w_stride, self.columns);
        params.w_map = weights(&product.w)?;
        params.gate_map = product.gate.as_ref().map_or(Ok(TensorMap::NONE), weights)?;
        Ok(params)
    }

    /// Enqueues the kernel of a product: the plan's first from unit `unit` on. It reads weights and bias before the PDL wait where no write
    /// in flight touches them.
    ///
    /// # Safety
    /// The conditions of [`Plan::launch`] hold, and aligned rows start where TMA can read them.
    pub(crate) unsafe fn run<O: Op>(&self, queue: &mut Queue, plan: &Plan<O>, unit: usize, product: &Product<'_>) -> Result<()> {
        let (ahead, open) = queue.prefetch_allowed(&product.constants(), vec![range(&product.y)]);
        let params = GemmParams { weights_early: ahead.into(), ..self.params(product)? };
        // SAFETY: the caller's promise.
        unsafe { plan.launch_of(queue, unit, Self::ENTRY, &Launch { overlap: ahead, ..self.launch(product.columns, &plan.target) }, &params)? };
        queue.leave_open(open);
        Ok(())
    }
}
