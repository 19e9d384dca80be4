//! A model of a product's time with the tiles of `kernels/gemm/sm80/tile.cuh`, in microseconds.

use crate::backends::cuda::gemm::sm80::tile::MmaTile;
use crate::backends::cuda::variant::Target;

/// A product: rows of X, outputs, K, and the alignment of its rows in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub rows: u64,
    pub outputs: u64,
    pub depth: u64,
    /// The alignment of all rows, see [`alignment`].
    pub alignment: u64,
}

/// The most elements, of 8, 2 and 1, that divide a row's length and all strides. This many are copied at once.
pub(crate) fn alignment<const N: usize>(sides: [u64; N]) -> u64 {
    [8, 2].into_iter().find(|&elements| sides.iter().all(|side| side.is_multiple_of(elements))).unwrap_or(1)
}

/// Costs of a tile on an H100, fitted to 1,400 times of 400 shapes (`lab/choice.md`). They are a launch; a tile besides its k-blocks; 64
/// elements of K copied 8, 2, or one at a time; and tiles of an SM that run at once.
struct Cost {
    launch: f64,
    tile: f64,
    step: [f64; 3],
    resident: f64,
}

/// The costs of the tiles, in the order of [`MmaTile::on`].
const COSTS: [Cost; 4] = [
    Cost { launch: 9.50, tile: 8.58, step: [0.637, 1.298, 8.217], resident: 0.848 },
    Cost { launch: 4.85, tile: 3.05, step: [0.327, 0.645, 3.706], resident: 1.314 },
    Cost { launch: 5.38, tile: 1.90, step: [0.233, 0.499, 2.551], resident: 1.260 },
    Cost { launch: 5.64, tile: 1.81, step: [0.123, 0.272, 1.520], resident: 1.477 },
];

impl MmaTile {
    /// Microseconds of products one after another.
    fn time(&self, cost: &Cost, products: &[Shape], units: u32) -> f64 {
        let room = f64::from(units.max(1)) * cost.resident;
        let one = |shape: &Shape| {
            let waves = (self.tiles([shape.rows, shape.outputs]) as f64 / room).max(1.0);
            let step = match shape.alignment {
                8 => cost.step[0],
                2 => cost.step[1],
                _ => cost.step[2],
            };
            cost.launch + waves * (cost.tile + step * shape.depth as f64 / 64.0)
        };
        products.iter().map(one).sum()
    }

    /// The tile with which products, one after another, take the least time.
    pub(crate) fn least(products: &[Shape], target: &Target) -> Self {
        let timed = Self::on(target.arch).into_iter().zip(&COSTS).map(|(tile, cost)| (tile, tile.time(cost, products, target.units)));
        timed.min_by(|one, other| one.1.total_cmp(&other.1)).map_or(Self::MIDDLE, |(tile, _)| tile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::cuda::jit::Arch;

    #[test]
    fn a_tile_is_as_small_as_the_work_asks_for() {
        let of = |rows, outputs, depth| MmaTile::least(&[Shape { rows, outputs, depth, alignment: 8 }], &Target::H200).config();
        assert_eq!([of(1, 4096, 4096), of(4096, 4096, 4096), of(64, 512, 512)], ["16x32", "128x128", "16x32"]);
        assert_eq!(MmaTile::least(&[Shape { rows: 4096, outputs: 4096, depth: 4096, alignment: 8 }], &Target::RTX_3090).config(), "128x128");
        assert_eq!(MmaTile::on(Arch(80)).len(), COSTS.len());
    }

    #[test]
    fn few_tiles_of_a_long_product_are_large_ones() {
        // Measured: 1,567 µs in tiles of 128, 2,257 in those of 64.
        let [up, down] = [[616, 11_752, 2937], [616, 2937, 11_752]].map(|[rows, outputs, depth]| Shape { rows, outputs, depth, alignment: alignment([depth]) });
        assert_eq!(MmaTile::least(&[up, down], &Target::H200).config(), "128x128");
        // Measured: 31 µs in tiles of 16 × 32, 56 in those of 64.
        let [up, down] = [[752, 128, 247], [752, 247, 128]].map(|[rows, outputs, depth]| Shape { rows, outputs, depth, alignment: alignment([depth]) });
        assert_eq!(MmaTile::least(&[up, down], &Target::H200).config(), "16x32");
    }

    #[test]
    fn a_row_is_copied_by_what_all_strides_allow() {
        assert_eq!([alignment([64, 4096]), alignment([64, 4098]), alignment([63, 64])], [8, 2, 1]);
    }
}
