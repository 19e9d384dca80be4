//! The lower factor of a second moment, `L·Lᵀ = C`: whole, or in the few numbers that a moment of few rows has.
//!
//! A moment of n rows, `C = Zᵀ·Z + σ·I` with `Z [n, d]`, has a factor whose part below the diagonal is `L[i, j] = zᵢ·wⱼ`, with `wⱼ` of n
//! numbers as the columns `zⱼ` of Z have. It takes `2·n·d` numbers and `n²·d` steps, where the whole factor takes `d²` and `d³ / 3`.

use super::linalg::{Mat, add_scaled_product, cholesky, mul, solve_lower, solve_transposed};

/// Columns that are factored together.
const BLOCK: usize = 64;

/// A lower factor, `[d, d]`, with numbers above 0 on its diagonal.
pub(crate) enum Lower {
    /// Every element, with zeros above the diagonal.
    Whole(Mat),
    /// The factor of a moment of few rows.
    Rows {
        /// The diagonal.
        pivots: Vec<f64>,
        /// The columns `zⱼ`, `[n, d]`.
        rows: Mat,
        /// The columns `wⱼ`, `[n, d]`.
        weights: Mat,
    },
}

/// The sum `Σ L[i, j]·e[i]` over the rows i below the diagonal, column by column from the last to the first.
pub(crate) struct Below<'a> {
    lower: &'a Lower,
    /// The sum `Σ zᵢ·e[i]` over the rows so far.
    sum: Vec<f64>,
}

impl Lower {
    /// The factor of `Zᵀ·Z + shift·I` from the rows `Z`; `None` where that is not definite.
    pub(crate) fn of_rows(rows: Mat, shift: f64) -> Option<Self> {
        let (n, d) = rows.shape();
        let (mut pivots, mut weights) = (Vec::with_capacity(d), Mat::zeros(n, d));
        // The inverse of I + the rows' products so far over the shift: what the columns before leave of a product of two others.
        let mut rest = Mat::identity(n, n);
        for start in (0..d).step_by(BLOCK) {
            let count = BLOCK.min(d - start);
            let block = rows.subcols(start, count);
            let seen = mul(rest.as_ref(), block);
            let mut products = mul(block.transpose(), seen.as_ref());
            for i in 0..count {
                products[(i, i)] += shift;
            }
            let factor = cholesky(products)?;
            let solved = solve_lower(&factor, seen.transpose().to_owned());
            add_scaled_product(&mut rest, solved.transpose(), solved.as_ref(), -1.0);
            for j in 0..count {
                pivots.push(factor[(j, j)]);
                (0..n).for_each(|i| weights[(i, start + j)] = solved[(j, i)]);
            }
        }
        Some(Self::Rows { pivots, rows, weights })
    }

    /// The number of rows, and of columns.
    fn d(&self) -> usize {
        match self {
            Self::Whole(lower) => lower.nrows(),
            Self::Rows { pivots, .. } => pivots.len(),
        }
    }

    /// The element on the diagonal.
    pub(crate) fn pivot(&self, at: usize) -> f64 {
        match self {
            Self::Whole(lower) => lower[(at, at)],
            Self::Rows { pivots, .. } => pivots[at],
        }
    }

    /// The products `Lᵀ·columns`.
    pub(crate) fn transposed_times(&self, columns: &Mat) -> Mat {
        match self {
            Self::Whole(lower) => mul(lower.transpose(), columns.as_ref()),
            Self::Rows { pivots, .. } => self.each_column(columns, |at, value, below| (value, pivots[at] * value + below)),
        }
    }

    /// The solutions `L⁻ᵀ·columns`.
    pub(crate) fn transposed_solve(&self, columns: &Mat) -> Mat {
        match self {
            Self::Whole(lower) => solve_transposed(lower, columns),
            Self::Rows { pivots, .. } => self.each_column(columns, |at, value, below| {
                let solved = (value - below) / pivots[at];
                (solved, solved)
            }),
        }
    }

    /// Goes up each column: `step` gives what an element adds to the sums above it, and its result.
    fn each_column(&self, columns: &Mat, step: impl Fn(usize, f64, f64) -> (f64, f64)) -> Mat {
        let mut out = Mat::zeros(columns.nrows(), columns.ncols());
        for j in 0..columns.ncols() {
            let mut below = self.below();
            for i in (0..columns.nrows()).rev() {
                let (added, result) = step(i, columns[(i, j)], below.at(i, &[]));
                below.add(i, added);
                out[(i, j)] = result;
            }
        }
        out
    }

    /// The energy `‖Lᵀ·errors‖²`.
    pub(crate) fn energy(&self, errors: &[f64]) -> f64 {
        match self {
            Self::Whole(lower) => (0..errors.len()).map(|i| lower.col_as_slice(i)[i..].iter().zip(&errors[i..]).map(|(l, e)| l * e).sum::<f64>().powi(2)).sum(),
            Self::Rows { pivots, .. } => {
                let mut below = self.below();
                let square = |(i, &error): (usize, &f64)| {
                    let value = pivots[i] * error + below.at(i, &[]);
                    below.add(i, error);
                    value * value
                };
                errors.iter().enumerate().rev().map(square).sum()
            }
        }
    }

    /// Sums of no rows yet.
    pub(crate) fn below(&self) -> Below<'_> {
        let rows = if let Self::Rows { rows, .. } = self { rows.nrows() } else { 0 };
        Below { lower: self, sum: vec![0.0; rows] }
    }
}

impl Below<'_> {
    /// The sum of column `at`; every row past it was [added](Self::add). `errors` are what was added, `[d]`.
    pub(crate) fn at(&self, at: usize, errors: &[f64]) -> f64 {
        debug_assert!(at < self.lower.d());
        match self.lower {
            Lower::Whole(lower) => lower.col_as_slice(at)[at + 1..].iter().zip(&errors[at + 1..]).map(|(l, e)| l * e).sum(),
            Lower::Rows { weights, .. } => weights.col_as_slice(at).iter().zip(&self.sum).map(|(w, s)| w * s).sum(),
        }
    }

    /// Adds row `at` with its error.
    pub(crate) fn add(&mut self, at: usize, error: f64) {
        if let Lower::Rows { rows, .. } = self.lower {
            self.sum.iter_mut().zip(rows.col_as_slice(at)).for_each(|(sum, z)| *sum += z * error);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::adapters::encode::linalg::energy;

    #[test]
    fn the_factor_of_few_rows_is_that_of_the_whole_moment() {
        let (n, d, shift) = (7, 200, 0.3);
        let rows = Mat::from_fn(n, d, |i, j| ((i * 7 + j * 13 + i * j) as f64 * 0.37).sin());
        let mut moment = mul(rows.transpose(), rows.as_ref());
        (0..d).for_each(|i| moment[(i, i)] += shift);
        let whole = Lower::Whole(cholesky(moment).unwrap());
        let few = Lower::of_rows(rows, shift).unwrap();
        let columns = Mat::from_fn(d, 3, |i, j| ((i * 5 + j * 11) as f64 * 0.71).cos());
        let close = |a: Mat, b: Mat| assert!(energy((&a - &b).as_ref()) < 1e-18 * energy(b.as_ref()).max(1.0));
        close(few.transposed_times(&columns), whole.transposed_times(&columns));
        close(few.transposed_solve(&columns), whole.transposed_solve(&columns));
        close(few.transposed_solve(&few.transposed_times(&columns)), columns.clone());
        let errors = columns.col_as_slice(0);
        assert!((few.energy(errors) / whole.energy(errors) - 1.0).abs() < 1e-10);
        let mut below = few.below();
        for i in (0..d).rev() {
            assert!((few.pivot(i) - whole.pivot(i)).abs() < 1e-10);
            assert!((below.at(i, errors) - whole.below().at(i, errors)).abs() < 1e-9);
            below.add(i, errors[i]);
        }
        assert!(Lower::of_rows(Mat::zeros(2, 3), 0.0).is_none());
    }
}
