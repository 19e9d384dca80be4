//! A matrix in host memory.

use half::f16;

use crate::error::{Result, ensure};

/// A host matrix, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix<T = f32> {
    /// The number of rows.
    pub rows: usize,
    /// The number of columns.
    pub cols: usize,
    /// The `rows · cols` elements.
    pub data: Vec<T>,
}

impl<T: Copy> Matrix<T> {
    /// A matrix with the elements `data`.
    ///
    /// # Errors
    /// A length that is not `rows · cols`.
    pub fn new(rows: usize, cols: usize, data: Vec<T>) -> Result<Self> {
        let matrix = Self { rows, cols, data };
        ensure(matrix.is_whole(), "matrix", format_args!("{rows} × {cols} elements"), matrix.data.len())?;
        Ok(matrix)
    }

    /// Whether the matrix has as many elements as its sizes say.
    pub(super) fn is_whole(&self) -> bool {
        self.rows.checked_mul(self.cols) == Some(self.data.len())
    }

    /// The element in a row and a column.
    ///
    /// # Panics
    /// The element does not exist.
    pub fn at(&self, row: usize, col: usize) -> T {
        self.data[row * self.cols + col]
    }

    /// The transposed matrix.
    pub fn transposed(&self) -> Self {
        let mut data = Vec::with_capacity(self.data.len());
        for col in 0..self.cols {
            data.extend(self.data.iter().skip(col).step_by(self.cols).copied());
        }
        Self { rows: self.cols, cols: self.rows, data }
    }

    /// The matrix of every element's image under `f`.
    pub fn map<U>(&self, f: impl FnMut(T) -> U) -> Matrix<U> {
        Matrix { rows: self.rows, cols: self.cols, data: self.data.iter().copied().map(f).collect() }
    }
}

impl Matrix<f16> {
    /// The elements as multiples of 1/128 below 1, where all of them are. A byte holds each exactly.
    pub fn as_steps(&self) -> Option<Vec<i8>> {
        let step = |value: &f16| {
            let steps = value.to_f32() * 128.0;
            (steps.fract() == 0.0 && steps.abs() <= 127.0).then_some(steps as i8)
        };
        self.data.iter().map(step).collect()
    }
}

impl Matrix<f64> {
    /// The product with `right`. The caller makes sure that the inner sizes match. Some rows of `right` at a time stay in a processor's cache
    /// while all of this matrix goes by; each sum is in the order of those rows all the same. Rows of zeros, which a file holds in no bytes,
    /// take no time.
    pub(super) fn times(&self, right: &Self) -> Self {
        const CACHED: usize = 1 << 15;
        let mut data = vec![0.0; self.rows * right.cols];
        let rows = (CACHED / right.cols.max(1)).max(1);
        for (block, lines) in right.data.chunks(rows * right.cols).enumerate() {
            let lines: Vec<(usize, &[f64])> = lines.chunks_exact(right.cols).enumerate().filter(|(_, line)| line.iter().any(|&value| value != 0.0)).collect();
            for (row, out) in data.chunks_exact_mut(right.cols).enumerate() {
                for &(k, line) in &lines {
                    let factor = self.at(row, block * rows + k);
                    for (sum, value) in out.iter_mut().zip(line) {
                        *sum += factor * value;
                    }
                }
            }
        }
        Self { rows: self.rows, cols: right.cols, data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_in_blocks_is_the_plain_one() {
        let matrix = |rows: usize, cols: usize| Matrix { rows, cols, data: (0..rows * cols).map(|i| ((i * i % 1013) as f64 * 0.37).sin()).collect() };
        for (rows, inner, cols) in [(3, 5, 2), (2, 3, 1 << 15), (4, 100, 700)] {
            let (left, mut right) = (matrix(rows, inner), matrix(inner, cols));
            right.data[cols..2 * cols].fill(0.0);
            let plain = |i: usize| (0..inner).fold(0.0, |sum, k| sum + left.at(i / cols, k) * right.at(k, i % cols));
            assert_eq!(left.times(&right).data, (0..rows * cols).map(plain).collect::<Vec<f64>>());
        }
    }
}
