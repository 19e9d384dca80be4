//! Products by `mma`: tiles and launches of `kernels/gemm/sm80/tile.cuh`.

use crate::backends::cuda::gemm::problem::Product;
use crate::backends::cuda::jit::Arch;
use crate::backends::cuda::variant::{Launch, blocks};

/// A block's tile in `kernels/gemm/sm80/tile.cuh`, and how its warps share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MmaTile {
    /// In the names of units.
    name: &'static str,
    /// Rows of X, rows of W, elements of K a stage.
    sides: [u64; 3],
    /// Warps along rows, columns, K.
    warps: [u64; 3],
    stages: u64,
}

impl MmaTile {
    /// Four warps of 64 × 64 sums: 16 products for 8 loads from shared memory.
    const WIDE: Self = Self { name: "wide", sides: [128, 128, 32], warps: [2, 2, 1], stages: 4 };
    /// The same with half as many barriers, where two blocks still fit on an SM.
    const DEEP: Self = Self { name: "deep", sides: [128, 128, 64], warps: [2, 2, 1], stages: 3 };
    /// A fourth of that, for products that would leave SMs idle.
    pub(crate) const MIDDLE: Self = Self { name: "middle", sides: [64, 64, 64], warps: [2, 2, 1], stages: 4 };
    /// For up to 64 rows: narrow, so that there are many blocks to read W.
    const SLIM: Self = Self { name: "slim", sides: [64, 32, 128], warps: [2, 1, 2], stages: 3 };
    /// For a few rows, where the time goes into reading W: many small blocks, much in flight, the warps along K.
    const FEW_ROWS: Self = Self { name: "few rows", sides: [16, 32, 128], warps: [1, 1, 4], stages: 6 };
    /// All of them.
    #[cfg(test)]
    const ALL: [Self; 5] = [Self::WIDE, Self::DEEP, Self::MIDDLE, Self::SLIM, Self::FEW_ROWS];

    /// The widest, by an architecture's shared memory; where that is not known, as on one with little.
    fn widest(arch: Arch) -> Self {
        let shared_bytes = arch.shared_bytes().unwrap_or(0);
        // The driver keeps 1 KiB a block for itself.
        if shared_bytes >= 2 * (Self::DEEP.shared_bytes() + 1024) { Self::DEEP } else { Self::WIDE }
    }

    /// Those that are used on an architecture.
    pub(crate) fn on(arch: Arch) -> [Self; 4] {
        [Self::widest(arch), Self::MIDDLE, Self::SLIM, Self::FEW_ROWS]
    }

    /// Tiles of so many rows and outputs.
    pub(crate) fn tiles(&self, [rows, outputs]: [u64; 2]) -> u64 {
        rows.div_ceil(self.sides[0]).saturating_mul(self.columns(outputs, false))
    }

    /// Tiles across that many outputs.
    fn columns(&self, outputs: u64, gated: bool) -> u64 {
        outputs.div_ceil(if gated { self.sides[1] / 2 } else { self.sides[1] })
    }

    fn threads(&self) -> u32 {
        self.warps.iter().product::<u64>() as u32 * 32
    }

    /// Of the stages, or of the sums that take their place.
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

    /// For the names of units.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// As a configuration: rows of X by rows of W.
    pub(crate) fn config(&self) -> String {
        let [rows, columns, _] = self.sides;
        format!("{rows}x{columns}")
    }
}

impl Product<'_> {
    /// How the kernels of `gemm/sm80/tile.cuh` are started.
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
