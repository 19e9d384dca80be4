//! One adapter in one projection, as the encoder sees it: `ΔW = left · diag(sigma) · rightᵀ`, which is never formed.

use super::linalg::{Mat, Svd, energy, mul, scale_columns, singular_values, thin_svd};
use super::metric::Metric;
use crate::error::Result;

/// The side of a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The input side, `[d_in, R]`.
    Input,
    /// The output side, `[d_out, R]`.
    Output,
}

/// The rank-one terms of an adapter's ΔW, in order of energy.
pub(crate) struct Terms {
    /// The left vectors, `[d_out, n]`, orthonormal.
    pub left: Mat,
    /// The singular values, falling, above the rounding.
    pub sigma: Vec<f64>,
    /// The right vectors, `[d_in, n]`, orthonormal after [`Metric::whiten`]: in the whitened coordinates.
    pub right: Mat,
    /// The energy `Σ sigma²`.
    pub energy: f64,
}

/// The rest of an adapter to code when the other side is a basis: `n` columns in order of energy.
pub(crate) struct Projected {
    /// The columns, `[d, n]`, orthonormal, of the coded side (whitened where that is the input).
    pub columns: Mat,
    /// The energy of each column.
    pub energies: Vec<f64>,
}

impl Terms {
    /// The terms of `b [d_out, r] · a [r, d_in]`, through decompositions of the factors, at `d · r²` each.
    pub(crate) fn new(a: &Mat, b: &Mat, metric: &Metric) -> Result<Self> {
        let outer = thin_svd(b.as_ref())?;
        // S·Wᵀ·A is taken as columns, [d_in, r].
        let columns = mul(a.transpose(), scale_columns(&outer.right, &outer.values).as_ref());
        let Svd { left: right, values, right: rotation } = thin_svd(metric.whiten(&columns).as_ref())?;
        let least = 1e-10 * values.first().copied().unwrap_or(0.0);
        let n = values.iter().take_while(|&&value| value > least).count();
        let left = mul(outer.left.as_ref(), rotation.subcols(0, n));
        let sigma = values[..n].to_vec();
        let energy = sigma.iter().map(|s| s * s).sum();
        Ok(Self { left, sigma, right: right.subcols(0, n).to_owned(), energy })
    }

    /// The vectors of one side times sigma, which a shared basis of that side is to span.
    fn scaled(&self, side: Side) -> Mat {
        match side {
            Side::Input => scale_columns(&self.right, &self.sigma),
            Side::Output => scale_columns(&self.left, &self.sigma),
        }
    }

    /// The coordinates of the terms on `basis [d, R]` of that side: `[n, R]`.
    pub(crate) fn coordinates(&self, side: Side, basis: &Mat) -> Mat {
        mul(self.scaled(side).transpose(), basis.as_ref())
    }

    /// The rest to code on the other side, when this side is the basis with these [`Self::coordinates`].
    pub(crate) fn project(&self, side: Side, coordinates: &Mat) -> Result<Projected> {
        let Svd { left: rotation, values, .. } = thin_svd(coordinates.as_ref())?;
        let own = if side == Side::Input { &self.left } else { &self.right };
        let columns = mul(own.as_ref(), rotation.as_ref());
        Ok(Projected { columns, energies: values.iter().map(|s| s * s).collect() })
    }

    /// The energies of [`Self::project`] alone.
    pub(crate) fn project_energies(&self, coordinates: faer::MatRef<'_, f64>) -> Result<Vec<f64>> {
        Ok(singular_values(coordinates)?.iter().map(|s| s * s).collect())
    }
}

/// The leading directions of a population on one side, orthonormal, in order: `[d, n]`, at most `most` of them. Each adapter counts by its
/// share, not by its size, since a small one is to be kept as well as a large one.
pub(crate) fn leading(terms: &[&Terms], weights: &[f64], side: Side, most: usize) -> Result<Mat> {
    let live: Vec<(&Terms, f64)> = terms.iter().zip(weights).filter(|pair| pair.0.energy > 0.0).map(|(t, &w)| (*t, (w / t.energy).sqrt())).collect();
    let columns: usize = live.iter().map(|pair| pair.0.sigma.len()).sum();
    let rows = terms.first().map_or(0, |t| if side == Side::Input { t.right.nrows() } else { t.left.nrows() });
    let mut stack = Mat::zeros(rows, columns);
    let mut at = 0;
    for (terms, weight) in live {
        let scaled = terms.scaled(side);
        for j in 0..scaled.ncols() {
            for i in 0..rows {
                stack[(i, at)] = weight * scaled[(i, j)];
            }
            at += 1;
        }
    }
    let Svd { left, values, .. } = thin_svd(stack.as_ref())?;
    let floor = 1e-10 * values.first().copied().unwrap_or(0.0);
    let n = values.iter().take_while(|&&value| value > floor).count().min(most);
    Ok(left.subcols(0, n).to_owned())
}

/// The share of the terms' energy that a basis loses, by the coordinates on it.
pub(crate) fn lost(terms: &Terms, coordinates: faer::MatRef<'_, f64>) -> f64 {
    if terms.energy > 0.0 { (1.0 - energy(coordinates) / terms.energy).max(0.0) } else { 0.0 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;
    use rand_distr::{Distribution, StandardNormal};

    fn pair(seed: u64) -> (Mat, Mat) {
        let values: Vec<f64> = StandardNormal.sample_iter(ChaCha8Rng::seed_from_u64(seed)).take(150).collect();
        (Mat::from_fn(3, 20, |i, j| values[i * 20 + j]), Mat::from_fn(30, 3, |i, j| values[60 + i * 3 + j]))
    }

    #[test]
    fn the_terms_are_the_product() {
        let (a, b) = pair(1);
        let terms = Terms::new(&a, &b, &Metric::identity()).unwrap();
        let again = mul(scale_columns(&terms.left, &terms.sigma).as_ref(), terms.right.transpose());
        assert!(energy((&again - &mul(b.as_ref(), a.as_ref())).as_ref()) < 1e-18);
        assert!((terms.energy - energy(again.as_ref())).abs() < 1e-9 * terms.energy);
    }

    #[test]
    fn a_basis_of_all_directions_loses_nothing_on_either_side() {
        let all: Vec<Terms> = (1..4).map(pair).map(|(a, b)| Terms::new(&a, &b, &Metric::identity()).unwrap()).collect();
        let refs: Vec<&Terms> = all.iter().collect();
        for side in [Side::Input, Side::Output] {
            let basis = leading(&refs, &[1.0; 3], side, 64).unwrap();
            assert_eq!(basis.ncols(), 9);
            for terms in &all {
                let coordinates = terms.coordinates(side, &basis);
                assert!(lost(terms, coordinates.as_ref()) < 1e-12);
                assert!(lost(terms, coordinates.subcols(0, 2)) > 0.01);
                let projected = terms.project(side, &coordinates).unwrap();
                assert!((projected.energies.iter().sum::<f64>() - terms.energy).abs() < 1e-9 * terms.energy);
            }
        }
    }

    #[test]
    fn an_untrained_adapter_has_no_terms() {
        let (a, _) = pair(1);
        let terms = Terms::new(&a, &Mat::zeros(30, 3), &Metric::identity()).unwrap();
        assert_eq!((terms.sigma.len(), terms.energy), (0, 0.0));
        assert_eq!(leading(&[&terms], &[1.0], Side::Input, 4).unwrap().ncols(), 0);
    }
}
