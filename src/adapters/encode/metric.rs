//! The inner product in which the encoder counts errors of the input side.

use super::calibration::SecondMoment;
use super::linalg::{Mat, cholesky, dot, mul, solve_transposed};
use crate::error::{Error, Result, ensure};

/// The inner product of the input side: `⟨G, H⟩ = G·C·Hᵀ`, where C is the identity if nothing is known of the inputs.
pub(crate) struct Metric {
    /// The lower Cholesky factor of C.
    lower: Option<Mat>,
}

impl Metric {
    /// The metric without knowledge of the inputs.
    pub(crate) fn identity() -> Self {
        Self { lower: None }
    }

    /// The second moment of some inputs, shrunk towards a multiple of the identity, so that directions that few inputs
    /// happen to miss are not thrown away: the share is the oracle approximating shrinkage of Chen, Wiesel, Eldar and
    /// Hero (2010), and at least a thousandth. Scaled to a mean diagonal of 1.
    pub(crate) fn of(moment: SecondMoment) -> Result<Self> {
        let (n, d) = (moment.rows() as f64, moment.d_in() as f64);
        let mut moment = moment.into_sum();
        let trace: f64 = (0..moment.nrows()).map(|i| moment[(i, i)]).sum();
        ensure(trace > 0.0, "calibration", "inputs that are not all zero", "zeros")?;
        let (square, squared) = (dot(moment.as_ref(), moment.as_ref()), trace * trace);
        let share = ((1.0 - 2.0 / d) * square + squared) / ((n + 1.0 - 2.0 / d) * (square - squared / d));
        let share = if share.is_finite() { share.clamp(1e-3, 1.0) } else { 1.0 };
        let scale = (1.0 - share) * d / trace;
        for j in 0..moment.ncols() {
            for i in 0..moment.nrows() {
                moment[(i, j)] *= scale;
            }
            moment[(j, j)] += share;
        }
        let lower = cholesky(moment).ok_or_else(|| Error::invalid("calibration", "inputs of ordinary size", "a second moment that is not definite"))?;
        Ok(Self { lower: Some(lower) })
    }

    /// The columns `Lᵀ·columns`, `[d_in, n]`, whose plain inner products are those of the metric.
    pub(crate) fn whiten(&self, columns: &Mat) -> Mat {
        self.lower.as_ref().map_or_else(|| columns.clone(), |lower| mul(lower.transpose(), columns.as_ref()))
    }

    /// The columns `L⁻ᵀ·columns`. This undoes [`Self::whiten`] for vectors that a projection's rows are multiplied with.
    pub(crate) fn lift(&self, columns: &Mat) -> Mat {
        self.lower.as_ref().map_or_else(|| columns.clone(), |lower| solve_transposed(lower, columns))
    }

    /// The factor `L`, where C is not the identity.
    pub(crate) fn lower(&self) -> Option<&Mat> {
        self.lower.as_ref()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::adapters::encode::linalg::{energy, widen};
    use crate::adapters::encoded::Matrix;

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
}
