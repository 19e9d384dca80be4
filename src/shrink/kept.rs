//! Factors that are made once, for every rank and budget that is asked for afterwards.
//!
//! A decomposition is what shrinking takes longest for. Curves need one of each projection, and so do the factors at the ranks that were chosen: what the
//! curves were made of is kept, in the type that it is written in and up to the rank at which factors save nothing any more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::factor::Factors;
use crate::adapters::encode::linalg::{mul, widen};
use crate::adapters::encoded::Matrix;

/// The bytes that are kept unless another number is asked for.
const BYTES: u64 = 4 << 30;

/// The factors of a projection up to a rank, and what every rank loses.
#[derive(Debug)]
pub(crate) struct Made {
    /// `[d_out, rank]`.
    left: Matrix,
    /// `[rank, d_in]`.
    right: Matrix,
    /// What each rank from 0 to the smaller side loses.
    pub loss: Vec<f64>,
}

impl Made {
    /// The factors of a matrix `[d_out, d_in]` up to the rank at which they have as many parameters, or up to `rank` where that is more.
    pub fn new(factors: &Factors, [d_out, d_in]: [usize; 2], rank: usize) -> Self {
        let (left, right) = factors.truncated(rank_of([d_out, d_in], 1.0).max(rank));
        Self { left, right, loss: factors.loss().to_vec() }
    }

    /// Whether rank `rank` can be had, or is more than the matrix has.
    fn has(&self, rank: usize) -> bool {
        rank.min(self.loss.len().saturating_sub(1)) <= self.left.cols
    }

    /// The factors of rank `rank`: `[d_out, rank]` and `[rank, d_in]`.
    pub fn truncated(&self, rank: usize) -> (Matrix, Matrix) {
        let rank = rank.min(self.left.cols);
        let left = self.left.data.chunks_exact(self.left.cols.max(1)).flat_map(|row| &row[..rank]).copied().collect();
        let right = self.right.data[..rank * self.right.cols].to_vec();
        (Matrix { rows: self.left.rows, cols: rank, data: left }, Matrix { rows: rank, cols: self.right.cols, data: right })
    }

    /// The matrix of rank `rank`, row by row.
    pub fn product(&self, rank: usize) -> Vec<f32> {
        let (left, right) = self.truncated(rank);
        // The transpose's columns are the rows.
        let product = mul(widen(&right).transpose(), widen(&left).transpose());
        (0..product.ncols()).flat_map(|row| product.col(row).iter().map(|&value| value as f32)).collect()
    }

    fn bytes(&self) -> u64 {
        4 * (self.left.data.len() + self.right.data.len()) as u64 + 8 * self.loss.len() as u64
    }
}

/// The rank at which two factors have the share `keep` of a matrix's parameters.
pub(crate) fn rank_of([d_out, d_in]: [usize; 2], keep: f64) -> usize {
    let [rows, columns] = [d_out, d_in].map(|size| size as f64);
    ((keep * rows * columns / (rows + columns)) as usize).max(1)
}

/// Factors of the projections of a model, by path. What there is no room for is made again.
#[derive(Debug)]
pub struct Kept {
    most: u64,
    made: Mutex<(BTreeMap<String, Arc<Made>>, u64)>,
}

impl Default for Kept {
    fn default() -> Self {
        Self::new(BYTES)
    }
}

impl Kept {
    /// Room for `most` bytes.
    pub fn new(most: u64) -> Self {
        Self { most, made: Mutex::default() }
    }

    /// What was kept of a projection, if rank `rank` is in it.
    pub(crate) fn get(&self, path: &str, rank: usize) -> Option<Arc<Made>> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.0.get(path).filter(|made| made.has(rank)).cloned()
    }

    /// Keeps factors where there is room.
    pub(crate) fn put(&self, path: &str, made: &Arc<Made>) {
        let mut guard = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, bytes) = &mut *guard;
        if let Some(before) = all.remove(path) {
            *bytes -= before.bytes();
        }
        if *bytes + made.bytes() <= self.most {
            *bytes += made.bytes();
            all.insert(path.to_owned(), made.clone());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::factor::{Method, Statistics};
    use super::*;
    use crate::adapters::encode::linalg::Mat;

    fn factors(rows: usize, cols: usize) -> Factors {
        let weight = Mat::from_fn(rows, cols, |i, j| ((i * 131 + j * 17 + i * j) as f64 * 0.61).sin());
        Factors::new(&weight, &Statistics::default(), Method::Svd).unwrap()
    }

    #[test]
    fn what_is_kept_is_what_was_made() {
        for (rows, cols) in [(9, 14), (14, 9), (8, 8)] {
            let factors = factors(rows, cols);
            let made = Made::new(&factors, [rows, cols], 0);
            let most = rows * cols / (rows + cols);
            assert!(made.has(most) && !made.has(most + 1) && made.loss == factors.loss());
            assert!(Made::new(&factors, [rows, cols], 99).has(99), "more than there are is all");
            for rank in 1..=most {
                let ((left, right), (one, other)) = (factors.truncated(rank), made.truncated(rank));
                assert!((&left.data, &right.data) == (&one.data, &other.data), "{rows}x{cols} rank {rank}");
                assert_eq!([one.rows, one.cols, other.rows, other.cols], [rows, rank, rank, cols]);
                let product = factors.product(rank);
                assert_eq!(product.data.len(), rows * cols);
                assert!(product.data.iter().zip(made.product(rank)).all(|(a, b)| (a - b).abs() < 1e-5), "{rows}x{cols} rank {rank}");
            }
        }
    }

    #[test]
    fn what_there_is_no_room_for_is_not_kept() {
        let made = Arc::new(Made::new(&factors(8, 8), [8, 8], 0));
        let kept = Kept::new(2 * made.bytes());
        for path in ["a", "b", "b", "c"] {
            kept.put(path, &made);
        }
        assert_eq!(["a", "b", "c"].map(|path| kept.get(path, 4).is_some()), [true, true, false]);
        assert!(kept.get("a", 5).is_none(), "a rank that was cut off");
        let more = Arc::new(Made::new(&factors(8, 8), [8, 8], 8));
        kept.put("a", &more);
        assert!(kept.get("a", 5).is_none() && kept.get("b", 4).is_some(), "too large for what was left");
    }
}
