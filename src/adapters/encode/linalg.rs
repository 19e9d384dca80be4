//! The decompositions that the encoder needs, in float64. Each runs on one thread, so that a result does not depend on how many threads
//! there are. The work is spread over projections instead.

use faer::diag::Diag;
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::{cholesky_in_place, cholesky_in_place_scratch};
#[cfg(feature = "shrink")]
use faer::linalg::evd::{ComputeEigenvectors, self_adjoint_evd, self_adjoint_evd_scratch};
use faer::linalg::matmul::matmul;
use faer::linalg::svd::{ComputeSvdVectors, svd, svd_scratch};
use faer::linalg::triangular_solve::{solve_lower_triangular_in_place, solve_upper_triangular_in_place};
use faer::{Accum, MatRef, Par};

use crate::adapters::matrix::Matrix;
use crate::error::{Error, Result};

/// A float64 matrix, column-major.
pub(crate) type Mat = faer::Mat<f64>;

/// The product `left · right`.
pub(crate) fn mul(left: MatRef<'_, f64>, right: MatRef<'_, f64>) -> Mat {
    let mut out = Mat::zeros(left.nrows(), right.ncols());
    matmul(&mut out, Accum::Replace, left, right, 1.0, Par::Seq);
    out
}

/// Adds `left · right` to `sum`, with no matrix beside it.
pub(crate) fn add_product(sum: &mut Mat, left: MatRef<'_, f64>, right: MatRef<'_, f64>) {
    add_scaled_product(sum, left, right, 1.0);
}

/// Adds `scale · left · right` to `sum`.
pub(crate) fn add_scaled_product(sum: &mut Mat, left: MatRef<'_, f64>, right: MatRef<'_, f64>, scale: f64) {
    matmul(sum, Accum::Add, left, right, scale, Par::Seq);
}

/// `Σ left[i, j] · right[i, j]`.
pub(crate) fn dot(left: MatRef<'_, f64>, right: MatRef<'_, f64>) -> f64 {
    (0..left.ncols()).map(|j| (0..left.nrows()).map(|i| left[(i, j)] * right[(i, j)]).sum::<f64>()).sum()
}

/// The squared Frobenius norm.
pub(crate) fn energy(matrix: MatRef<'_, f64>) -> f64 {
    dot(matrix, matrix)
}

/// A row-major host matrix, widened.
pub(crate) fn widen<T: Copy + Into<f64>>(matrix: &Matrix<T>) -> Mat {
    Mat::from_fn(matrix.rows, matrix.cols, |i, j| matrix.data[i * matrix.cols + j].into())
}

/// A thin singular value decomposition `left · diag(values) · rightᵀ`, values falling.
pub(crate) struct Svd {
    /// The left singular vectors, `[rows, n]`, orthonormal columns.
    pub left: Mat,
    /// The singular values, `[n]`, where `n` is the smaller side.
    pub values: Vec<f64>,
    /// The right singular vectors, `[cols, n]`, orthonormal columns.
    pub right: Mat,
}

/// The thin singular value decomposition.
///
/// # Errors
/// Values that are not finite, for which the iteration does not settle.
pub(crate) fn thin_svd(matrix: MatRef<'_, f64>) -> Result<Svd> {
    let (rows, cols) = matrix.shape();
    let n = rows.min(cols);
    let (mut left, mut right, mut values) = (Mat::zeros(rows, n), Mat::zeros(cols, n), Diag::<f64>::zeros(n));
    let thin = ComputeSvdVectors::Thin;
    let mut memory = MemBuffer::new(svd_scratch::<f64>(rows, cols, thin, thin, Par::Seq, Default::default()));
    let stack = MemStack::new(&mut memory);
    svd(matrix, values.as_mut(), Some(left.as_mut()), Some(right.as_mut()), Par::Seq, stack, Default::default()).map_err(unsettled)?;
    let values = values.column_vector().iter().copied().collect();
    Ok(Svd { left, values, right })
}

/// The singular values alone, falling.
///
/// # Errors
/// The errors of [`thin_svd`].
pub(crate) fn singular_values(matrix: MatRef<'_, f64>) -> Result<Vec<f64>> {
    let (rows, cols) = matrix.shape();
    let mut values = Diag::<f64>::zeros(rows.min(cols));
    let none = ComputeSvdVectors::No;
    let mut memory = MemBuffer::new(svd_scratch::<f64>(rows, cols, none, none, Par::Seq, Default::default()));
    svd(matrix, values.as_mut(), None, None, Par::Seq, MemStack::new(&mut memory), Default::default()).map_err(unsettled)?;
    Ok(values.column_vector().iter().copied().collect())
}

/// The eigenvalues of a symmetric matrix, falling, and its eigenvectors as columns.
///
/// # Errors
/// Values that are not finite.
#[cfg(feature = "shrink")]
pub(crate) fn symmetric_eigen(matrix: MatRef<'_, f64>) -> Result<(Vec<f64>, Mat)> {
    let n = matrix.nrows();
    let (mut values, mut vectors) = (Diag::<f64>::zeros(n), Mat::zeros(n, n));
    let mut memory = MemBuffer::new(self_adjoint_evd_scratch::<f64>(n, ComputeEigenvectors::Yes, Par::Seq, Default::default()));
    let stack = MemStack::new(&mut memory);
    self_adjoint_evd(matrix, values.as_mut(), Some(vectors.as_mut()), Par::Seq, stack, Default::default())
        .map_err(|_| Error::invalid("second moment", "finite values of ordinary size", "a matrix whose eigenvalues do not settle"))?;
    // The library's rise.
    let mut values: Vec<f64> = values.column_vector().iter().copied().collect();
    values.reverse();
    let vectors = Mat::from_fn(n, n, |i, j| vectors[(i, n - 1 - j)]);
    Ok((values, vectors))
}

fn unsettled(_: faer::linalg::svd::SvdError) -> Error {
    Error::invalid("adapter weights", "finite values of ordinary size", "a matrix whose singular values do not settle")
}

/// The lower Cholesky factor `L` of a symmetric positive definite matrix, `L · Lᵀ`, in its place; `None` where it is not definite.
pub(crate) fn cholesky(mut factor: Mat) -> Option<Mat> {
    let n = factor.nrows();
    let mut memory = MemBuffer::new(cholesky_in_place_scratch::<f64>(n, Par::Seq, Default::default()));
    cholesky_in_place(factor.as_mut(), Default::default(), Par::Seq, MemStack::new(&mut memory), Default::default()).ok()?;
    for j in 1..n {
        for i in 0..j {
            factor[(i, j)] = 0.0;
        }
    }
    Some(factor)
}

/// The solution `L⁻¹ · right`, `L` lower triangular, in the place of `right`.
pub(crate) fn solve_lower(lower: &Mat, mut right: Mat) -> Mat {
    solve_lower_triangular_in_place(lower.as_ref(), right.as_mut(), Par::Seq);
    right
}

/// The solution `L⁻ᵀ · right`, `L` lower triangular.
pub(crate) fn solve_transposed(lower: &Mat, right: &Mat) -> Mat {
    let mut out = right.clone();
    solve_upper_triangular_in_place(lower.transpose(), out.as_mut(), Par::Seq);
    out
}

/// The solution `gram⁻¹ · right` for a symmetric positive matrix, in the least-squares sense where it is singular.
pub(crate) fn solve_gram(gram: &Mat, right: &Mat) -> Result<Mat> {
    let largest = (0..gram.nrows()).map(|i| gram[(i, i)]).fold(0.0, f64::max);
    if let Some(lower) = cholesky(gram.clone()) {
        // A pivot that small is rounding, not a direction.
        if (0..gram.nrows()).all(|i| lower[(i, i)].powi(2) > 1e-11 * largest) {
            return Ok(solve_transposed(&lower, &solve_lower(&lower, right.clone())));
        }
    }
    let Svd { left, values, right: vectors } = thin_svd(gram.as_ref())?;
    let mut projected = mul(left.transpose(), right.as_ref());
    for i in 0..projected.nrows() {
        let inverse = if values[i] > 1e-11 * largest { 1.0 / values[i] } else { 0.0 };
        for j in 0..projected.ncols() {
            projected[(i, j)] *= inverse;
        }
    }
    Ok(mul(vectors.as_ref(), projected.as_ref()))
}

/// The matrix with each column multiplied by its factor.
pub(crate) fn scale_columns(matrix: &Mat, factors: &[f64]) -> Mat {
    Mat::from_fn(matrix.nrows(), matrix.ncols(), |i, j| matrix[(i, j)] * factors[j])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn sample(rows: usize, cols: usize) -> Mat {
        Mat::from_fn(rows, cols, |i, j| ((i * 7 + j * 13 + i * j) as f64 * 0.37).sin())
    }

    #[test]
    fn the_decomposition_gives_the_matrix_back() {
        for (rows, cols) in [(40, 6), (6, 40), (9, 9)] {
            let matrix = sample(rows, cols);
            let Svd { left, values, right } = thin_svd(matrix.as_ref()).unwrap();
            let again = mul(scale_columns(&left, &values).as_ref(), right.transpose());
            assert!(energy((&again - &matrix).as_ref()) < 1e-20);
            assert!(values.windows(2).all(|pair| pair[0] >= pair[1]));
            let alone = singular_values(matrix.as_ref()).unwrap();
            assert!(values.iter().zip(&alone).all(|(one, other)| (one - other).abs() < 1e-10));
        }
    }

    #[test]
    #[cfg(feature = "shrink")]
    fn eigenvectors_give_a_symmetric_matrix_back() {
        let tall = sample(30, 7);
        let gram = mul(tall.transpose(), tall.as_ref());
        let (values, vectors) = symmetric_eigen(gram.as_ref()).unwrap();
        assert!(values.windows(2).all(|pair| pair[0] >= pair[1]) && values[6] > -1e-9);
        let again = mul(scale_columns(&vectors, &values).as_ref(), vectors.transpose());
        assert!(energy((&again - &gram).as_ref()) < 1e-18 * energy(gram.as_ref()).max(1.0));
        assert!(energy((&mul(vectors.transpose(), vectors.as_ref()) - &Mat::identity(7, 7)).as_ref()) < 1e-20);
    }

    #[test]
    fn gram_systems_are_solved_even_when_singular() {
        let tall = sample(30, 5);
        let gram = mul(tall.transpose(), tall.as_ref());
        let truth = sample(5, 3);
        let found = solve_gram(&gram, &mul(gram.as_ref(), truth.as_ref())).unwrap();
        assert!(energy((&found - &truth).as_ref()) < 1e-16);

        let twice = Mat::from_fn(30, 6, |i, j| tall[(i, j % 3)]);
        let gram = mul(twice.transpose(), twice.as_ref());
        let right = mul(gram.as_ref(), sample(6, 2).as_ref());
        let found = solve_gram(&gram, &right).unwrap();
        assert!(energy((&mul(gram.as_ref(), found.as_ref()) - &right).as_ref()) < 1e-14);
    }

    #[test]
    fn cholesky_is_the_lower_factor_and_refuses_an_indefinite_matrix() {
        let tall = sample(30, 5);
        let gram = mul(tall.transpose(), tall.as_ref());
        let lower = cholesky(gram.clone()).unwrap();
        assert!(energy((&mul(lower.as_ref(), lower.transpose()) - &gram).as_ref()) < 1e-20);
        assert!(cholesky(Mat::from_fn(2, 2, |i, j| if i == j { -1.0 } else { 0.0 })).is_none());
    }
}
