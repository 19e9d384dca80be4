//! Calibration inputs: what a projection really reads, so that the encoder spends its bits where inputs go.
//!
//! The error that matters is that of the output, `E‖(ΔW − ΔŴ)x‖² = ‖(ΔW − ΔŴ)·C^½‖²` with the second moment `C = E[x·xᵀ]`. The encoder
//! works in coordinates where C is the identity. Some rows never enter C, and only measure the result.

use std::collections::BTreeMap;
use std::path::Path;

use super::linalg::{Mat, add_product};
use super::room::{NARROW, ROOM, by_moment, by_rows, fitting};
use crate::adapters::encoded::Matrix;
use crate::error::{Error, Result, ensure};
use crate::safetensors_file::TensorFile;

/// The fewest rows. With fewer, a held-out quarter would say nothing.
pub(crate) const MIN_ROWS: usize = 8;

/// Bytes of f64 rows that are added to a second moment at once.
const PART: usize = 64 << 20;
/// The inputs for each row, at least, of rows that are few.
const FEW: usize = 6;

/// Inputs of the projections of a population, by module path. A projection without inputs is encoded as if there were no calibration, and
/// its certificate says so.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    inputs: BTreeMap<String, Inputs>,
    only_measures: bool,
}

/// Inputs of one projection: those that the encoding sees, and held-out rows that measure it.
#[derive(Clone, Debug)]
pub struct Inputs {
    design: Design,
    held_out: Matrix,
}

#[derive(Clone, Debug)]
enum Design {
    Rows(Matrix),
    Moment(SecondMoment),
}

/// The second moment of some inputs, `Σ x·xᵀ`, added up batch by batch. It is for inputs that are too many to keep.
#[derive(Clone, Debug)]
pub struct SecondMoment {
    sum: Mat,
    rows: u64,
}

impl SecondMoment {
    /// The second moment of no inputs yet, `d_in` wide.
    pub fn new(d_in: usize) -> Self {
        Self { sum: Mat::zeros(d_in, d_in), rows: 0 }
    }

    /// A second moment that was added up elsewhere: `sum [d_in, d_in]` over `rows` rows.
    ///
    /// # Errors
    /// A matrix that is not square or not symmetric, or values that are not finite.
    pub fn from_sum(sum: &Matrix<f64>, rows: u64) -> Result<Self> {
        let d = sum.rows;
        ensure(sum.cols == d && sum.data.len() == d * d, "second moment", "a square matrix", format_args!("[{d}, {}]", sum.cols))?;
        ensure(sum.data.iter().all(|value| value.is_finite()), "second moment", "finite values", "NaN or an infinity")?;
        let largest = (0..d).map(|i| sum.at(i, i).abs()).fold(0.0, f64::max);
        // Sums of f32 products differ by their order.
        let symmetric = (0..d).all(|i| (0..i).all(|j| (sum.at(i, j) - sum.at(j, i)).abs() <= 1e-3 * largest));
        ensure(symmetric, "second moment", "a symmetric matrix", "one that differs from its transpose")?;
        Ok(Self { sum: Mat::from_fn(d, d, |i, j| 0.5 * (sum.at(i, j) + sum.at(j, i))), rows })
    }

    /// Adds `rows [n, d_in]`.
    ///
    /// # Errors
    /// Rows of another width, or values that are not finite; the sum is then as it was.
    pub fn add(&mut self, rows: &Matrix) -> Result<()> {
        ensure(rows.cols == self.d_in(), "calibration inputs", format_args!("[rows, {}]", self.d_in()), format_args!("[{}, {}]", rows.rows, rows.cols))?;
        ensure(rows.data.iter().all(|value| value.is_finite()), "calibration inputs", "finite values", "NaN or an infinity")?;
        let part = (PART / size_of::<f64>() / rows.cols.max(1)).max(1) * rows.cols;
        for data in rows.data.chunks(part.max(1)) {
            let x = Mat::from_fn(data.len() / rows.cols, rows.cols, |i, j| data[i * rows.cols + j].into());
            add_product(&mut self.sum, x.transpose(), x.as_ref());
        }
        self.rows += rows.rows as u64;
        Ok(())
    }

    /// The width of the inputs.
    pub fn d_in(&self) -> usize {
        self.sum.nrows()
    }

    /// The number of inputs that were added.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// `Σ x·xᵀ`.
    pub(crate) fn into_sum(self) -> Mat {
        self.sum
    }
}

impl Inputs {
    /// Inputs from rows `[rows, d_in]`, of which the last quarter is held out.
    ///
    /// # Errors
    /// Fewer than 8 rows, or values that are not finite.
    pub fn from_rows(all: &Matrix) -> Result<Self> {
        ensure(
            all.rows >= MIN_ROWS && all.cols > 0,
            "calibration inputs",
            format_args!("at least {MIN_ROWS} rows"),
            format_args!("[{}, {}]", all.rows, all.cols),
        )?;
        let kept = all.rows - all.rows / 4;
        let (design, held_out) = all.data.split_at(kept * all.cols);
        let part = |data: &[f32]| Matrix { rows: data.len() / all.cols, cols: all.cols, data: data.to_vec() };
        Self::new(Design::Rows(part(design)), part(held_out))
    }

    /// Inputs from the second moment of those that the encoding is for, and rows `[rows, d_in]` that are not among them.
    ///
    /// # Errors
    /// A moment of fewer than 8 rows, no row held out, two widths, or values that are not finite.
    pub fn from_moment(moment: SecondMoment, held_out: Matrix) -> Result<Self> {
        ensure(moment.rows >= MIN_ROWS as u64, "calibration inputs", format_args!("a second moment of at least {MIN_ROWS} rows"), moment.rows)?;
        Self::new(Design::Moment(moment), held_out)
    }

    fn new(design: Design, held_out: Matrix) -> Result<Self> {
        let d_in = match &design {
            Design::Rows(rows) => rows.cols,
            Design::Moment(moment) => moment.d_in(),
        };
        let fits = held_out.rows > 0 && held_out.cols == d_in && d_in > 0;
        ensure(fits, "calibration inputs", format_args!("[at least 1, {d_in}] held out"), format_args!("[{}, {}]", held_out.rows, held_out.cols))?;
        let finite = |rows: &Matrix| rows.data.iter().all(|value| value.is_finite());
        let finite = finite(&held_out) && !matches!(&design, Design::Rows(rows) if !finite(rows));
        ensure(finite, "calibration inputs", "finite values", "NaN or an infinity")?;
        Ok(Self { design, held_out })
    }

    /// The width of the inputs.
    pub fn d_in(&self) -> usize {
        self.held_out.cols
    }

    /// The rows that only measure the encoding, `[rows, d_in]`.
    pub fn held_out(&self) -> &Matrix {
        &self.held_out
    }

    /// The rows that the encoding sees, and how many of them it is to take, where a second moment is better not formed: they are few for their
    /// width, or it would take more than [`ROOM`].
    pub(crate) fn few_rows(&self) -> Option<(&Matrix, usize)> {
        match &self.design {
            Design::Rows(rows) if rows.cols > NARROW && (rows.rows <= rows.cols / FEW || by_moment(rows.cols) > ROOM) => {
                Some((rows, fitting(rows.rows, rows.cols)))
            }
            _ => None,
        }
    }

    /// Bytes of the metric of these inputs, and of what measures an encoding.
    pub(crate) fn bytes(&self) -> u64 {
        let metric = self.few_rows().map_or_else(|| by_moment(self.d_in()), |(rows, count)| by_rows(count, rows.cols));
        metric.saturating_add(8 * self.held_out.data.len() as u64)
    }

    /// What the encoding sees, for the caller to work on.
    pub(crate) fn moment(&self) -> Result<SecondMoment> {
        room(self.d_in())?;
        match &self.design {
            Design::Moment(moment) => Ok(moment.clone()),
            Design::Rows(rows) => {
                let mut moment = SecondMoment::new(rows.cols);
                moment.add(rows)?;
                Ok(moment)
            }
        }
    }
}

/// Refuses a width for which there is no room before any work is done: a matrix of `[d_in, d_in]` in f64.
fn room(d_in: usize) -> Result<()> {
    let elements = d_in.saturating_mul(d_in);
    Vec::<f64>::new().try_reserve_exact(elements).map_err(|_| Error::OutOfMemory {
        requested: (elements as u64).saturating_mul(8),
        purpose: format!("calibrating a projection of {d_in} inputs; without its tensor in the calibration file it is encoded as if there were none"),
    })
}

fn named(name: &str) -> impl FnOnce(Error) -> Error {
    move |error| match error {
        Error::Invalid { subject, expected, found } => Error::Invalid { subject: format!("{subject} of {name}"), expected, found },
        other => other,
    }
}

impl Calibration {
    /// Reads a safetensors file whose tensors, `[rows, d_in]` in f16, bf16 or f32, are named by module path. The last
    /// quarter of the rows of each is held out from the encoding.
    ///
    /// # Errors
    /// A file that cannot be read, or a tensor of another shape or type, of fewer than 8 rows, or with NaN or infinities.
    pub fn load(path: &Path) -> Result<Self> {
        Self::from_rows(inputs_of(&TensorFile::open(path)?)?)
    }

    /// Reads inputs, as [`Self::load`] does, from a file that is already in memory. Errors name `path`.
    ///
    /// # Errors
    /// The errors of [`Self::load`].
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self> {
        Self::from_rows(inputs_of(&TensorFile::from_bytes(path, bytes.to_vec())?)?)
    }

    /// Reads two files as [`Self::load`] reads one. All rows of `design` are for the encoding, all of `held_out` for the measure.
    ///
    /// # Errors
    /// The errors of [`Self::load`]; a projection of one file that the other lacks, or with another width.
    pub fn load_pair(design: &Path, held_out: &Path) -> Result<Self> {
        let mut measured = inputs_of(&TensorFile::open(held_out)?)?;
        let mut inputs = BTreeMap::new();
        for (name, design) in inputs_of(&TensorFile::open(design)?)? {
            let Some(rows) = measured.remove(&name) else {
                return Err(Error::input_item(held_out, name, "a tensor of that name is in the calibration file: both files need it"));
            };
            let found = Inputs::new(Design::Rows(design), rows).map_err(named(&name))?;
            inputs.insert(name, found);
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
            let found = Inputs::from_rows(&all).map_err(named(&name))?;
            inputs.insert(name, found);
        }
        Ok(Self { inputs, only_measures: false })
    }

    /// Adds the inputs of one projection, in place of those that it had.
    pub fn insert(&mut self, path: impl Into<String>, inputs: Inputs) {
        self.inputs.insert(path.into(), inputs);
    }

    /// This calibration for measuring alone. Its inputs only measure what an encoding without them keeps.
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

    /// The inputs of one projection; `None` where it has none.
    ///
    /// # Errors
    /// Inputs of another width.
    pub(crate) fn of(&self, name: &str, d_in: usize) -> Result<Option<&Inputs>> {
        let Some(inputs) = self.inputs.get(name) else { return Ok(None) };
        ensure(inputs.d_in() == d_in, name, format_args!("calibration inputs [rows, {d_in}]"), format_args!("[rows, {}]", inputs.d_in()))?;
        Ok(Some(inputs))
    }

    /// Refuses inputs that belong to none of these projections: they are named otherwise, or another model's.
    pub(crate) fn check_names<'a>(&self, mut paths: impl Iterator<Item = &'a str> + Clone) -> Result<()> {
        let example = paths.clone().next().unwrap_or_default();
        let some = paths.any(|path| self.inputs.contains_key(path));
        let found = self.names().next().map_or_else(|| "none".into(), |name| format!("none of that sort; the first is {name:?}"));
        ensure(some, "calibration", format_args!("inputs named by the adapters' module paths, as {example:?}"), found)
    }
}

/// Every tensor of a file, `[rows, d_in]`.
fn inputs_of(file: &TensorFile) -> Result<BTreeMap<String, Matrix>> {
    let read = |name: String| {
        let (_, shape, values) = file.floats(&name)?;
        match *shape.as_slice() {
            [rows, cols] if rows >= MIN_ROWS => Ok((name, Matrix::new(rows, cols, values)?)),
            _ => Err(Error::input_item(file.path(), name, format!("expected [rows, d_in], at least {MIN_ROWS} rows, found {shape:?}"))),
        }
    };
    file.names().into_iter().map(read).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn rows(n: usize, d: usize) -> Matrix {
        Matrix::new(n, d, (0..n * d).map(|i| ((i * i % 101) as f32 * 0.61).sin() + 0.2).collect()).unwrap()
    }

    #[test]
    fn the_last_quarter_is_held_out() {
        let calibration = Calibration::from_rows([("q".to_string(), rows(40, 6))].into()).unwrap();
        let inputs = calibration.of("q", 6).unwrap().unwrap();
        // Nothing has room for 2^61 bytes.
        assert!(matches!(room(1 << 29), Err(Error::OutOfMemory { .. })));
        assert_eq!((inputs.moment().unwrap().rows(), inputs.held_out.rows), (30, 10));
        assert_eq!(inputs.held_out.data, rows(40, 6).data[180..]);
        assert!(calibration.of("q", 5).is_err() && calibration.of("k", 6).unwrap().is_none());
        assert!(calibration.check_names(["k", "q"].into_iter()).is_ok() && calibration.check_names(["k"].into_iter()).is_err());
        assert!(Calibration::from_rows([("q".to_string(), rows(7, 6))].into()).is_err());
    }

    #[test]
    fn a_second_moment_is_the_same_in_one_batch_in_many_and_given() {
        let all = rows(30, 4);
        let mut moments = [SecondMoment::new(4), SecondMoment::new(4)];
        moments[0].add(&all).unwrap();
        for part in all.data.chunks(5 * 4) {
            moments[1].add(&Matrix::new(5, 4, part.to_vec()).unwrap()).unwrap();
        }
        let exact = |i: usize, j: usize| (0..30).map(|k| f64::from(all.at(k, i)) * f64::from(all.at(k, j))).sum::<f64>();
        let sum = Matrix::new(4, 4, (0..16).map(|k| exact(k / 4, k % 4)).collect()).unwrap();
        for moment in [&moments[0], &moments[1], &SecondMoment::from_sum(&sum, 30).unwrap()] {
            assert_eq!((moment.rows(), moment.d_in()), (30, 4));
            assert!((0..16).all(|k| (moment.sum[(k / 4, k % 4)] - exact(k / 4, k % 4)).abs() < 1e-12));
        }
        assert!(moments[0].add(&rows(3, 5)).is_err() && moments[0].add(&Matrix::new(1, 4, vec![f32::NAN; 4]).unwrap()).is_err());
        assert_eq!(moments[0].rows(), 30);

        let skew = Matrix::new(2, 2, vec![1.0, 0.5, -0.5, 1.0]).unwrap();
        assert!(SecondMoment::from_sum(&skew, 9).is_err() && SecondMoment::from_sum(&Matrix { rows: 2, cols: 3, data: vec![0.0; 6] }, 9).is_err());
        assert!(Inputs::from_moment(moments[1].clone(), rows(3, 4)).is_ok());
        assert!(Inputs::from_moment(moments[1].clone(), rows(3, 5)).is_err() && Inputs::from_moment(SecondMoment::new(4), rows(3, 4)).is_err());
    }

    #[test]
    fn files_of_the_wrong_shape_or_value_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calibration.safetensors");
        let write = |shape: Vec<usize>, values: &[f32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, &bytes).unwrap();
            std::fs::write(&path, safetensors::serialize([("q", view)], None).unwrap()).unwrap();
        };
        write(vec![10, 3], &rows(10, 3).data);
        assert_eq!(Calibration::load(&path).unwrap().names().collect::<Vec<_>>(), ["q"]);
        let pair = Calibration::load_pair(&path, &path).unwrap();
        assert_eq!(pair.of("q", 3).unwrap().unwrap().held_out.rows, 10);
        write(vec![30], &rows(10, 3).data);
        assert!(Calibration::load(&path).is_err());
        write(vec![10, 1], &[f32::NAN; 10]);
        assert!(Calibration::load(&path).is_err());
        for bytes in [&b""[..], b"not a file of tensors"] {
            std::fs::write(&path, bytes).unwrap();
            assert!(Calibration::load(&path).unwrap_err().to_string().contains("safetensors file"));
        }
        assert!(Calibration::load(&folder.path().join("absent")).is_err());
    }
}
