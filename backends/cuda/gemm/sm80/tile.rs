//! Tiles and launches of the mma products in `kernels/gemm/sm80/tile.cuh`.

use crate::backends::cuda::gemm::problem::Product;
use crate::backends::cuda::jit::Arch;
use crate::backends::cuda::variant::{Launch, blocks};

/// A thread block's tile in `kernels/gemm/sm80/tile.cuh`, and how its warps share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MmaTile {
    /// The tile as names of units write it.
    name: &'static str,
    /// Rows of X, rows of W, and elements of K of a stage.
    sides: [u64; 3],
    /// Warps along rows, columns and K.
    warps: [u64; 3],
    stages: u64,
}

impl MmaTile {
    /// A tile of four warps with 64 × 64 sums each: 16 products for 8 loads from shared memory.
    const WIDE: Self = Self { name: "wide", sides: [128, 128, 32], warps: [2, 2, 1], stages: 4 };
    /// The wide tile with half as many barriers, where two blocks still fit on an SM.
    const DEEP: Self = Self { name: "deep", sides: [128, 128, 64], warps: [2, 2, 1], stages: 3 };
    /// A quarter of the wide tile, for products that would leave SMs idle.
    pub(crate) const MIDDLE: Self = Self { name: "middle", sides: [64, 64, 64], warps: [2, 2, 1], stages: 4 };
    /// A tile for up to 64 rows, narrow, so that many blocks read W.
    const SLIM: Self = Self { name: "slim", sides: [64, 32, 128], warps: [2, 1, 2], stages: 3 };
    /// A tile for a few rows, where the time goes into reading W. There are many small blocks with much in flight, and the warps split K.
    const FEW_ROWS: Self = Self { name: "few rows", sides: [16, 32, 128], warps: [1, 1, 4], stages: 6 };
    /// Every tile.
    #[cfg(test)]
    const ALL: [Self; 5] = [Self::WIDE, Self::DEEP, Self::MIDDLE, Self::SLIM, Self::FEW_ROWS];

    /// The widest tile for an architecture's shared memory. An unknown architecture counts as one with little.
    fn widest(arch: Arch) -> Self {
        let shared_bytes = arch.shared_bytes().unwrap_or(0);
        // The driver keeps 1 KiB a block for itself.
        if shared_bytes >= 2 * (Self::DEEP.shared_bytes() + 1024) { Self::DEEP } else { Self::WIDE }
    }

    /// The tiles that are used on an architecture.
    pub(crate) fn on(arch: Arch) -> [Self; 4] {
        [Self::widest(arch), Self::MIDDLE, Self::SLIM, Self::FEW_ROWS]
    }

    /// The number of tiles for these rows and outputs.
    pub(crate) fn tiles(&self, [rows, outputs]: [u64; 2]) -> u64 {
        rows.div_ceil(self.sides[0]).saturating_mul(self.columns(outputs, false))
    }

    /// The number of tiles across these outputs.
    fn columns(&self, outputs: u64, gated: bool) -> u64 {
        outputs.div_ceil(if gated { self.sides[1] / 2 } else { self.sides[1] })
    }

    /// Whether warps each add up a part of a sum.
    pub(crate) const fn in_parts(&self) -> bool {
        self.warps[2] > 1
    }

    fn threads(&self) -> u32 {
        self.warps.iter().product::<u64>() as u32 * 32
    }

    /// Bytes of shared memory, for the stages or for the sums that take their place.
    pub(crate) const fn shared_bytes(&self) -> u32 {
        let [rows, columns, depth] = self.sides;
        let (stages, sums) = (self.stages * (rows + columns) * depth * 2, rows * (columns + 8) * 4);
        if stages > sums { stages as u32 } else { sums as u32 }
    }

    pub(crate) fn defines(&self) -> Vec<(&'static str, String)> {
        let names = ["TILE_ROWS", "TILE_COLUMNS", "TILE_DEPTH", "WARPS_DOWN", "WARPS_ACROSS", "WARPS_ALONG"];
        let values = self.sides.into_iter().chain(self.warps);
        names.into_iter().zip(values.map(|value| value.to_string())).chain([("STAGES", self.stages.to_string())]).collect()
    }

    /// The tile as names of units write it.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// The configuration's name: rows of X by rows of W.
    pub(crate) fn config(&self) -> String {
        let [rows, columns, _] = self.sides;
        format!("{rows}x{columns}")
    }
}

impl Product<'_> {
    /// The launch of the kernels of `gemm/sm80/tile.cuh`.
    pub(crate) fn mma_launch(&self, tile: &MmaTile) -> Launch {
        let tiles = self.rows.div_ceil(tile.sides[0]).saturating_mul(tile.columns(self.columns, self.gate.is_some()));
        Launch { shared_bytes: tile.shared_bytes(), ..Launch::new(blocks(tiles), tile.threads()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fit_the_smallest_of_the_chips() {
        for tile in MmaTile::ALL {
            assert!(tile.shared_bytes() <= if tile == MmaTile::DEEP { 227 << 10 } else { 90 << 10 }, "{tile:?}: beside what is not dynamic");
        }
    }
}
