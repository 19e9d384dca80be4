//! Calibration inputs: what a projection really reads, so that the encoder spends its bits where inputs go.
//!
//! The error that matters is that of the output, `E‖(ΔW − ΔŴ)x‖² = ‖(ΔW − ΔŴ)·C^½‖²` with the second moment
//! `C = E[x·xᵀ]`. The encoder works in coordinates where C is the identity; part of the rows never enters C and
//! only measures the result.

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};

use super::encoded::Matrix;
use super::linalg::{Mat, cholesky, dot, mul, solve_transposed, widen};
use crate::error::{Error, Result, ensure};

/// Rows below which a quarter held out would say nothing.
const MIN_ROWS: usize = 8;

/// Inputs of every projection of a population.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    inputs: BTreeMap<String, Inputs>,
    only_measures: bool,
}

/// Inputs of one projection, `[rows, d_in]` each.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    /// What the encoding sees.
    pub design: Matrix,
    /// What only measures it.
    pub held_out: Matrix,
}

impl Calibration {
    /// Reads a safetensors file whose tensors, `[rows, d_in]` in f16, bf16 or f32, are named by module path. The last
    /// quarter of the rows of each is held out from the encoding.
    ///
    /// # Errors
    /// A file that cannot be read, or a tensor of another shape or type, of fewer than 8 rows, or with NaN or infinities.
    pub fn load(path: &Path) -> Result<Self> {
        Self::from_rows(read(path)?)
    }

    /// As [`Self::load`], with all rows of `design` for the encoding and all of `held_out` for the measure.
    ///
    /// # Errors
    /// As [`Self::load`]; a projection of one file that the other lacks, or with another width.
    pub fn load_pair(design: &Path, held_out: &Path) -> Result<Self> {
        let mut measured = read(held_out)?;
        let mut inputs = BTreeMap::new();
        for (name, design) in read(design)? {
            let Some(rows) = measured.remove(&name) else {
                return Err(Error::input_item(held_out, name, "a tensor of that name is in the calibration file: both files need it"));
            };
            ensure(rows.cols == design.cols, &name, &format!("[rows, {}] held out", design.cols), format!("[{}, {}]", rows.rows, rows.cols))?;
            inputs.insert(name, Inputs { design, held_out: rows });
        }
        match measured.into_keys().next() {
            Some(name) => Err(Error::input_item(held_out, name, "no tensor of that name is in the calibration file: both files need it")),
            None => Ok(Self { inputs, only_measures: false }),
        }
    }

    /// Inputs by module path, `[rows, d_in]`; the last quarter of the rows is held out.
    ///
    /// # Errors
    /// Fewer than 8 rows, or values that are not finite.
    pub fn from_rows(rows: BTreeMap<String, Matrix>) -> Result<Self> {
        let mut inputs = BTreeMap::new();
        for (name, all) in rows {
            ensure(all.rows >= MIN_ROWS && all.cols > 0, &name, "at least 8 calibration rows", format!("[{}, {}]", all.rows, all.cols))?;
            ensure(all.data.iter().all(|value| value.is_finite()), &name, "finite calibration inputs", "NaN or an infinity")?;
            let kept = all.rows - all.rows / 4;
            let (design, held_out) = all.data.split_at(kept * all.cols);
            let part = |data: &[f32]| Matrix { rows: data.len() / all.cols, cols: all.cols, data: data.to_vec() };
            inputs.insert(name, Inputs { design: part(design), held_out: part(held_out) });
        }
        Ok(Self { inputs, only_measures: false })
    }

    /// The same inputs, which then only measure what an encoding without them keeps.
    #[must_use]
    pub fn only_measuring(self) -> Self {
        Self { only_measures: true, ..self }
    }

    /// Whether the inputs have no part in the encoding.
    pub(crate) fn only_measures(&self) -> bool {
        self.only_measures
    }

    /// The module paths that have inputs.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.inputs.keys().map(String::as_str)
    }

    /// The inputs of one projection.
    ///
    /// # Errors
    /// No inputs of that name, or of another width.
    pub(crate) fn of(&self, name: &str, d_in: usize) -> Result<&Inputs> {
        let Some(inputs) = self.inputs.get(name) else {
            return Err(Error::invalid("calibration", format!("a tensor named {name:?}, [rows, {d_in}]"), "none of that name"));
        };
        ensure(inputs.design.cols == d_in, name, &format!("calibration inputs [rows, {d_in}]"), format!("[{}, {}]", inputs.design.rows, inputs.design.cols))?;
        Ok(inputs)
    }
}

fn read(path: &Path) -> Result<BTreeMap<String, Matrix>> {
    let bytes = std::fs::read(path).map_err(Error::io(path, "read"))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|fault| Error::input(path, format!("not a safetensors file: {fault}")))?;
    let mut out = BTreeMap::new();
    for (name, tensor) in file.iter() {
        let bad = |problem: String| Error::input_item(path, name, problem);
        let &[rows, cols] = tensor.shape() else {
            return Err(bad(format!("expected the shape [rows, d_in], found {:?}", tensor.shape())));
        };
        let data: Vec<f32> = match tensor.dtype() {
            Dtype::F16 => tensor.data().chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Dtype::BF16 => tensor.data().chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Dtype::F32 => tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
            other => return Err(bad(format!("expected f16, bf16 or f32, found {other:?}"))),
        };
        if rows < MIN_ROWS || cols == 0 {
            return Err(bad(format!("expected at least {MIN_ROWS} rows of inputs, found [{rows}, {cols}]")));
        }
        if !data.iter().all(|value| value.is_finite()) {
            return Err(bad("expected finite values, found NaN or an infinity".into()));
        }
        out.insert(name.to_string(), Matrix::new(rows, cols, data)?);
    }
    Ok(out)
}

/// The inner product of the input side: `⟨G, H⟩ = G·C·Hᵀ`, C the identity where nothing is known of the inputs.
pub(crate) struct Metric {
    /// The lower Cholesky factor of C.
    lower: Option<Mat>,
}

impl Metric {
    /// No knowledge of the inputs.
    pub(crate) fn identity() -> Self {
        Self { lower: None }
    }

    /// The second moment of `rows`, shrunk towards a multiple of the identity, so that directions that few inputs
    /// happen to miss are not thrown away: the share is the oracle approximating shrinkage of Chen, Wiesel, Eldar and
    /// Hero (2010), and at least a thousandth. Scaled to a mean diagonal of 1.
    pub(crate) fn of(rows: &Matrix) -> Result<Self> {
        let (n, d) = (rows.rows as f64, rows.cols as f64);
        let x = widen(rows);
        let mut moment = mul(x.transpose(), x.as_ref());
        let trace: f64 = (0..rows.cols).map(|i| moment[(i, i)]).sum();
        ensure(trace > 0.0, "calibration", "inputs that are not all zero", "zeros")?;
        let (square, squared) = (dot(moment.as_ref(), moment.as_ref()), trace * trace);
        let share = ((1.0 - 2.0 / d) * square + squared) / ((n + 1.0 - 2.0 / d) * (square - squared / d));
        let share = if share.is_finite() { share.clamp(1e-3, 1.0) } else { 1.0 };
        let scale = (1.0 - share) * d / trace;
        for j in 0..rows.cols {
            for i in 0..rows.cols {
                moment[(i, j)] *= scale;
            }
            moment[(j, j)] += share;
        }
        let lower = cholesky(&moment).ok_or_else(|| Error::invalid("calibration", "inputs of ordinary size", "a second moment that is not definite"))?;
        Ok(Self { lower: Some(lower) })
    }

    /// `Lᵀ·columns`, `[d_in, n]`: their plain inner products are then those of the metric.
    pub(crate) fn whiten(&self, columns: &Mat) -> Mat {
        self.lower.as_ref().map_or_else(|| columns.clone(), |lower| mul(lower.transpose(), columns.as_ref()))
    }

    /// `L⁻ᵀ·columns`: the undoing of [`Self::whiten`] for vectors that a projection's rows are multiplied with.
    pub(crate) fn lift(&self, columns: &Mat) -> Mat {
        self.lower.as_ref().map_or_else(|| columns.clone(), |lower| solve_transposed(lower, columns))
    }

    /// `L`, where C is not the identity.
    pub(crate) fn lower(&self) -> Option<&Mat> {
        self.lower.as_ref()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::adapters::linalg::energy;

    fn rows(n: usize, d: usize) -> Matrix {
        Matrix::new(n, d, (0..n * d).map(|i| ((i * i % 101) as f32 * 0.61).sin() + 0.2).collect()).unwrap()
    }

    #[test]
    fn the_last_quarter_is_held_out() {
        let calibration = Calibration::from_rows([("q".to_string(), rows(40, 6))].into()).unwrap();
        let inputs = calibration.of("q", 6).unwrap();
        assert_eq!((inputs.design.rows, inputs.held_out.rows), (30, 10));
        assert_eq!(inputs.held_out.data, rows(40, 6).data[180..]);
        assert!(calibration.of("q", 5).is_err() && calibration.of("k", 6).is_err());
        assert!(Calibration::from_rows([("q".to_string(), rows(7, 6))].into()).is_err());
    }

    #[test]
    fn whitened_products_are_those_of_the_second_moment() {
        let inputs = rows(500, 6);
        let metric = Metric::of(&inputs).unwrap();
        let g = Mat::from_fn(6, 2, |i, j| (i + 3 * j) as f64 - 2.0);
        let white = metric.whiten(&g);
        let seen = mul(widen(&inputs).as_ref(), g.as_ref());
        // The shrinkage and the scale to a mean diagonal of 1 are all that stands between the two.
        let ratio = |m: &Mat| energy(m.col(0).as_mat()) / energy(m.col(1).as_mat());
        assert!((ratio(&white) / ratio(&seen) - 1.0).abs() < 0.1, "{} {}", ratio(&white), ratio(&seen));
        assert!(energy((&metric.lift(&white) - &g).as_ref()) < 1e-18);
    }

    #[test]
    fn files_of_the_wrong_shape_or_value_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calibration.safetensors");
        let write = |shape: Vec<usize>, values: &[f32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let view = safetensors::tensor::TensorView::new(Dtype::F32, shape, &bytes).unwrap();
            std::fs::write(&path, safetensors::serialize([("q", view)], None).unwrap()).unwrap();
        };
        write(vec![10, 3], &rows(10, 3).data);
        assert_eq!(Calibration::load(&path).unwrap().names().collect::<Vec<_>>(), ["q"]);
        let pair = Calibration::load_pair(&path, &path).unwrap();
        assert_eq!(pair.of("q", 3).unwrap().held_out.rows, 10);
        write(vec![30], &rows(10, 3).data);
        assert!(Calibration::load(&path).is_err());
        write(vec![10, 1], &[f32::NAN; 10]);
        assert!(Calibration::load(&path).is_err());
        std::fs::write(&path, b"not a file of tensors").unwrap();
        assert!(Calibration::load(&path).is_err());
        assert!(Calibration::load(&folder.path().join("absent")).is_err());
    }
}
