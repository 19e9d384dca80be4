//! The online softmax (M. Milakov and N. Gimelshein, arXiv:1805.02867): a running maximum and sum for each row. When the maximum rises,
//! earlier sums are rescaled.

use std::ops::Range;

use crate::backends::cpu::math::{exp, sum, vectorised};

/// The running state of some rows.
pub struct State<'a> {
    /// The largest score so far; −∞ before the first.
    pub max: &'a mut [f32],
    /// Σ exp(score − max).
    pub sum: &'a mut [f32],
    /// `[rows, d]`: Σ exp(score − max) · v.
    pub values: &'a mut [f32],
}

impl State<'_> {
    pub fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.values.fill(0.0);
    }

    /// Adds a tile of scores, `[rows, n]`, to the state, and leaves exp(score − max) in the tile. Row `i` sees the scores in `seen(i)`.
    pub fn take(&mut self, scores: &mut [f32], n: usize, d: usize, seen: impl Fn(usize) -> Range<usize>) {
        for (i, row) in scores.chunks_exact_mut(n).enumerate() {
            let seen = seen(i);
            row[..seen.start].fill(f32::NEG_INFINITY);
            row[seen.end..].fill(f32::NEG_INFINITY);
            let (max, sum) = (&mut self.max[i], &mut self.sum[i]);
            let values = &mut self.values[i * d..][..d];
            vectorised(
                #[inline(always)]
                || take_row(row, max, sum, values),
            );
        }
    }
}

#[inline(always)]
fn take_row(row: &mut [f32], max: &mut f32, total: &mut f32, values: &mut [f32]) {
    let new = larger(*max, largest(row));
    // Everything is masked, now and before. There is nothing to subtract, and −∞ − −∞ would be NaN.
    if new == f32::NEG_INFINITY {
        row.fill(0.0);
        return;
    }
    for score in row.iter_mut() {
        *score = exp(*score - new);
    }
    let kept = exp(*max - new);
    *total = *total * kept + sum(row, |x| x);
    if kept != 1.0 {
        for value in values {
            *value *= kept;
        }
    }
    *max = new;
}

/// The larger of two numbers. NaN if either is, so that a NaN among the operands shows in the result.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "a zip is a call where the library's iterators are not inlined")]
fn largest(values: &[f32]) -> f32 {
    let mut partial = [f32::NEG_INFINITY; 8];
    let (chunks, rest) = values.as_chunks::<8>();
    let mut all = rest.iter().fold(f32::NEG_INFINITY, |a, &b| larger(a, b));
    for chunk in chunks {
        for i in 0..8 {
            partial[i] = larger(partial[i], chunk[i]);
        }
    }
    for value in partial {
        all = larger(all, value);
    }
    all
}

/// The factor that turns a row's values into its output, and the row's LSE. They are 0 and −∞ for a row that saw nothing.
pub fn finish(max: f32, sum: f32) -> (f32, f32) {
    if max == f32::NEG_INFINITY { (0.0, f32::NEG_INFINITY) } else { (1.0 / sum, max + sum.ln()) }
}
