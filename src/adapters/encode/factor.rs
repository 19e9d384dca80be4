//! The coding of one factor: columns of unit size, a codebook for each width in use, and the codes.

use rand_chacha::ChaCha8Rng;

use super::codebook::{Quantiser, Samples, WIDTHS};
use super::linalg::Mat;
use super::lower::Lower;
use crate::adapters::encoded::CodedColumns;
use crate::error::Result;
use crate::ops::codes::{CODEBOOK_LEN, CodeWidth, pack};

/// A factor to be coded.
pub(crate) struct Coder<'a> {
    /// The columns, `[d, n]`, of unit mean square.
    target: Mat,
    /// The lower Cholesky factor of the metric in which errors count; absent for the plain metric.
    lower: Option<&'a Lower>,
    /// The energy of each column in the metric, against which its error is held.
    scale: Vec<f64>,
    /// The share of a column's energy that each of [`WIDTHS`] loses, by column.
    losses: Vec<[f64; 4]>,
    rng: ChaCha8Rng,
}

/// A coded column: first-stage indices, second-stage indices, decoded values, and the error's energy.
type Column = (Vec<u8>, Vec<u8>, Vec<f64>, f64);

impl<'a> Coder<'a> {
    /// A coder for `columns [d, n]`, orthonormal in the metric, which the factor is to span.
    pub(crate) fn new(columns: &Mat, lower: Option<&'a Lower>, rng: ChaCha8Rng) -> Self {
        let (d, n) = columns.shape();
        let rms: Vec<f64> = (0..n).map(|j| ((0..d).map(|i| columns[(i, j)].powi(2)).sum::<f64>() / d as f64).sqrt().max(f64::MIN_POSITIVE)).collect();
        let target = Mat::from_fn(d, n, |i, j| columns[(i, j)] / rms[j]);
        // Columns come orthonormal in the metric, so their energy is 1 before the change of scale.
        let scale = rms.iter().map(|rms| 1.0 / (rms * rms)).collect();
        let mut coder = Self { target, lower, scale, losses: vec![], rng };
        let all = coder.samples((0..n).map(|j| (j, 1.0)));
        let mut rng = coder.rng.clone();
        let pooled = WIDTHS.map(|width| Quantiser::design(width, &all, &mut rng));
        coder.losses = (0..n).map(|j| std::array::from_fn(|k| coder.column(j, &pooled[k]).3 / coder.scale[j])).collect();
        coder
    }

    /// The number of rows.
    pub(crate) fn d(&self) -> usize {
        self.target.nrows()
    }

    /// About the share of column `j`'s energy that `width` loses.
    pub(crate) fn expected_loss(&self, j: usize, width: CodeWidth) -> f64 {
        WIDTHS.iter().position(|&each| each == width).map_or(1.0, |k| self.losses[j][k].min(1.0))
    }

    /// The weight of an error in a row, once the rows after it have made up for what they can: the pivot of the metric.
    fn weight(&self, row: usize) -> f64 {
        self.lower.map_or(1.0, |lower| lower.pivot(row).powi(2))
    }

    /// Codes column `j`: every element by its nearest level, and in a metric also with feedback. It returns the better.
    fn column(&self, j: usize, quantiser: &Quantiser) -> Column {
        let plain = self.code_column(j, quantiser, None);
        let Some(lower) = self.lower else { return plain };
        let fed_back = self.code_column(j, quantiser, Some(lower));
        if fed_back.3 < plain.3 { fed_back } else { plain }
    }

    /// Codes column `j`. With `feedback`, from the last element to the first, each element makes up for the errors until then as far as the
    /// metric lets it. `‖Lᵀe‖²` is a sum of one square an element: this is the nearest-plane method of Babai 1986, which weight quantisers
    /// use with the inputs' second moment as here.
    fn code_column(&self, j: usize, quantiser: &Quantiser, feedback: Option<&Lower>) -> Column {
        let d = self.d();
        let (mut codes1, mut codes2, mut decoded, mut errors) = (vec![0; d], vec![0; d], vec![0.0; d], vec![0.0; d]);
        let mut below = feedback.map(Lower::below);
        for i in (0..d).rev() {
            let carried = feedback.zip(below.as_ref()).map_or(0.0, |(lower, below)| below.at(i, &errors) / lower.pivot(i));
            let (level, i1, i2) = quantiser.nearest(self.target[(i, j)] + carried);
            (codes1[i], codes2[i], decoded[i]) = (i1, i2, level);
            errors[i] = self.target[(i, j)] - level;
            if let Some(below) = &mut below {
                below.add(i, errors[i]);
            }
        }
        let energy = match self.lower {
            None => errors.iter().map(|e| e * e).sum(),
            Some(lower) => lower.energy(&errors),
        };
        (codes1, codes2, decoded, energy)
    }

    /// The elements of some columns, weighted by column.
    fn samples(&self, columns: impl Iterator<Item = (usize, f64)>) -> Samples {
        Samples::new(columns.flat_map(|(j, weight)| (0..self.d()).map(move |i| (self.target[(i, j)], weight * self.weight(i)))).collect())
    }

    /// Codes the columns of `live`, each at its width, with codebooks fitted to the columns of each width by their `energies`. Returns the
    /// codes, in the order of `live` and then empty columns up to `rank`; and the decoded columns, `[d, live]`.
    pub(crate) fn code(&self, live: &[(usize, CodeWidth)], energies: &[f64], rank: usize) -> Result<(CodedColumns, Mat)> {
        let mut rng = self.rng.clone();
        let mut codebook = [0.0; CODEBOOK_LEN];
        let mut columns = vec![(CodeWidth::Zero, vec![]); rank];
        let mut decoded = Mat::zeros(self.d(), live.len());
        for width in WIDTHS {
            let places: Vec<usize> = (0..live.len()).filter(|&place| live[place].1 == width).collect();
            if places.is_empty() {
                continue;
            }
            let weight = |j: usize| (energies[j] / self.scale[j]).max(f64::MIN_POSITIVE);
            let samples = self.samples(places.iter().map(|&place| (live[place].0, weight(live[place].0))));
            let quantiser = Quantiser::design(width, &samples, &mut rng);
            quantiser.record(&mut codebook);
            for place in places {
                let (codes1, codes2, values, _) = self.column(live[place].0, &quantiser);
                values.iter().enumerate().for_each(|(i, &value)| decoded[(i, place)] = value);
                columns[place] = (width, pack(width, &codes1, &codes2)?);
            }
        }
        Ok((CodedColumns { d: self.d(), columns, codebook }, decoded))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ops::codes::decode_column;
    use rand::SeedableRng;
    use rand_distr::{Distribution, StandardNormal};

    #[test]
    fn codes_decode_to_what_the_encoder_saw_and_lose_what_it_expected() {
        let (d, n) = (1000, 3);
        let values: Vec<f64> = StandardNormal.sample_iter(ChaCha8Rng::seed_from_u64(3)).take(d * n).collect();
        // The columns are orthonormal except for chance.
        let columns = Mat::from_fn(d, n, |i, j| values[i * n + j] / (d as f64).sqrt());
        let coder = Coder::new(&columns, None, ChaCha8Rng::seed_from_u64(5));
        let live = [(0, CodeWidth::FourThree), (2, CodeWidth::Three)];
        let (coded, decoded) = coder.code(&live, &[4.0, 2.0, 1.0], 4).unwrap();
        assert_eq!(coded.columns.iter().map(|column| column.0.bits()).collect::<Vec<_>>(), [7, 3, 0, 0]);
        for (place, &(j, width)) in live.iter().enumerate() {
            let mut values = vec![0.0; d];
            decode_column(width, &coded.columns[place].1, &coded.codebook, &mut values);
            assert!((0..d).all(|i| f64::from(values[i]) == decoded[(i, place)]));
            let error: f64 = (0..d).map(|i| (decoded[(i, place)] - coder.target[(i, j)]).powi(2)).sum::<f64>() / d as f64;
            assert!((error / coder.expected_loss(j, width) - 1.0).abs() < 0.35, "{error} {}", coder.expected_loss(j, width));
        }
        assert_eq!(coded.codebook[..4], [0.0; 4], "entries that no width indexes stay 0");
        assert_eq!(coder.expected_loss(0, CodeWidth::Zero), 1.0);
    }
}
