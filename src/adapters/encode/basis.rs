//! Shared bases, rounded to what the file holds, and clustered where one does not serve all.

use half::f16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::linalg::{Mat, energy, widen};
use super::metric::Metric;
use super::terms::{Side, Terms, leading};
use crate::adapters::encoded::Matrix;
use crate::error::Result;

/// The number of k-means steps on subspaces.
const CLUSTER_STEPS: usize = 12;

/// A basis as the file holds it.
pub(crate) struct Basis {
    /// The basis before rounding, `[d, R]`, orthonormal in the metric.
    pub directions: Mat,
    /// The basis as the file holds it, `[d, R]`.
    pub stored: Matrix<f16>,
    /// The stored basis, widened, in the whitened coordinates.
    pub white: Mat,
}

impl Basis {
    /// Rounds `directions [d, R]`. Each column is stretched to a largest element of 127/128, as the core takes any scale. The basis is
    /// rounded to multiples of 1/128 where that loses less than 2 % of what may be lost. Such a basis takes one byte an element in the file
    /// and is exact in f16.
    pub(crate) fn new(directions: Mat, side: Side, metric: &Metric, allowed_loss: f64) -> Self {
        let columns = if side == Side::Input { metric.lift(&directions) } else { directions.clone() };
        let (d, rank) = columns.shape();
        let largest = |j: usize| (0..d).map(|i| columns[(i, j)].abs()).fold(0.0, f64::max);
        let stretch: Vec<f64> = (0..rank).map(|j| if largest(j) > 0.0 { 127.0 / 128.0 / largest(j) } else { 1.0 }).collect();
        let rounded = |round: &dyn Fn(f64) -> f16| {
            let data = (0..d).flat_map(|i| (0..rank).map(move |j| (i, j))).map(|at| round(columns[at] * stretch[at.1])).collect();
            let stored = Matrix { rows: d, cols: rank, data };
            let wide = widen(&stored);
            let white = if side == Side::Input { metric.whiten(&wide) } else { wide };
            (stored, white)
        };
        let (mut stored, mut white) = rounded(&|value| f16::from_f64((value * 128.0).round() / 128.0));
        let noise = |j: usize| (0..d).map(|i| (white[(i, j)] / stretch[j] - directions[(i, j)]).powi(2)).sum::<f64>();
        if (0..rank).map(noise).fold(0.0, f64::max) > 0.02 * allowed_loss {
            (stored, white) = rounded(&f16::from_f64);
        }
        Self { directions, stored, white }
    }
}

/// Bytes of a basis in the file: one an element where each is a multiple of 1/128 below 1, else two.
pub(crate) fn basis_bytes(stored: &Matrix<f16>) -> u64 {
    stored.data.len() as u64 * if stored.as_steps().is_some() { 1 } else { 2 }
}

/// Partitions a population into `clusters` with a basis of `rank` directions each: k-means on subspaces, after
/// "Compress then Serve" (Gabrielsson et al. 2024). Returns the cluster of each adapter and the directions of each.
pub(crate) fn cluster(terms: &[&Terms], side: Side, rank: usize, clusters: usize, seed: u64) -> Result<(Vec<usize>, Vec<Mat>)> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // Starts lie far apart: each next one is the adapter of which the chosen ones' own directions keep the least.
    let mut seeds = vec![rng.random_range(0..terms.len())];
    let own = |k: usize| leading(&[terms[k]], &[1.0], side, rank);
    let mut bases = vec![own(seeds[0])?];
    while bases.len() < clusters.min(terms.len()) {
        let kept = |k: usize| bases.iter().map(|basis| share(terms[k], side, basis)).fold(0.0, f64::max);
        let Some(next) = (0..terms.len()).filter(|k| !seeds.contains(k)).min_by(|&a, &b| kept(a).total_cmp(&kept(b))) else { break };
        seeds.push(next);
        bases.push(own(next)?);
    }
    let mut places = vec![usize::MAX; terms.len()];
    for _ in 0..CLUSTER_STEPS {
        let nearest = |k: usize| {
            let shares = bases.iter().map(|basis| share(terms[k], side, basis));
            shares.enumerate().fold((0, -1.0), |best, (c, share)| if share > best.1 + 1e-12 { (c, share) } else { best }).0
        };
        let now: Vec<usize> = (0..terms.len()).map(nearest).collect();
        if now == places {
            break;
        }
        places = now;
        for (c, basis) in bases.iter_mut().enumerate() {
            let members: Vec<&Terms> = (0..terms.len()).filter(|&k| places[k] == c).map(|k| terms[k]).collect();
            if !members.is_empty() {
                *basis = leading(&members, &vec![1.0; members.len()], side, rank)?;
            }
        }
    }
    Ok((places, bases))
}

fn share(terms: &Terms, side: Side, basis: &Mat) -> f64 {
    if terms.energy > 0.0 { energy(terms.coordinates(side, basis).as_ref()) / terms.energy } else { 1.0 }
}
