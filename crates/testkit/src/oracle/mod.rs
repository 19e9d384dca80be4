//! What every operation computes, in float64: naive, readable, on host data, with no speed and no backend.
//!
//! Each definition is written once, over a [`Rounding`]. With [`Exact`] it is the reference. With [`Stepwise`] it is
//! the same computation done honestly in the operand's own precision, from which [`crate::tolerance`] takes how far
//! from the reference a right answer may lie.

mod activation;
pub mod attention;
pub mod checksum;
pub mod codebook_gemm;
pub mod fused_mlp;
pub mod grouped_linear;
pub mod layer;
pub mod linear;
mod low_rank;
pub mod pointwise;
pub mod prefix_attention;
pub mod sample;

pub use activation::activate;
pub use low_rank::LowRank;

use std::ops::Range;

use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::Op;

/// The places where a definition rounds.
pub trait Rounding: Copy + Send + Sync {
    /// A value after each step of arithmetic.
    fn step(self, value: f64) -> f64;
    /// A value that is stored, or handed to the next matrix product, in the operand's type.
    fn keep(self, value: f64) -> f64;
}

/// No rounding but float64's own.
#[derive(Clone, Copy, Debug)]
pub struct Exact;

/// Arithmetic in f32, values kept in the named type: what a plain program without fusion would do.
#[derive(Clone, Copy, Debug)]
pub struct Stepwise(pub DType);

impl Rounding for Exact {
    #[inline]
    fn step(self, value: f64) -> f64 {
        value
    }

    #[inline]
    fn keep(self, value: f64) -> f64 {
        value
    }
}

impl Rounding for Stepwise {
    #[inline]
    fn step(self, value: f64) -> f64 {
        f64::from(value as f32)
    }

    #[inline]
    fn keep(self, value: f64) -> f64 {
        // A device rounds the f32 it has, not the number that this one stands for.
        self.0.round(self.step(value))
    }
}

/// An operation that the oracle defines.
pub trait Define: Op {
    /// The operands on the host: numbers widened to float64, and checked index data.
    type Host: Clone + Send + Sync;

    /// The type of the operands.
    fn dtype(&self) -> DType;

    /// Computes every output of the operation.
    ///
    /// # Errors
    /// A descriptor that is not valid, or an operand whose size is not the descriptor's.
    fn evaluate<R: Rounding>(&self, host: &Self::Host, rounding: R) -> Result<Vec<Output>>;

    /// The operands with one of them put in the wrong order (transposed or reversed), by name. Their answers are what a
    /// tolerance has to refuse. Operands whose order cannot be changed (one element) are left out.
    fn disordered(&self, host: &Self::Host) -> Vec<(&'static str, Self::Host)>;
}

/// A tensor that an operation writes, as it lies in memory.
#[derive(Clone, Debug)]
pub struct Output {
    /// Name of the output, as in the operation's arguments.
    pub name: String,
    /// Element type of the output.
    pub dtype: DType,
    /// The type in which what it comes from was last rounded: its own, but for a logarithm of sums over rebuilt keys.
    pub rounded: DType,
    /// Values from the first element to the last; `None` has to be left as it was (a gap between rows, a row of a token
    /// without an adapter).
    pub elements: Vec<Option<f64>>,
    /// The least magnitude at which a tolerance takes its unit in the last place. Zero, but for a logarithm: an error of ε in its argument is an error
    /// of ε in it, however near to zero it lies; and for an average in f32, the greatest of what it is taken of: its weights are as exact as a device's
    /// exponential, which WGSL lets be off by 3 + 2·|x| units, however much of the values cancels.
    pub least: f64,
    /// How many sums in a row a tensor core may have cut off towards zero, where others round them. Zero, but for f32 of 16-bit operands: in what is
    /// rounded to 16 bits nobody sees it.
    pub cut: u64,
    /// Whether its elements are whole numbers of 32 bits with a sign, which are right or wrong. `dtype` is f32 then, whose size they have.
    pub integers: bool,
}

impl Output {
    /// Elements one after another, all of them written.
    fn packed(name: &str, dtype: DType, values: Vec<f64>) -> Self {
        Self { name: name.into(), dtype, rounded: dtype, elements: values.into_iter().map(Some).collect(), least: 0.0, cut: 0, integers: false }
    }
}

/// `Err` unless `values` are as many as the descriptor says.
fn expect_len(subject: &str, values: &[f64], expected: u64) -> Result<()> {
    if values.len() as u64 == expected {
        return Ok(());
    }
    Err(Error::invalid(subject, format!("{expected} elements"), values.len()))
}

/// Checks the length as [`expect_len`] does, of an operand that is there only where `wanted`.
fn expect_optional(subject: &str, values: Option<&[f64]>, wanted: bool, expected: u64) -> Result<()> {
    match (values, wanted) {
        (Some(values), true) => expect_len(subject, values, expected),
        (None, false) => Ok(()),
        (Some(_), false) => Err(Error::invalid(subject, "absent (the descriptor says so)", "present")),
        (None, true) => Err(Error::invalid(subject, "present (the descriptor says so)", "absent")),
    }
}

/// Elements from the first to the last of `rows` rows of `columns`, a row every `stride`.
fn pitched_len(rows: u64, columns: u64, stride: u64) -> u64 {
    if rows == 0 { 0 } else { (rows - 1) * stride + columns }
}

/// Σ a·b, in order, each step rounded.
fn dot<R: Rounding>(a: &[f64], b: &[f64], rounding: R) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| rounding.step(sum + a * b))
}

/// Four of [`dot`] at once, each in its own order: the additions of one wait for each other, those of four do not.
fn four_dots<R: Rounding>(a: &[f64], b: [&[f64]; 4], rounding: R) -> [f64; 4] {
    let [b0, b1, b2, b3] = b.map(|row| &row[..a.len()]);
    let mut sums = [0.0; 4];
    for (i, a) in a.iter().enumerate() {
        let [sum0, sum1, sum2, sum3] = sums;
        sums = [rounding.step(sum0 + a * b0[i]), rounding.step(sum1 + a * b1[i]), rounding.step(sum2 + a * b2[i]), rounding.step(sum3 + a * b3[i])];
    }
    sums
}

/// Σ a·b of `a` and each of `count` rows.
fn dots<'a, R: Rounding>(a: &[f64], row: impl Fn(usize) -> &'a [f64], count: usize, rounding: R) -> Vec<f64> {
    let mut sums = Vec::with_capacity(count);
    while sums.len() + 4 <= count {
        let first = sums.len();
        sums.extend(four_dots(a, [0, 1, 2, 3].map(|n| row(first + n)), rounding));
    }
    sums.extend((sums.len()..count).map(|n| dot(a, row(n), rounding)));
    sums
}

/// Steps of arithmetic from which on threads are worth their start.
const MANY: usize = 1 << 22;

/// What `of` gives for each range of numbers below `count`, one after another; a number takes `steps` steps. On every core where that is
/// much: every value is the same as on one.
fn spread<T: Send>(count: usize, steps: usize, of: impl Fn(Range<usize>) -> Vec<T> + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(16);
    if threads == 1 || count.saturating_mul(steps) < MANY {
        return of(0..count);
    }
    let share = count.div_ceil(threads);
    let mut parts = Vec::new();
    parts.resize_with(threads, Vec::new);
    std::thread::scope(|scope| {
        for (number, part) in parts.iter_mut().enumerate() {
            let of = &of;
            scope.spawn(move || *part = of((number * share).min(count)..((number + 1) * share).min(count)));
        }
    });
    parts.into_iter().flatten().collect()
}

/// Sums that go side by side in [`products`]: more than the steps of one that wait for each other.
const LANES: usize = 8;

/// The first [`LANES`] of `rows`, of `depth` elements each, element by element; zeros for those that there are not.
fn beside<'a>(rows: impl Iterator<Item = &'a [f64]>, depth: usize) -> Vec<[f64; LANES]> {
    let mut near = vec![[0.0; LANES]; depth];
    for (lane, row) in rows.take(LANES).enumerate() {
        near.iter_mut().zip(row).for_each(|(beside, value)| beside[lane] = *value);
    }
    near
}

/// [`LANES`] of [`dot`] at once, each in its own order: of `a` and of as many rows, which lie element by element.
fn dots_beside<R: Rounding>(a: &[f64], rows: &[[f64; LANES]], rounding: R) -> [f64; LANES] {
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(rows) {
        sums = std::array::from_fn(|lane| rounding.step(sums[lane] + a * b[lane]));
    }
    sums
}

/// x·wᵀ `[rows of x, rows of w]`: each the sum that [`dot`] gives for rows of `depth`, put through `finish` with its two rows' numbers.
fn products<R: Rounding>(x: &[f64], w: &[f64], depth: usize, rounding: R, finish: impl Fn(usize, usize, f64) -> f64 + Sync) -> Vec<f64> {
    let (rows, columns) = (x.len() / depth, w.len() / depth);
    // Some rows of w meet all of x, while they are in a cache.
    let strip = |first: usize| {
        let count = LANES.min(columns - first);
        let near = beside(w[first * depth..].chunks_exact(depth), depth);
        let mut values = Vec::with_capacity(rows * count);
        for (t, x) in x.chunks_exact(depth).enumerate() {
            let sums = dots_beside(x, &near, rounding);
            values.extend(sums[..count].iter().enumerate().map(|(lane, &sum)| finish(t, first + lane, sum)));
        }
        values
    };
    let strips = spread(columns.div_ceil(LANES), LANES * rows * depth, |range| range.map(|number| strip(number * LANES)).collect());
    let mut all = Vec::with_capacity(rows * columns);
    for t in 0..rows {
        for (number, strip) in strips.iter().enumerate() {
            let count = LANES.min(columns - number * LANES);
            all.extend_from_slice(&strip[t * count..][..count]);
        }
    }
    all
}

/// `matrix [rows, columns]` as if it had been stored column by column; where that changes nothing, from end to
/// start; `None` where that changes nothing either.
fn transposed(matrix: &[f64], rows: usize, columns: usize) -> Option<Vec<f64>> {
    let turned: Vec<f64> = (0..rows * columns).map(|i| matrix[i % rows * columns + i / rows]).collect();
    if turned != matrix { Some(turned) } else { reversed(matrix) }
}

/// `values` from end to start; `None` where that changes nothing. Gaps between rows, which hold NaN, stay gaps.
fn reversed(values: &[f64]) -> Option<Vec<f64>> {
    let mut backwards = values.iter().rev().filter(|value| !value.is_nan());
    let turned: Vec<f64> = values.iter().map(|value| if value.is_nan() { *value } else { backwards.next().copied().unwrap_or(*value) }).collect();
    turned.iter().zip(values).any(|(a, b)| !b.is_nan() && a != b).then_some(turned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_cores_give_what_one_does() {
        let of = |range: Range<usize>| range.map(|number| (number as f64).sqrt()).collect::<Vec<_>>();
        let one = of(0..1001);
        for count in [0, 1, 3, 1001] {
            assert_eq!(spread(count, 1, of), one[..count]);
            assert_eq!(spread(count, MANY, of), one[..count]);
        }
    }

    #[test]
    fn a_product_of_many_has_the_bits_of_its_sums() {
        let draw = |count: usize| (0..count).map(|i| (i as f64 * 0.7).sin()).collect::<Vec<_>>();
        let (depth, rounding) = (19, Stepwise(DType::F16));
        for (rows, columns) in [(1, 1), (3, 4), (5, 7), (700, 331)] {
            let (x, w) = (draw(rows * depth), draw(columns * depth));
            let found = products(&x, &w, depth, rounding, |t, n, sum| sum + (t * columns + n) as f64);
            let expected = (0..rows * columns).map(|i| dot(&x[i / columns * depth..][..depth], &w[i % columns * depth..][..depth], rounding) + i as f64);
            assert_eq!(found, expected.collect::<Vec<_>>());
        }
    }
}
