//! The factors of a projection at every rank, and what each rank loses.
//!
//! Nothing wider than the narrow side of the matrix is decomposed. Where it is the outputs' (`m ≤ n`), the directions are eigenvectors of the second
//! moment of outputs `W·C·Wᵀ`, and `V = Uᵀ·W` needs no inverse. Where it is the inputs', they are eigenvectors of `C^½·WᵀW·C^½`.

use crate::adapters::encode::linalg::{Mat, mul, scale_columns, symmetric_eigen};
use crate::adapters::encoded::Matrix;
use crate::error::{Result, ensure};

/// Eigenvalues below this share of the largest are raised to it: few tokens know nothing of those directions.
const FLOOR: f64 = 1e-7;
/// The share of a mean gradient that every direction is given, so that none is free.
const RIDGE: f64 = 1e-3;

/// How the directions of a projection are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By the weights alone.
    Svd,
    /// By the weights, each column scaled by the root of its inputs' mean size (ASVD, arXiv:2312.05821).
    Asvd,
    /// By the outputs that inputs make (SVD-LLM, arXiv:2403.07378).
    Whiten,
    /// By outputs, each weighed by its gradient.
    TwoSided,
}

impl Method {
    /// Every method.
    pub const ALL: [Self; 4] = [Self::Svd, Self::Asvd, Self::Whiten, Self::TwoSided];

    /// The method's name on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Svd => "svd",
            Self::Asvd => "asvd",
            Self::Whiten => "whiten",
            Self::TwoSided => "two-sided",
        }
    }
}

/// What is known of a projection's inputs, outputs and gradients: means over tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Statistics<'a> {
    /// `E[xxᵀ]`, `[d_in, d_in]`.
    pub inputs: Option<&'a Mat>,
    /// `E[yyᵀ]`, `[d_out, d_out]`. One of both is enough where `d_out ≤ d_in`.
    pub outputs: Option<&'a Mat>,
    /// `E|x|` of each input.
    pub sizes: Option<&'a [f64]>,
    /// `E[ggᵀ]` of the gradients at the outputs, `[d_out, d_out]`; where `d_out > d_in` of `Wᵀg`, `[d_in, d_in]`.
    pub gradients: Option<&'a Mat>,
}

/// The factors of a projection.
#[derive(Clone, Debug)]
pub struct Factors {
    /// `[d_out, k]`, where `k` is the smaller side of the matrix: the first `r` columns are the factor of rank `r`.
    left: Mat,
    /// `[k, d_in]`.
    right: Mat,
    /// What each rank from 0 to `k` loses.
    loss: Vec<f64>,
    /// The largest eigenvalue of the second moment over the smallest.
    condition: f64,
}

impl Factors {
    /// Factors a projection.
    ///
    /// # Errors
    /// Statistics of other sizes; a method whose statistics are not there; values that are not finite.
    pub(crate) fn new(weight: &Mat, of: &Statistics<'_>, method: Method) -> Result<Self> {
        let (m, n) = weight.shape();
        let narrow = m.min(n);
        for (name, found, size) in [("inputs", of.inputs, n), ("outputs", of.outputs, m), ("gradients", of.gradients, narrow)] {
            let found = found.map_or(size, |found| found.nrows());
            ensure(found == size, format_args!("second moment of {name}"), format_args!("[{size}, {size}]"), format_args!("[{found}, {found}]"))?;
        }
        let there = match method {
            Method::Svd => true,
            Method::Asvd => of.sizes.is_some(),
            Method::Whiten => of.inputs.is_some() || (m <= n && of.outputs.is_some()),
            Method::TwoSided => of.gradients.is_some() && (of.inputs.is_some() || (m <= n && of.outputs.is_some())),
        };
        ensure(there, method.name(), "moments of the projection, by calibration or from a file", "none")?;
        let Sides { left, right, loss, condition } = if m <= n { wide(weight, of, method)? } else { tall(weight, of, method)? };
        let (left, right) = balanced(left, right);
        Ok(Self { left, right, loss, condition })
    }

    /// What rank `r` loses for every `r` from 0 to the smaller side: `½ tr(G·ΔW·C·ΔWᵀ)`. It is in nats a token where the gradients are known; else `G`
    /// is the identity, and it is half the mean square of the error at the outputs.
    pub fn loss(&self) -> &[f64] {
        &self.loss
    }

    /// The largest eigenvalue of the second moment over the smallest: from 1e7 on, directions are guessed.
    pub fn condition(&self) -> f64 {
        self.condition
    }

    /// The factors of rank `rank`: `[d_out, rank]` and `[rank, d_in]`.
    pub fn truncated(&self, rank: usize) -> (Matrix, Matrix) {
        let rank = rank.min(self.right.nrows());
        (narrowed(&self.left, self.left.nrows(), rank), narrowed(&self.right, rank, self.right.ncols()))
    }

    /// The matrix of rank `rank`.
    pub fn product(&self, rank: usize) -> Matrix {
        let rank = rank.min(self.right.nrows());
        let whole = mul(self.left.subcols(0, rank), self.right.subrows(0, rank));
        narrowed(&whole, whole.nrows(), whole.ncols())
    }
}

/// Both factors, and what the second moments along their directions, `V·C·Vᵀ` and `Uᵀ·G·U`, say of each rank.
struct Sides {
    left: Mat,
    right: Mat,
    /// What each rank loses.
    loss: Vec<f64>,
    condition: f64,
}

/// The upper left part of a matrix, rounded to f32.
fn narrowed(matrix: &Mat, rows: usize, cols: usize) -> Matrix {
    Matrix { rows, cols, data: (0..rows).flat_map(|i| (0..cols).map(move |j| matrix[(i, j)] as f32)).collect() }
}

fn between(left: &Mat, middle: &Mat) -> Mat {
    mul(mul(left.transpose(), middle.as_ref()).as_ref(), left.as_ref())
}

/// A second moment with its least eigenvalues raised: its root, the root's inverse, and the condition before.
fn roots(moment: &Mat) -> Result<(Mat, Mat, f64)> {
    let (values, vectors) = symmetric_eigen(moment.as_ref())?;
    let most = values.first().copied().unwrap_or(0.0).max(f64::MIN_POSITIVE);
    let condition = most / values.last().copied().unwrap_or(0.0).max(most * 1e-300);
    let raised: Vec<f64> = values.iter().map(|value| value.max(FLOOR * most)).collect();
    let of = |power: f64| {
        let scaled: Vec<f64> = raised.iter().map(|value| value.powf(power)).collect();
        mul(scale_columns(&vectors, &scaled).as_ref(), vectors.transpose())
    };
    Ok((of(0.5), of(-0.5), condition))
}

fn trace(matrix: &Mat) -> f64 {
    (0..matrix.nrows()).map(|i| matrix[(i, i)]).sum()
}

/// Square matrices and their weighted sum.
fn plus(one: &Mat, factor: f64, other: &Mat) -> Mat {
    Mat::from_fn(one.nrows(), one.ncols(), |i, j| one[(i, j)] + factor * other[(i, j)])
}

/// The sizes of inputs, by which ASVD scales columns.
fn scales(sizes: &[f64]) -> Vec<f64> {
    sizes.iter().map(|size| size.max(0.0).sqrt() + 1e-6).collect()
}

/// A projection with no more outputs than inputs.
fn wide(weight: &Mat, of: &Statistics<'_>, method: Method) -> Result<Sides> {
    let m = weight.nrows();
    let outputs = match (of.outputs, of.inputs) {
        (Some(outputs), _) => outputs.clone(),
        (None, Some(inputs)) => mul(mul(weight.as_ref(), inputs.as_ref()).as_ref(), weight.transpose()),
        (None, None) => mul(weight.as_ref(), weight.transpose()),
    };
    let identity = Mat::identity(m, m);
    let gradients = of.gradients.map_or_else(|| identity.clone(), |found| plus(found, RIDGE * trace(found) / m as f64, &identity));
    let ordered = match (method, of.sizes) {
        (Method::Svd, _) => mul(weight.as_ref(), weight.transpose()),
        (Method::Asvd, Some(sizes)) => {
            let scaled = scale_columns(weight, &scales(sizes));
            mul(scaled.as_ref(), scaled.transpose())
        }
        _ => outputs.clone(),
    };
    if method == Method::TwoSided {
        let (root, inverse, condition) = roots(&gradients)?;
        let weighed = between(&root, &outputs);
        let (values, vectors) = symmetric_eigen(weighed.as_ref())?;
        let left = mul(inverse.as_ref(), vectors.as_ref());
        let right = mul(mul(vectors.transpose(), root.as_ref()).as_ref(), weight.as_ref());
        // `V·C·Vᵀ` has the eigenvalues and zeros beside them; the gradients along the directions are 1, but for those that were raised.
        let gradients = if condition * FLOOR < 1.0 { vec![1.0; m] } else { along(&left, &gradients) };
        return Ok(Sides { loss: sums(&values, &gradients), left, right, condition });
    }
    let (values, vectors) = symmetric_eigen(ordered.as_ref())?;
    let most = values.first().copied().unwrap_or(0.0);
    let condition = most / values.last().copied().unwrap_or(0.0).max(most * 1e-300).max(f64::MIN_POSITIVE);
    let right = mul(vectors.transpose(), weight.as_ref());
    let loss = match (method, of.gradients) {
        // The outputs along their own eigenvectors are the eigenvalues, and the identity stays the identity.
        (Method::Whiten, None) => sums(&values, &vec![1.0; m]),
        (_, None) => sums(&along(&vectors, &outputs), &vec![1.0; m]),
        (_, Some(_)) => tails(&between(&vectors, &outputs), &between(&vectors, &gradients)),
    };
    Ok(Sides { left: vectors, right, loss, condition })
}

/// A projection with more outputs than inputs.
fn tall(weight: &Mat, of: &Statistics<'_>, method: Method) -> Result<Sides> {
    let n = weight.ncols();
    let inputs = of.inputs.cloned().unwrap_or_else(|| Mat::identity(n, n));
    let square = mul(weight.transpose(), weight.as_ref());
    let gradients = match of.gradients {
        Some(found) => plus(found, RIDGE * trace(found) / trace(&square).max(f64::MIN_POSITIVE), &square),
        None => square.clone(),
    };
    let diagonal = |values: &[f64], power: f64| Mat::from_fn(n, n, |i, j| if i == j { values[i].powf(power) } else { 0.0 });
    let (root, inverse, condition) = match (method, of.sizes) {
        (Method::Svd, _) => (Mat::identity(n, n), Mat::identity(n, n), 1.0),
        (Method::Asvd, Some(sizes)) => {
            let scales = scales(sizes);
            (diagonal(&scales, 1.0), diagonal(&scales, -1.0), 1.0)
        }
        _ => roots(&inputs)?,
    };
    let ordered = between(&root, if method == Method::TwoSided { &gradients } else { &square });
    let (values, vectors) = symmetric_eigen(ordered.as_ref())?;
    let turned = mul(root.as_ref(), vectors.as_ref());
    let right = mul(vectors.transpose(), inverse.as_ref());
    let loss = if method == Method::TwoSided || of.gradients.is_none() {
        // The gradients were ordered by: along the directions they are the eigenvalues, with zeros beside them. Inputs are 1 where they were whitened, but for
        // those that were raised.
        let whitened = matches!(method, Method::Whiten | Method::TwoSided) && condition * FLOOR < 1.0;
        let outputs = if whitened { vec![1.0; n] } else { along(&right.transpose().to_owned(), &inputs) };
        sums(&outputs, &values)
    } else {
        tails(&mul(mul(right.as_ref(), inputs.as_ref()).as_ref(), right.transpose()), &between(&turned, &gradients))
    };
    Ok(Sides { left: mul(weight.as_ref(), turned.as_ref()), right, loss, condition })
}

/// The diagonal of `leftᵀ · middle · left`.
fn along(left: &Mat, middle: &Mat) -> Vec<f64> {
    let half = mul(middle.as_ref(), left.as_ref());
    (0..left.ncols()).map(|k| left.col(k).iter().zip(half.col(k).iter()).map(|(a, b)| a * b).sum()).collect()
}

/// [`tails`] of matrices of which one is diagonal, by the diagonals of both.
fn sums(outputs: &[f64], gradients: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; outputs.len() + 1];
    for r in (0..outputs.len()).rev() {
        sums[r] = sums[r + 1] + 0.5 * outputs[r] * gradients[r];
    }
    sums.into_iter().map(|sum| sum.max(0.0)).collect()
}

/// `½ Σ_{i,j ≥ r} outputs[i, j] · gradients[i, j]` for every `r` from 0 to the number of directions.
fn tails(outputs: &Mat, gradients: &Mat) -> Vec<f64> {
    let k = outputs.nrows();
    let term = |i: usize, j: usize| outputs[(i, j)] * gradients[(i, j)];
    let mut tails = vec![0.0; k + 1];
    for r in (0..k).rev() {
        let cross: f64 = (r + 1..k).map(|j| term(r, j) + term(j, r)).sum();
        tails[r] = tails[r + 1] + 0.5 * (term(r, r) + cross);
    }
    tails.into_iter().map(|tail| tail.max(0.0)).collect()
}

/// Factors with an equal product, and as much of each direction's size in either: types with few bits lose least so.
fn balanced(mut left: Mat, mut right: Mat) -> (Mat, Mat) {
    for k in 0..right.nrows() {
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let a = norm(&mut (0..left.nrows()).map(|i| left[(i, k)]));
        let b = norm(&mut (0..right.ncols()).map(|j| right[(k, j)]));
        if a > 0.0 && b > 0.0 {
            let scale = (b / a).sqrt();
            (0..left.nrows()).for_each(|i| left[(i, k)] *= scale);
            (0..right.ncols()).for_each(|j| right[(k, j)] /= scale);
        }
    }
    (left, right)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
