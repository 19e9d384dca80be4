//! The parts of an encoded population: shared bases, and for each adapter and projection two factors and a core.
//!
//! `ΔW = scaling · O · Qᵀ · Iᵀ`, with `I [d_in, R]`, `Q [R, R]`, `O [d_out, R]`: the terms of
//! [`crate::ops::codebook_gemm`]. Which factors are shared, coded or plain is the rung of the ladder.

use std::collections::BTreeMap;

use half::f16;

use super::certificate::Certificate;
pub use super::certificate::Rung;
pub use super::matrix::Matrix;
use crate::error::{Error, Result, ensure};
use crate::ops::codes::{self, CODEBOOK_LEN, CodeWidth};

/// A compressed population.
#[derive(Clone, Debug, PartialEq)]
pub struct Population {
    /// The shared projections, by module path (`encoder.layer.0.attention.self.query`).
    pub projections: BTreeMap<String, SharedProjection>,
    /// The adapters, by name.
    pub adapters: BTreeMap<String, EncodedAdapter>,
}

impl Population {
    /// Removes an adapter, and the projections that no other adapter has, with their bases.
    ///
    /// # Errors
    /// The population does not have the adapter.
    pub fn remove(&mut self, name: &str) -> Result<EncodedAdapter> {
        let removed = self.adapters.remove(name).ok_or_else(|| self.lacks(name))?;
        self.projections.retain(|path, _| self.adapters.values().any(|adapter| adapter.projections.contains_key(path)));
        Ok(removed)
    }

    /// Gives an adapter another name.
    ///
    /// # Errors
    /// An adapter that the population does not have; a name that is taken.
    pub fn rename(&mut self, old: &str, new: &str) -> Result<()> {
        ensure(!self.adapters.contains_key(new), "population", "a name that is not taken", format_args!("{new:?}"))?;
        let adapter = self.adapters.remove(old).ok_or_else(|| self.lacks(old))?;
        self.adapters.insert(new.into(), adapter);
        Ok(())
    }

    fn lacks(&self, name: &str) -> Error {
        let known: Vec<&str> = self.adapters.keys().take(20).map(String::as_str).collect();
        Error::invalid("population", format!("one of its adapters, such as {}", known.join(", ")), format!("{name:?}"))
    }
}

/// What all adapters of a population share in one projection.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedProjection {
    /// Columns of the weight.
    pub d_in: usize,
    /// Rows of the weight.
    pub d_out: usize,
    /// Input bases `V`, each `[d_in, R]` with one R for all.
    pub input_bases: Vec<Matrix<f16>>,
    /// Output bases, each `[d_out, R]` with one R for all.
    pub output_bases: Vec<Matrix<f16>>,
}

/// One encoded adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedAdapter {
    /// The adapter's original `adapter_config.json`, so that it can be given back.
    pub config: serde_json::Value,
    /// The projections, by module path. A projection that the adapter does not touch is absent.
    pub projections: BTreeMap<String, EncodedProjection>,
}

impl EncodedAdapter {
    /// Bytes of the adapter's own codes, centroids, cores and plain values, without shared bases.
    pub fn bytes(&self) -> u64 {
        self.projections.values().map(|projection| projection.certificate.bytes).sum()
    }

    /// The least cosine of ΔW and what is kept of it, over the projections; 1 where the adapter touches none.
    pub fn least_cosine(&self) -> f64 {
        self.projections.values().map(|projection| projection.certificate.cos_delta).fold(1.0, f64::min)
    }
}

/// One adapter's encoding in one projection.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedProjection {
    /// The input factor `I`.
    pub input: EncodedFactor,
    /// The core `Q`, `[R, R]`: `g[j] = Σ_i h[i] · Q[i, j]`.
    pub core: Option<Matrix<f32>>,
    /// The output factor `O`.
    pub output: EncodedFactor,
    /// The scale of the product (LoRA's own, where it is not folded into the factors).
    pub scaling: f32,
    /// The measures of what was kept.
    pub certificate: Certificate,
}

/// One factor of one adapter in one projection.
#[derive(Clone, Debug, PartialEq)]
pub enum EncodedFactor {
    /// The shared basis with this number.
    Shared(usize),
    /// Codes: a packed column for each of the R columns (see [`crate::ops::codes`]).
    Coded(CodedColumns),
    /// A plain factor of the adapter's own, `[d, r]`.
    Plain(Matrix<f16>),
}

/// Packed columns and the codebook that they index.
#[derive(Clone, Debug, PartialEq)]
pub struct CodedColumns {
    /// Elements of a column.
    pub d: usize,
    /// The width and words of each column.
    pub columns: Vec<(CodeWidth, Vec<u32>)>,
    /// Centroids. Entries that no width in use indexes are 0.
    pub codebook: [f32; CODEBOOK_LEN],
}

/// The most elements of one decoded factor, so that a small hostile file cannot ask for the whole memory.
pub const MAX_FACTOR_ELEMENTS: u64 = 1 << 26;
/// The most rows or columns of a weight. The longest dimension of models in use is their vocabulary, below 2^19.
pub const MAX_DIMENSION: usize = 1 << 24;

/// The sizes of a [`SharedProjection`], against which an adapter is checked before the bases themselves are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedShape {
    /// Columns of the weight.
    pub d_in: usize,
    /// Rows of the weight.
    pub d_out: usize,
    /// The number of input bases, and the columns of each.
    pub input: [usize; 2],
    /// The number of output bases, and the columns of each.
    pub output: [usize; 2],
}

impl SharedProjection {
    /// The checked sizes of the projection.
    ///
    /// # Errors
    /// Bases of several shapes, of another size than the weight, or with values that are not finite.
    pub fn shape(&self) -> Result<SharedShape> {
        let side = |name: &str, d: usize, bases: &[Matrix<f16>]| {
            ensure((1..=MAX_DIMENSION).contains(&d), name, format_args!("1 to {MAX_DIMENSION} rows"), d)?;
            let rank = bases.first().map_or(0, |basis| basis.cols);
            for basis in bases {
                let fits = basis.rows == d && basis.cols == rank && rank > 0 && basis.is_whole();
                ensure(fits, name, format_args!("[{d}, {rank}], at least one column"), format_args!("[{}, {}]", basis.rows, basis.cols))?;
                ensure(basis.data.iter().all(|value| value.is_finite()), name, "finite values", "NaN or an infinity")?;
            }
            Ok([bases.len(), rank])
        };
        let input = side("input basis", self.d_in, &self.input_bases)?;
        let output = side("output basis", self.d_out, &self.output_bases)?;
        Ok(SharedShape { d_in: self.d_in, d_out: self.d_out, input, output })
    }
}

impl EncodedFactor {
    /// The columns of the factor, `R`; `None` for a shared basis that the projection does not have.
    pub fn rank(&self, [bases, basis_rank]: [usize; 2]) -> Option<usize> {
        match self {
            Self::Shared(basis) => (*basis < bases).then_some(basis_rank),
            Self::Coded(coded) => Some(coded.columns.len()),
            Self::Plain(values) => Some(values.cols),
        }
    }

    /// Whether column `column` holds anything. A coded column of no bits does not.
    pub fn is_live(&self, column: usize) -> bool {
        match self {
            Self::Coded(coded) => coded.columns.get(column).is_some_and(|(width, _)| *width != CodeWidth::Zero),
            _ => true,
        }
    }

    /// Checks the factor against its `d` rows, and against the number and columns of the bases that it may point into.
    fn validate(&self, name: &str, d: usize, bases: [usize; 2]) -> Result<usize> {
        let rows = match self {
            Self::Shared(_) => d,
            Self::Coded(coded) => {
                ensure(coded.codebook.iter().all(|value| value.is_finite()), name, "finite centroids", format_args!("{:?}", coded.codebook))?;
                for (width, words) in &coded.columns {
                    codes::validate_column(*width, words, coded.d)?;
                }
                coded.d
            }
            Self::Plain(values) => {
                ensure(values.is_whole(), name, "rows · columns elements", values.data.len())?;
                ensure(values.data.iter().all(|value| value.is_finite()), name, "finite values", "NaN or an infinity")?;
                values.rows
            }
        };
        let Some(cols) = self.rank(bases) else {
            return Err(Error::invalid(name, format!("a basis below {}", bases[0]), format!("{self:?}")));
        };
        ensure(rows == d && cols > 0, name, format_args!("[{d}, at least 1]"), format_args!("[{rows}, {cols}]"))?;
        let elements = (rows as u64).saturating_mul(cols as u64);
        ensure(elements <= MAX_FACTOR_ELEMENTS, name, format_args!("at most {MAX_FACTOR_ELEMENTS} elements"), elements)?;
        Ok(cols)
    }

    /// The columns with these numbers, `[d, columns]`, widened exactly. The factor must have passed `validate`.
    fn dense(&self, d: usize, bases: &[Matrix<f16>], columns: &[usize]) -> Matrix<f64> {
        let mut decoded = vec![0f32; d];
        let mut data = Vec::with_capacity(d * columns.len());
        for &column in columns {
            match self {
                Self::Shared(basis) => data.extend((0..d).map(|row| bases[*basis].at(row, column).to_f64())),
                Self::Plain(values) => data.extend((0..d).map(|row| values.at(row, column).to_f64())),
                Self::Coded(coded) => {
                    let (width, words) = &coded.columns[column];
                    codes::decode_column(*width, words, &coded.codebook, &mut decoded);
                    data.extend(decoded.iter().map(|&value| f64::from(value)));
                }
            }
        }
        Matrix { rows: columns.len(), cols: d, data }.transposed()
    }
}

impl EncodedProjection {
    /// Checks shapes, indices, codes and values against what the population shares.
    ///
    /// # Errors
    /// The first fault: wrong sizes, a basis that does not exist, a code outside its codebook, a value that is not finite.
    pub fn validate(&self, shared: &SharedShape) -> Result<()> {
        let input = self.input.validate("input factor", shared.d_in, shared.input)?;
        let output = self.output.validate("output factor", shared.d_out, shared.output)?;
        ensure(input == output, "output factor", format_args!("{input} columns, as the input factor"), output)?;
        if let Some(core) = &self.core {
            let square = core.rows == input && core.cols == input && core.is_whole();
            ensure(square, "core", format_args!("[{input}, {input}]"), format_args!("[{}, {}]", core.rows, core.cols))?;
            ensure(core.data.iter().all(|value| value.is_finite()), "core", "finite values", "NaN or an infinity")?;
        }
        ensure(self.scaling.is_finite(), "scaling", "a finite number", self.scaling)
    }

    /// Whether column `j` of the product counts: the output has it, and the input reaches it through the core.
    fn reaches(&self, j: usize, rank: usize) -> bool {
        let fed = match &self.core {
            None => self.input.is_live(j),
            Some(core) => (0..rank).any(|i| core.at(i, j) != 0.0 && self.input.is_live(i)),
        };
        fed && self.output.is_live(j)
    }

    /// The columns that count, and the number of all columns, of a projection whose sizes fit its `output_bases` (a number of them, and the
    /// columns of each).
    fn live(&self, output_bases: [usize; 2]) -> (Vec<usize>, usize) {
        let rank = self.output.rank(output_bases).unwrap_or(0);
        ((0..rank).filter(|&j| self.reaches(j, rank)).collect(), rank)
    }

    /// The rank of [`factors`](Self::factors) of a projection whose sizes fit `shared`. Reads no code and no basis.
    pub(crate) fn live_rank(&self, shared: &SharedProjection) -> usize {
        let output_bases = [shared.output_bases.len(), shared.output_bases.first().map_or(0, |basis| basis.cols)];
        self.live(output_bases).0.len().max(1)
    }

    /// The rank of [`factors`](Self::factors), without decoding them.
    ///
    /// # Errors
    /// The errors of [`Self::validate`] and [`SharedProjection::shape`].
    pub fn plain_rank(&self, shared: &SharedProjection) -> Result<usize> {
        let shape = shared.shape()?;
        self.validate(&shape)?;
        Ok(self.live(shape.output).0.len().max(1))
    }

    /// The encoding as plain LoRA: `A [r, d_in] = (I·Q)ᵀ` and `B [d_out, r] = O`, so that `ΔW = scaling · B · A`. Columns that hold nothing
    /// are left out, so `r ≤ R`. Where all are left out, `r` is 1, with zeros.
    ///
    /// # Errors
    /// The errors of [`Self::validate`] and [`SharedProjection::shape`].
    pub fn factors(&self, shared: &SharedProjection) -> Result<(Matrix<f64>, Matrix<f64>)> {
        let shape = shared.shape()?;
        self.validate(&shape)?;
        let (live, rank) = self.live(shape.output);
        if live.is_empty() {
            let zeros = |rows: usize, cols: usize| Matrix { rows, cols, data: vec![0.0; rows * cols] };
            return Ok((zeros(1, shared.d_in), zeros(shared.d_out, 1)));
        }
        let output = self.output.dense(shared.d_out, &shared.output_bases, &live);
        let input = |columns: &[usize]| self.input.dense(shared.d_in, &shared.input_bases, columns);
        let a = match &self.core {
            None => input(&live),
            Some(core) => {
                let fed: Vec<usize> = (0..rank).filter(|&i| self.input.is_live(i)).collect();
                let block = fed.iter().flat_map(|&i| live.iter().map(move |&j| f64::from(core.at(i, j)))).collect();
                input(&fed).times(&Matrix { rows: fed.len(), cols: live.len(), data: block })
            }
        };
        Ok((a.transposed(), output))
    }

    /// The update `ΔW [d_out, d_in]`, in float64 from exactly what is held.
    ///
    /// # Errors
    /// The errors of [`Self::validate`] and [`SharedProjection::shape`].
    pub fn delta(&self, shared: &SharedProjection) -> Result<Matrix<f64>> {
        let (a, b) = self.factors(shared)?;
        Ok(b.times(&a).map(|value| value * f64::from(self.scaling)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn coded(widths: &[CodeWidth], d: usize) -> EncodedFactor {
        let columns = widths.iter().enumerate().map(|(j, &width)| {
            let codes: Vec<u8> = (0..d).map(|e| ((e + j) % width.stage1().len().max(1)) as u8).collect();
            (width, codes::pack(width, &codes, &[]).unwrap())
        });
        let codebook = std::array::from_fn(|entry| (entry as f32 * 0.7).sin());
        EncodedFactor::Coded(CodedColumns { d, columns: columns.collect(), codebook })
    }

    fn projection() -> (EncodedProjection, SharedProjection) {
        let basis = Matrix::new(5, 3, (0..15).map(|i| f16::from_f32(i as f32 * 0.25 - 1.0)).collect()).unwrap();
        let core = Matrix::new(3, 3, vec![1.0, 0.5, -2.0, 0.0, 3.0, 0.25, -1.0, 2.0, 1.5]).unwrap();
        let certificate = serde_json::from_value(serde_json::json!({
            "rung": "shared_input", "rank": 3, "basis_energy": 1.0, "cos_factor": 1.0, "cos_delta": 1.0, "output_error_gaussian": 0.0,
            "output_error_held_out": null, "calibrated": false, "bits_per_element": 4.0, "bytes": 0, "bytes_before": 0
        }));
        let output = coded(&[CodeWidth::Four, CodeWidth::Zero, CodeWidth::Two], 4);
        let projection = EncodedProjection { input: EncodedFactor::Shared(0), core: Some(core), output, scaling: 2.0, certificate: certificate.unwrap() };
        (projection, SharedProjection { d_in: 5, d_out: 4, input_bases: vec![basis], output_bases: vec![] })
    }

    #[test]
    fn delta_is_the_documented_product() {
        let (projection, shared) = projection();
        let (i, q, o) = (&shared.input_bases[0], projection.core.as_ref().unwrap(), projection.output.dense(4, &[], &[0, 1, 2]));
        let delta = projection.delta(&shared).unwrap();
        for row in 0..4 {
            for col in 0..5 {
                let terms = (0..3).flat_map(|a| (0..3).map(move |b| (a, b)));
                let sum: f64 = terms.map(|(a, b)| i.at(col, a).to_f64() * f64::from(q.at(a, b)) * o.at(row, b)).sum();
                assert!((delta.at(row, col) - 2.0 * sum).abs() < 1e-12);
            }
        }
        let (a, b) = projection.factors(&shared).unwrap();
        assert_eq!([a.rows, a.cols, b.rows, b.cols], [2, 5, 4, 2], "the column of no bits is left out");
    }

    #[test]
    fn shapes_indices_and_values_are_checked() {
        type Spoil = fn(&mut EncodedProjection);
        let faults: [Spoil; 6] = [
            |p| p.input = EncodedFactor::Shared(1),
            |p| p.output = coded(&[CodeWidth::Four; 2], 4),
            |p| p.output = coded(&[CodeWidth::Four; 3], 5),
            |p| p.core = Matrix::new(3, 2, vec![0.0; 6]).ok(),
            |p| p.scaling = f32::NAN,
            |p| {
                if let EncodedFactor::Coded(coded) = &mut p.output {
                    coded.columns[0].1.pop();
                }
            },
        ];
        for (number, spoil) in faults.iter().enumerate() {
            let (mut projection, shared) = projection();
            spoil(&mut projection);
            assert!(projection.factors(&shared).is_err(), "fault {number}");
        }
    }
}
