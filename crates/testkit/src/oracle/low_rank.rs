//! An update of low rank on a row, as plain LoRA has it.

use trifuse::dtype::DType;

use super::{Exact, Rounding, Stepwise};

/// `scaling · B · A`.
#[derive(Clone, Copy, Debug)]
pub struct LowRank<'a> {
    /// `A [rank, d_in]`, row by row.
    pub a: &'a [f64],
    /// `B [d_out, rank]`, row by row.
    pub b: &'a [f64],
    /// The factor in front.
    pub scaling: f64,
}

/// Both functions are of one type each, so that they are compiled here, in full, and not by a caller who is not.
impl LowRank<'_> {
    /// The update of `x [d_in]`.
    pub fn exact(self, x: &[f64]) -> Vec<f64> {
        self.apply(x, Exact)
    }

    /// The same done step by step, with values kept in `dtype`.
    pub fn stepwise(self, x: &[f64], dtype: DType) -> Vec<f64> {
        self.apply(x, Stepwise(dtype))
    }

    fn apply<R: Rounding>(self, x: &[f64], rounding: R) -> Vec<f64> {
        let times = |matrix: &[f64], x: &[f64]| -> Vec<f64> {
            let row = |row: &[f64]| row.iter().zip(x).fold(0.0, |sum, (m, x)| rounding.step(sum + m * x));
            matrix.chunks_exact(x.len().max(1)).map(row).collect()
        };
        let h: Vec<f64> = times(self.a, x).into_iter().map(|h| rounding.keep(h)).collect();
        times(self.b, &h).into_iter().map(|y| rounding.keep(self.scaling * y)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_update_is_the_scaled_product_of_both_factors_and_rounds_where_it_is_kept() {
        let update = LowRank { a: &[1.0, 2.0, 0.0, -1.0], b: &[3.0, 0.5, 0.0, 2.0, 1.0, 1.0], scaling: 0.5 };
        // A · x is [11, -4].
        assert_eq!(update.exact(&[3.0, 4.0]), [15.5, -4.0, 3.5]);
        assert_eq!(update.stepwise(&[3.0, 4.0], DType::F16), [15.5, -4.0, 3.5]);
        let tenth = LowRank { a: &[1.0], b: &[0.1], scaling: 1.0 };
        assert_eq!(tenth.exact(&[1.0]), [0.1]);
        assert_eq!(tenth.stepwise(&[1.0], DType::F32), [f64::from(0.1f32)]);
    }
}
