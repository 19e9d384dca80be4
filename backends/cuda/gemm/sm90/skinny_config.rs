//! Configurations of a product that streams W: a kernel of `kernels/gemm/sm90/skinny.cu`, a tile, a cut of K, and its launch.

use super::skinny::{SkinnyParams, SkinnyShape};
use super::units::{Form, SkinnyKernel};
use crate::backends::cuda::gemm::problem::{Product, fits};
use crate::backends::cuda::jit::Unit;
use crate::backends::cuda::runtime::pdl::InFlightWrites;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Launch, Plan, Target, range};
use crate::error::Result;
use crate::ops::Op;

/// A configuration of the kernels that stream W.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub kernel: SkinnyKernel,
    pub tile: SkinnyShape,
    /// Whether the blocks of a cluster each have a part of K.
    pub split: bool,
}

/// How a streamed product is launched.
pub(crate) struct SkinnyUse {
    /// The first unit of the plan in which the kernel is looked for: see [`Plan::launch_of`].
    pub unit: usize,
    /// Clusters that the device has room for at once.
    pub room: u64,
    /// Whether W stays in L2: see [`SkinnyParams`].
    pub keeps: bool,
    /// Whether the launch may overlap the one before: see [`Launch::overlap`]. The product's reads were compared with writes in flight.
    pub overlap: bool,
}

impl Stream {
    /// The configuration in which a warpgroup, or with split-K a cluster, takes a tile.
    pub(crate) const fn tiles(tile: SkinnyShape, split: bool) -> Self {
        Self { kernel: SkinnyKernel::Tiles, tile, split }
    }

    /// The configuration in which both warpgroups of a block take one tile.
    pub(crate) const fn groups(tile: SkinnyShape) -> Self {
        Self { kernel: SkinnyKernel::Groups, tile, split: false }
    }

    /// Every configuration of a product in a launch of its own.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let fitted = |split| SkinnyShape::every(split, SkinnyShape::fitted).into_iter().map(move |tile| Self::tiles(tile, split));
        let quartered = fitted(true).map(|stream| Self::tiles(stream.tile.quartered(), true));
        fitted(false).chain(fitted(true)).chain(quartered).chain(SkinnyShape::all_grouped().map(Self::groups))
    }

    /// Every configuration of the second product of an MLP. Both products have one tile shape.
    pub(crate) fn of_mlp() -> impl Iterator<Item = Self> {
        SkinnyShape::every(false, SkinnyShape::filled).into_iter().flat_map(|tile| [false, true].map(|split| Self::tiles(tile, split)))
    }

    /// Whether each sum is added up in parts.
    pub(crate) fn in_parts(&self) -> bool {
        self.split || self.kernel == SkinnyKernel::Groups
    }

    /// The configuration's name: rows of X by the rows of W that a stage has room for, and how K is cut.
    pub(crate) fn config(&self) -> String {
        let cut = match (self.kernel, self.split) {
            (SkinnyKernel::Groups, _) => "-groups".into(),
            (_, true) => format!("-splitk{}", self.tile.cluster()),
            _ => String::new(),
        };
        format!("{}x{}{cut}", self.tile.tokens, self.tile.weight_rows)
    }

    /// Whether a stage has room for this many rows of X, and a thread block of the target for the stages; or why not.
    pub(crate) fn holds(&self, rows: u64, target: &Target) -> std::result::Result<(), String> {
        if rows > self.tile.tokens {
            return Err(format!("{rows} rows: a stage has room for {}", self.tile.tokens));
        }
        fits(self.tile.shared_bytes(), target)
    }

    pub(crate) fn unit(&self, form: Form) -> Unit {
        self.kernel.unit(&self.tile, self.split, form)
    }

    /// Rows of a tile of W, and the clusters that have any. The device has room for `room` clusters at once. Where partial sums meet at the
    /// kernel's end, a block has no second tile, and there are as many clusters as that takes.
    pub(crate) fn cut(&self, columns: u64, room: u64) -> (u32, u64) {
        let (once, tiles) = (self.split || self.kernel == SkinnyKernel::Groups, if self.split { 1 } else { SkinnyShape::CLUSTER });
        let (most, least) = if once { (SkinnyShape::SPLIT_ROWS, columns.div_ceil(tiles * SkinnyShape::SPLIT_ROWS)) } else { (self.tile.weight_rows, 0) };
        let clusters = room.max(least);
        let rows = SkinnyShape::rows_of(columns, clusters * tiles, most);
        (rows, SkinnyShape::clusters_of(columns, rows, self.split).min(clusters))
    }

    /// Enqueues the kernel of a product in a launch of its own. It reads weights and bias before the PDL wait where no write in flight
    /// touches them.
    ///
    /// # Safety
    /// The conditions of [`Plan::launch`] hold, and aligned rows start where TMA can read them.
    pub(crate) unsafe fn run<O: Op>(&self, queue: &mut Queue, plan: &Plan<O>, product: &Product<'_>, how: SkinnyUse) -> Result<()> {
        let SkinnyUse { unit, room, keeps, overlap } = how;
        if product.rows == 0 || product.columns == 0 {
            return Ok(());
        }
        let (tile_rows, clusters) = self.cut(product.columns, room);
        // A product that adds to Y has a PDL wait of its own.
        let (ahead, open) =
            if product.adds { (false, InFlightWrites::default()) } else { queue.prefetch_allowed(&product.constants(), vec![range(&product.y)]) };
        let params = SkinnyParams { gemm: self.tile.params(product, tile_rows)?, tile_rows, keeps: u32::from(keeps), ahead: u32::from(ahead) };
        // SAFETY: the caller's promise.
        unsafe { plan.launch_of(queue, unit, self.kernel.name(), &Launch { overlap: overlap || ahead, ..self.tile.launch(clusters) }, &params)? };
        queue.leave_open(open);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_all_columns_and_fit_their_stages() {
        for (columns, room) in
            [1, 7, 33, 512, 4096, 4097, 8448, 8449, 11008, 16897, 32000, 128_256].into_iter().flat_map(|columns| [39, 66].map(|room| (columns, room)))
        {
            for stream in Stream::all().chain(Stream::of_mlp()) {
                let (rows, clusters) = stream.cut(columns, room);
                let (blocks, once) = (if stream.split { 1 } else { 2 } * clusters, stream.split || stream.kernel == SkinnyKernel::Groups);
                assert!(u64::from(rows) <= if once { 64 } else { stream.tile.weight_rows }, "{stream:?}, {columns}: {rows}");
                assert!(if once { blocks * u64::from(rows) >= columns } else { clusters <= room && clusters > 0 }, "{stream:?}, {columns}: {clusters}");
            }
        }
    }

    #[test]
    fn names_differ() {
        let mut names: Vec<_> = Stream::all().map(|stream| stream.config()).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!((names.len(), count), (17, 17), "{names:?}");
    }
}
