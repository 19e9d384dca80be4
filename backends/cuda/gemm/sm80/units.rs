//! The kernels of `kernels/gemm/sm80/tile.cu`: which of them a product may take, and the unit of each.

use super::tile::MmaTile;
use crate::backends::cuda::gemm::entry::{Entry, entry, widened};
use crate::backends::cuda::gemm::problem::{HALVES, Product, gemm_header};
use crate::backends::cuda::jit::{Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::Plan;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::Op;

/// A kernel, by the bytes that it moves at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MmaKernel {
    /// 16 bytes, of rows that are whole multiples of 16 bytes.
    Sixteen,
    /// 16 bytes, of rows that start at multiples of 16 bytes and whose last piece is shorter.
    Ragged,
    /// 4 bytes, of rows that are whole multiples of 4 bytes.
    Four,
    /// 2 bytes, of any rows.
    Two,
}

impl MmaKernel {
    /// Every kernel, fastest first.
    const ALL: [Self; 4] = [Self::Sixteen, Self::Ragged, Self::Four, Self::Two];

    /// The kernel for a product's operands.
    fn of(product: &Product<'_>) -> Self {
        match product.width() {
            16 => Self::Sixteen,
            _ if product.aligned() => Self::Ragged,
            4 => Self::Four,
            _ => Self::Two,
        }
    }

    /// The fallback for sm90 kernels, one of two, or the only one where outputs are wide. A multiple of 16 bytes is a multiple of 4 too.
    fn fallback(product: &Product<'_>) -> Self {
        if product.width() == 2 || product.wide { Self::Two } else { Self::Four }
    }

    /// Whether a product with these strides of X and of the weights, and this K, may take the kernel, wherever its operands start.
    fn reads(self, strides: [u64; 2], depth: u64) -> bool {
        let (start, whole) = (|elements| strides.iter().all(|stride| stride.is_multiple_of(elements)), depth.is_multiple_of(8));
        match self {
            Self::Sixteen => start(8) && whole,
            Self::Ragged => start(8) && !whole,
            Self::Four => start(2) && depth.is_multiple_of(2),
            Self::Two => true,
        }
    }

    const fn entry(self, gated: bool) -> Entry {
        match (self, gated) {
            (Self::Sixteen, false) => entry!("gemm_mma_16"),
            (Self::Ragged, false) => entry!("gemm_mma_ragged"),
            (Self::Four, false) => entry!("gemm_mma_4"),
            (Self::Two, false) => entry!("gemm_mma_2"),
            (Self::Sixteen, true) => entry!("gemm_gated_mma_16"),
            (Self::Ragged, true) => entry!("gemm_gated_mma_ragged"),
            (Self::Four, true) => entry!("gemm_gated_mma_4"),
            (Self::Two, true) => entry!("gemm_gated_mma_2"),
        }
    }

    fn unit(self, dtype: DType, tile: &MmaTile, gated: bool) -> Unit {
        let entry = self.entry(gated);
        let defines = tile.defines().into_iter().chain([("ELEMENT", dtype.name().into())]).collect();
        let name = format!("{} {dtype}, {}", entry.name(), tile.name());
        entry.alone(Unit { headers: vec![gemm_header()], defines, shared_bytes: tile.shared_bytes(), ..Unit::new(name, source!("gemm/sm80/tile.cu")) })
    }
}

/// The kernels of a tile that a product may take, fastest first. Only the launch knows where its operands start.
pub(crate) fn mma_units(dtype: DType, tile: &MmaTile, gated: bool, strides: [u64; 2], depth: u64) -> Vec<Unit> {
    MmaKernel::ALL.into_iter().filter(|kernel| kernel.reads(strides, depth)).map(|kernel| kernel.unit(dtype, tile, gated)).collect()
}

/// Every kernel of these tiles.
pub(crate) fn all_mma_units(tiles: &[MmaTile], gated: bool) -> Vec<Unit> {
    let kernels = || tiles.iter().flat_map(|tile| MmaKernel::ALL.map(|kernel| (tile, kernel)));
    HALVES.iter().flat_map(|&dtype| kernels().map(move |(tile, kernel)| kernel.unit(dtype, tile, gated))).collect()
}

/// The tile of the fallback for sm90 kernels.
const FALLBACK: MmaTile = MmaTile::MIDDLE;

/// The units of the fallback for sm90 kernels, which takes unaligned operands.
pub(crate) fn fallback_units(dtype: DType) -> Vec<Unit> {
    [MmaKernel::Four, MmaKernel::Two].map(|kernel| kernel.unit(dtype, &FALLBACK, false)).into()
}

/// The units of the fallback for gated products.
pub(crate) fn gated_fallback_units(dtype: DType) -> Vec<Unit> {
    [MmaKernel::Four, MmaKernel::Two].map(|kernel| kernel.unit(dtype, &FALLBACK, true)).into()
}

/// The unit of the fallback for a product with wide outputs, which takes any operands.
pub(crate) fn wide_fallback_unit(dtype: DType) -> Unit {
    widened(MmaKernel::Two.unit(dtype, &FALLBACK, false))
}

/// The kernels of a tile that a product with wide outputs may take: that for rows of whole multiples of 16 bytes, and the fallback for all others.
pub(crate) fn wide_mma_units(dtype: DType, tile: &MmaTile, strides: [u64; 2], depth: u64) -> Vec<Unit> {
    let own = MmaKernel::Sixteen.reads(strides, depth).then(|| widened(MmaKernel::Sixteen.unit(dtype, tile, false)));
    own.into_iter().chain([wide_fallback_unit(dtype)]).collect()
}

/// Every kernel of these tiles with wide outputs.
pub(crate) fn all_wide_mma_units(tiles: &[MmaTile]) -> Vec<Unit> {
    let own = |dtype| tiles.iter().map(move |tile| widened(MmaKernel::Sixteen.unit(dtype, tile, false)));
    HALVES.into_iter().flat_map(|dtype| own(dtype).chain([wide_fallback_unit(dtype)])).collect()
}

impl Product<'_> {
    /// Enqueues the tile's fastest kernel that reads the product's operands.
    ///
    /// # Safety
    /// The conditions of [`Plan::launch`] hold.
    pub(crate) unsafe fn launch_mma<O: Op>(&self, queue: &mut Queue, plan: &Plan<O>, tile: &MmaTile) -> Result<()> {
        let kernel = MmaKernel::of(self);
        if self.wide && kernel != MmaKernel::Sixteen {
            // SAFETY: the caller's promise.
            return unsafe { self.launch_fallback(queue, plan) };
        }
        // SAFETY: the caller's promise.
        unsafe { plan.launch(queue, kernel.entry(self.gate.is_some()).name(), &self.mma_launch(tile), &self.params()) }
    }

    /// Enqueues one of [`fallback_units`], or of [`gated_fallback_units`], or [`wide_fallback_unit`].
    ///
    /// # Safety
    /// The conditions of [`Plan::launch`] hold.
    pub(crate) unsafe fn launch_fallback<O: Op>(&self, queue: &mut Queue, plan: &Plan<O>) -> Result<()> {
        let entry = MmaKernel::fallback(self).entry(self.gate.is_some());
        // SAFETY: the caller's promise.
        unsafe { plan.launch(queue, entry.name(), &self.mma_launch(&FALLBACK), &self.params()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_the_kernels_that_its_rows_allow() {
        let taken = |strides, depth| {
            let units = mma_units(DType::F16, &FALLBACK, false, strides, depth);
            units.iter().flat_map(|unit| unit.entries).map(|entry| entry.trim_start_matches("gemm_mma_")).collect::<Vec<_>>()
        };
        assert_eq!(taken([4096; 2], 4096), ["16", "4", "2"]);
        assert_eq!(taken([4096; 2], 4094), ["ragged", "4", "2"]);
        assert_eq!(taken([4096; 2], 4095), ["ragged", "2"]);
        assert_eq!(taken([4094, 4096], 4094), ["4", "2"]);
        assert_eq!(taken([4095; 2], 4095), ["2"]);
    }

    #[test]
    fn what_takes_over_is_a_unit_of_the_tiles_of_ampere() {
        use crate::backends::cuda::jit::Arch;
        let arch = Arch(90);
        let all: Vec<String> = all_mma_units(&MmaTile::on(arch), false).iter().map(|unit| unit.hash(arch)).collect();
        assert!(fallback_units(DType::BF16).iter().all(|unit| all.contains(&unit.hash(arch))));
    }
}
