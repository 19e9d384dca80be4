//! The inner product in which the encoder counts errors of the input side.

use super::calibration::SecondMoment;
use super::linalg::{Mat, cholesky, dot, energy, mul};
use super::lower::Lower;
use crate::adapters::encoded::Matrix;
use crate::error::{Error, Result, ensure};

/// The inner product of the input side: `⟨G, H⟩ = G·C·Hᵀ`, where C is the identity if nothing is known of the inputs.
pub(crate) struct Metric {
    /// The lower Cholesky factor of C.
    lower: Option<Lower>,
}

impl Metric {
    /// The metric without knowledge of the inputs.
    pub(crate) fn identity() -> Self {
        Self { lower: None }
    }

    /// The second moment of some inputs, shrunk towards a multiple of the identity, so that directions that few inputs
    /// happen to miss are not thrown away. Scaled to a mean diagonal of 1.
    pub(crate) fn of(moment: SecondMoment) -> Result<Self> {
        let (rows, d) = (moment.rows() as f64, moment.d_in() as f64);
        let mut moment = moment.into_sum();
        let trace: f64 = (0..moment.nrows()).map(|i| moment[(i, i)]).sum();
        let [share, scale] = shrinkage(trace, dot(moment.as_ref(), moment.as_ref()), rows, d)?;
        for j in 0..moment.ncols() {
            for i in 0..moment.nrows() {
                moment[(i, j)] *= scale;
            }
            moment[(j, j)] += share;
        }
        Ok(Self { lower: Some(Lower::Whole(cholesky(moment).ok_or_else(indefinite)?)) })
    }

    /// The metric of [`Self::of`] from `count` of the rows themselves, `[n, d_in]`, evenly spread: for few rows, in `2·count·d_in` numbers where that
    /// one has `d_in²`.
    pub(crate) fn of_rows((all, count): (&Matrix, usize)) -> Result<Self> {
        let mut rows = Mat::from_fn(count, all.cols, |i, j| all.at(spread(i, count, all.rows), j).into());
        // The rows' products have the energy that the columns' have.
        let (trace, square) = (energy(rows.as_ref()), energy(mul(rows.as_ref(), rows.transpose()).as_ref()));
        let [share, scale] = shrinkage(trace, square, rows.nrows() as f64, rows.ncols() as f64)?;
        for column in 0..rows.ncols() {
            (0..rows.nrows()).for_each(|row| rows[(row, column)] *= scale.sqrt());
        }
        Ok(Self { lower: Some(Lower::of_rows(rows, share).ok_or_else(indefinite)?) })
    }

    /// The columns `Lᵀ·columns`, `[d_in, n]`, whose plain inner products are those of the metric.
    pub(crate) fn whiten(&self, columns: &Mat) -> Mat {
        self.lower.as_ref().map_or_else(|| columns.clone(), |lower| lower.transposed_times(columns))
    }

    /// The columns `L⁻ᵀ·columns`. This undoes [`Self::whiten`] for vectors that a projection's rows are multiplied with.
    pub(crate) fn lift(&self, columns: &Mat) -> Mat {
        self.lower.as_ref().map_or_else(|| columns.clone(), |lower| lower.transposed_solve(columns))
    }

    /// The factor `L`, where C is not the identity.
    pub(crate) fn lower(&self) -> Option<&Lower> {
        self.lower.as_ref()
    }
}

/// The share of the identity, and the scale of a moment of that trace and sum of squares. The share is the oracle approximating shrinkage of
/// Chen, Wiesel, Eldar and Hero (2010), and at least a thousandth.
fn shrinkage(trace: f64, square: f64, rows: f64, d: f64) -> Result<[f64; 2]> {
    ensure(trace > 0.0, "calibration", "inputs that are not all zero", "zeros")?;
    let squared = trace * trace;
    let share = ((1.0 - 2.0 / d) * square + squared) / ((rows + 1.0 - 2.0 / d) * (square - squared / d));
    let share = if share.is_finite() { share.clamp(1e-3, 1.0) } else { 1.0 };
    Ok([share, (1.0 - share) * d / trace])
}

/// The row that is number `at` of `count`, evenly spread over `rows`.
fn spread(at: usize, count: usize, rows: usize) -> usize {
    (at as u128 * rows as u128 / count as u128) as usize
}

fn indefinite() -> Error {
    Error::invalid("calibration", "inputs of ordinary size", "a second moment that is not definite")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::adapters::encode::linalg::widen;

    #[test]
    fn whitened_products_are_those_of_the_second_moment() {
        let inputs = Matrix::new(500, 6, (0..3000).map(|i| ((i * i % 101) as f32 * 0.61).sin() + 0.2).collect()).unwrap();
        let mut moment = SecondMoment::new(6);
        moment.add(&inputs).unwrap();
        let metric = Metric::of(moment).unwrap();
        let g = Mat::from_fn(6, 2, |i, j| (i + 3 * j) as f64 - 2.0);
        let white = metric.whiten(&g);
        let seen = mul(widen(&inputs).as_ref(), g.as_ref());
        // Only the shrinkage and the scale to a mean diagonal of 1 stand between the two.
        let ratio = |m: &Mat| energy(m.col(0).as_mat()) / energy(m.col(1).as_mat());
        assert!((ratio(&white) / ratio(&seen) - 1.0).abs() < 0.1, "{} {}", ratio(&white), ratio(&seen));
        assert!(energy((&metric.lift(&white) - &g).as_ref()) < 1e-18);
    }

    #[test]
    fn a_metric_of_few_rows_is_that_of_their_moment() {
        let inputs = Matrix::new(9, 100, (0..900).map(|i| ((i * i % 101) as f32 * 0.61).sin() + 0.2).collect()).unwrap();
        let mut moment = SecondMoment::new(100);
        moment.add(&inputs).unwrap();
        let [whole, few] = [Metric::of(moment).unwrap(), Metric::of_rows((&inputs, 9)).unwrap()];
        let g = Mat::from_fn(100, 2, |i, j| (i + 3 * j) as f64 - 2.0);
        assert!(energy((&whole.whiten(&g) - &few.whiten(&g)).as_ref()) < 1e-18 * energy(whole.whiten(&g).as_ref()));
        assert!(energy((&few.lift(&few.whiten(&g)) - &g).as_ref()) < 1e-18 * energy(g.as_ref()));
        // Of twice the rows, every second one is the same.
        let twice = Matrix::new(18, 100, inputs.data.chunks(100).flat_map(|row| [row, &[9.0; 100]].concat()).collect()).unwrap();
        assert_eq!(Metric::of_rows((&twice, 9)).unwrap().whiten(&g), few.whiten(&g));
        assert!(Metric::of_rows((&Matrix::new(1, 2, vec![0.0; 2]).unwrap(), 1)).is_err());
    }
}
