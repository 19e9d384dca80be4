//! Scalar codebooks: weighted k-means in one dimension, and two additive stages refined jointly.
//!
//! In one dimension every cell is an interval of the sorted samples, so that prefix sums give the cost and the best centroid of a cell at
//! once. A step of Lloyd's algorithm (Lloyd 1982) then costs `k · log n`, not `k · n`.

use half::f16;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::ops::codes::{CODEBOOK_LEN, CodeWidth};

/// The widths that carry codes and that the encoder chooses from, narrowest first.
pub(crate) const WIDTHS: [CodeWidth; 4] = [CodeWidth::Two, CodeWidth::Three, CodeWidth::Four, CodeWidth::FourThree];

/// The most samples for a design. More change nothing that a centroid's rounding would show.
const DESIGN_SAMPLES: usize = 1 << 16;
/// Starts of k-means, besides the start at the quantiles.
const STARTS: usize = 4;
/// The most samples that a start is drawn from, and how many of them are summed by themselves.
const START_SAMPLES: usize = 2048;
const BLOCK: usize = 32;
const LLOYD_STEPS: usize = 400;
const JOINT_STEPS: usize = 200;

/// Weighted samples in order, with prefix sums.
pub(crate) struct Samples {
    values: Vec<f64>,
    /// Prefix sums of w, w·x and w·x², from 0.
    sums: Vec<[f64; 3]>,
}

/// The samples that starts are drawn from, with their weights.
struct Seen {
    values: Vec<f64>,
    weights: Vec<f64>,
}

impl Samples {
    /// Sorts `(value, weight)` pairs, thinned evenly where there are more than a design needs.
    pub(crate) fn new(mut pairs: Vec<(f64, f64)>) -> Self {
        let step = pairs.len().div_ceil(DESIGN_SAMPLES).max(1);
        if step > 1 {
            pairs = pairs.into_iter().step_by(step).collect();
        }
        // What a first stage leaves is in order cell by cell, which this sort makes use of. Equal pairs are the same in any order.
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut sums = Vec::with_capacity(pairs.len() + 1);
        let mut sum = [0.0; 3];
        sums.push(sum);
        for &(x, w) in &pairs {
            sum = [sum[0] + w, sum[1] + w * x, sum[2] + w * x * x];
            sums.push(sum);
        }
        Self { values: pairs.into_iter().map(|pair| pair.0).collect(), sums }
    }

    fn total(&self) -> [f64; 3] {
        self.sums[self.values.len()]
    }

    fn cell(&self, from: usize, to: usize) -> [f64; 3] {
        std::array::from_fn(|k| self.sums[to][k] - self.sums[from][k])
    }

    /// The cells of `levels`, in order, as the places in the samples at which they end.
    fn cells(&self, levels: &[f64]) -> Vec<usize> {
        let mut ends: Vec<usize> = levels.windows(2).map(|pair| self.values.partition_point(|&x| x <= 0.5 * (pair[0] + pair[1]))).collect();
        ends.push(self.values.len());
        ends
    }

    /// The weighted squared error of coding every sample by the nearest of `levels`, over the samples' energy.
    pub(crate) fn distortion(&self, levels: &[f64]) -> f64 {
        let mut from = 0;
        let mut error = 0.0;
        for (&level, to) in levels.iter().zip(self.cells(levels)) {
            let [w, wx, wxx] = self.cell(from, to);
            error += wxx - 2.0 * level * wx + level * level * w;
            from = to;
        }
        let energy = self.total()[2];
        if energy > 0.0 { (error / energy).max(0.0) } else { 0.0 }
    }

    /// Lloyd's algorithm from `levels` (sorted) until no cell changes.
    fn lloyd(&self, mut levels: Vec<f64>) -> Vec<f64> {
        let mut last = Vec::new();
        for _ in 0..LLOYD_STEPS {
            let ends = self.cells(&levels);
            if ends == last {
                break;
            }
            let mut from = 0;
            for (level, &to) in levels.iter_mut().zip(&ends) {
                let [w, wx, _] = self.cell(from, to);
                if w > 0.0 {
                    *level = wx / w;
                }
                from = to;
            }
            last = ends;
        }
        levels
    }

    /// A start by k-means++ (Arthur and Vassilvitskii 2007) among `seen`: each next centre drawn by its squared distance. Distances are summed
    /// by blocks, since a single sum would wait for itself at each of them.
    fn plus_plus(seen: &Seen, k: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
        let mut distance = seen.weights.clone();
        let mut sums: Vec<f64> = distance.chunks(BLOCK).map(|block| block.iter().sum()).collect();
        let mut levels = Vec::with_capacity(k);
        for _ in 0..k {
            let mut left = rng.random::<f64>() * sums.iter().sum::<f64>();
            let block = sums.iter().position(|&sum| left <= sum || (left -= sum, false).1).unwrap_or(0);
            let inside = &distance[block * BLOCK..];
            let place = inside.iter().position(|&d| (left -= d, left <= 0.0).1).unwrap_or(0);
            let centre = seen.values[block * BLOCK + place];
            if levels.is_empty() {
                distance.fill(f64::INFINITY);
            }
            let blocks = seen.values.chunks(BLOCK).zip(seen.weights.chunks(BLOCK));
            for ((sum, block), (values, weights)) in sums.iter_mut().zip(distance.chunks_mut(BLOCK)).zip(blocks) {
                for ((d, x), w) in block.iter_mut().zip(values).zip(weights) {
                    *d = d.min(w * (x - centre).powi(2));
                }
                *sum = block.iter().sum();
            }
            levels.push(centre);
        }
        levels.sort_unstable_by(f64::total_cmp);
        levels
    }

    /// The best of several runs of k-means with `k` centroids, sorted.
    pub(crate) fn k_means(&self, k: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
        if self.values.is_empty() {
            return vec![0.0; k];
        }
        let quantiles = (0..k).map(|i| self.values[(2 * i + 1) * self.values.len() / (2 * k)]).collect();
        let mut best = self.lloyd(quantiles);
        let mut least = self.distortion(&best);
        let places = (0..self.values.len()).step_by(self.values.len().div_ceil(START_SAMPLES));
        let (values, weights) = places.map(|i| (self.values[i], self.cell(i, i + 1)[0])).unzip();
        let seen = Seen { values, weights };
        for _ in 0..STARTS {
            let levels = self.lloyd(Self::plus_plus(&seen, k, rng));
            let distortion = self.distortion(&levels);
            if distortion < least {
                (best, least) = (levels, distortion);
            }
        }
        best
    }

    /// Two stages whose sums are the levels. They are first k-means, and k-means of what it leaves. Then both are refined together, by
    /// turns: the nearest of all sums for every sample, and the least-squares centroids of both stages at once.
    pub(crate) fn two_stages(&self, first: usize, second: usize, rng: &mut ChaCha8Rng) -> (Vec<f64>, Vec<f64>) {
        let mut stage1 = self.k_means(first, rng);
        let mut residual = Vec::with_capacity(self.values.len());
        let mut from = 0;
        for (&level, to) in stage1.iter().zip(self.cells(&stage1)) {
            residual.extend((from..to).map(|i| (self.values[i] - level, self.cell(i, i + 1)[0])));
            from = to;
        }
        let mut stage2 = Self::new(residual).k_means(second, rng);
        let mut best = (stage1.clone(), stage2.clone());
        let mut least = f64::INFINITY;
        for _ in 0..JOINT_STEPS {
            let sums = sums_in_order(&stage1, &stage2);
            let levels: Vec<f64> = sums.iter().map(|sum| sum.0).collect();
            let distortion = self.distortion(&levels);
            if distortion >= least * (1.0 - 1e-7) {
                break;
            }
            least = distortion;
            best = (stage1.clone(), stage2.clone());
            let step = self.joint_step(&sums, first, second);
            for (centroid, delta) in stage1.iter_mut().chain(&mut stage2).zip(step) {
                *centroid += delta;
            }
        }
        best
    }

    /// The least-squares change of all centroids for the present cells.
    fn joint_step(&self, sums: &[(f64, u8, u8)], first: usize, second: usize) -> Vec<f64> {
        let n = first + second;
        let levels: Vec<f64> = sums.iter().map(|sum| sum.0).collect();
        let mut normal = vec![vec![0.0; n + 1]; n];
        let mut from = 0;
        for (&(level, i1, i2), to) in sums.iter().zip(self.cells(&levels)) {
            let [w, wx, _] = self.cell(from, to);
            from = to;
            let places = [usize::from(i1), first + usize::from(i2)];
            for &row in &places {
                for &col in &places {
                    normal[row][col] += w;
                }
                normal[row][n] += wx - w * level;
            }
        }
        // One stage may move up and the other down with no effect. A little damping holds both where they are.
        let damping = 1e-9 * self.total()[0].max(f64::MIN_POSITIVE);
        for (row, line) in normal.iter_mut().enumerate() {
            line[row] += damping;
        }
        eliminate(normal)
    }
}

/// Solves a small symmetric positive system, given as rows with the right side last.
fn eliminate(mut rows: Vec<Vec<f64>>) -> Vec<f64> {
    let n = rows.len();
    for pivot in 0..n {
        let (done, rest) = rows.split_at_mut(pivot + 1);
        let line = &done[pivot];
        for row in rest {
            let factor = row[pivot] / line[pivot];
            for (value, &above) in row[pivot..].iter_mut().zip(&line[pivot..]) {
                *value -= factor * above;
            }
        }
    }
    let mut solution = vec![0.0; n];
    for row in (0..n).rev() {
        let known: f64 = (row + 1..n).map(|col| rows[row][col] * solution[col]).sum();
        solution[row] = (rows[row][n] - known) / rows[row][row];
    }
    solution
}

fn sums_in_order(stage1: &[f64], stage2: &[f64]) -> Vec<(f64, u8, u8)> {
    let pairs = stage1.iter().enumerate().flat_map(|(i, &a)| stage2.iter().enumerate().map(move |(j, &b)| (a + b, i as u8, j as u8)));
    let mut sums: Vec<_> = pairs.collect();
    sums.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    sums
}

/// The levels of one width, ready to code with. Centroids are rounded to f16, so that files may hold them so.
#[derive(Clone, Debug)]
pub(crate) struct Quantiser {
    /// The width.
    pub width: CodeWidth,
    stage1: Vec<f32>,
    stage2: Vec<f32>,
    /// The values that codes stand for, rising, and their indices.
    levels: Vec<(f64, u8, u8)>,
    thresholds: Vec<f64>,
}

impl Quantiser {
    /// Designs the codebook of a width for these samples.
    pub(crate) fn design(width: CodeWidth, samples: &Samples, rng: &mut ChaCha8Rng) -> Self {
        let (stage1, stage2) = match (width.stage1().len(), width.stage2().len()) {
            (0, _) => (vec![], vec![]),
            (first, 0) => (samples.k_means(first, rng), vec![]),
            (first, second) => samples.two_stages(first, second, rng),
        };
        let round = |values: Vec<f64>| -> Vec<f32> { values.into_iter().map(|v| f16::from_f64(v).to_f32()).collect() };
        let (stage1, stage2) = (round(stage1), round(stage2));
        let second = if stage2.is_empty() { vec![0.0] } else { stage2.clone() };
        let sums = stage1.iter().enumerate().flat_map(|(i, &a)| second.iter().enumerate().map(move |(j, &b)| (f64::from(a + b), i as u8, j as u8)));
        let mut levels: Vec<(f64, u8, u8)> = sums.collect();
        levels.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let thresholds = levels.windows(2).map(|pair| 0.5 * (pair[0].0 + pair[1].0)).collect();
        Self { width, stage1, stage2, levels, thresholds }
    }

    /// The nearest level, as its value and indices.
    pub(crate) fn nearest(&self, value: f64) -> (f64, u8, u8) {
        let place = self.thresholds.partition_point(|&threshold| threshold < value);
        self.levels.get(place).copied().unwrap_or((0.0, 0, 0))
    }

    /// Writes the centroids to this width's place in a codebook record.
    pub(crate) fn record(&self, codebook: &mut [f32; CODEBOOK_LEN]) {
        codebook[self.width.stage1()].copy_from_slice(&self.stage1);
        codebook[self.width.stage2()].copy_from_slice(&self.stage2);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_distr::{Distribution, StandardNormal};

    fn gaussian(n: usize) -> Vec<f64> {
        StandardNormal.sample_iter(ChaCha8Rng::seed_from_u64(7)).take(n).collect()
    }

    fn cosine(width: CodeWidth) -> f64 {
        let x = gaussian(1 << 16);
        let quantiser = Quantiser::design(width, &Samples::new(x.iter().map(|&x| (x, 1.0)).collect()), &mut ChaCha8Rng::seed_from_u64(1));
        let coded: Vec<f64> = x.iter().map(|&x| quantiser.nearest(x).0).collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        dot(&x, &coded) / (dot(&x, &x) * dot(&coded, &coded)).sqrt()
    }

    /// Max (1960), "Quantizing for minimum distortion", gives 0.1175, 0.03454 and 0.009497 as the least distortion of 4, 8 and 16 levels on
    /// a Gaussian. The cosine is the root of what is left.
    #[test]
    fn codebooks_reach_the_known_rate_distortion_of_a_gaussian() {
        for (width, distortion) in [(CodeWidth::Two, 0.1175), (CodeWidth::Three, 0.03454), (CodeWidth::Four, 0.009497)] {
            let expected = (1.0f64 - distortion).sqrt();
            // The samples' own chance is a hundredth of the distortion.
            assert!((cosine(width) - expected).abs() < 1e-3, "{width:?}: {} against {expected}", cosine(width));
        }
        assert!(cosine(CodeWidth::FourThree) >= 0.9998, "{}", cosine(CodeWidth::FourThree));
    }

    #[test]
    fn joint_refinement_beats_one_stage_after_the_other() {
        let samples = Samples::new(gaussian(1 << 14).into_iter().map(|x| (x, 1.0)).collect());
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let stage1 = samples.k_means(16, &mut rng);
        let (joint1, joint2) = samples.two_stages(16, 8, &mut rng);
        let levels: Vec<f64> = sums_in_order(&joint1, &joint2).into_iter().map(|sum| sum.0).collect();
        // The figure of sixteen levels and eight of the residual, fitted in turn, is 0.99966.
        let joint = samples.distortion(&levels);
        assert!(joint < 0.7 * (1.0 - 0.99966f64.powi(2)), "{joint}");
        assert!(joint < samples.distortion(&stage1) / 20.0);
    }

    #[test]
    fn weights_pull_the_centroids() {
        let pairs = (0..1000).map(|i| (f64::from(i % 10), if i % 10 == 3 { 1e6 } else { 1.0 })).collect();
        let levels = Samples::new(pairs).k_means(4, &mut ChaCha8Rng::seed_from_u64(3));
        assert!(levels.iter().any(|level| (level - 3.0).abs() < 1e-3), "{levels:?}");
    }

    #[test]
    fn few_samples_and_equal_samples_are_coded_exactly() {
        for values in [vec![], vec![0.5], vec![-1.0, 2.0, 2.0], vec![0.25; 100]] {
            let samples = Samples::new(values.iter().map(|&x| (x, 1.0)).collect());
            for width in WIDTHS {
                let quantiser = Quantiser::design(width, &samples, &mut ChaCha8Rng::seed_from_u64(3));
                for &value in &values {
                    assert!((quantiser.nearest(value).0 - value).abs() < 1e-3, "{width:?} {values:?}: {:?}", quantiser.nearest(value));
                }
            }
        }
    }
}
