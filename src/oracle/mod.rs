//! What every operation computes, in float64: naive, readable, on host data, with no speed and no backend.
//!
//! Each definition is written once, over a [`Rounding`]. With [`Exact`] it is the reference. With [`Stepwise`] it is
//! the same computation done honestly in the operand's own precision, from which [`crate::tolerance`] takes how far
//! from the reference a right answer may lie.

mod activation;
pub mod attention;
pub mod codebook_gemm;
pub mod fused_mlp;
pub mod layer;
pub mod linear;
pub mod pointwise;
pub mod prefix_attention;

pub use activation::activate;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::Op;

/// Where a definition rounds.
pub trait Rounding: Copy + Send + Sync {
    /// After each step of arithmetic.
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

    /// The same operands with one of them put in the wrong order (transposed or reversed), by name: answers that a
    /// tolerance has to refuse. Operands whose order cannot be changed (one element) are left out.
    fn disordered(&self, host: &Self::Host) -> Vec<(&'static str, Self::Host)>;
}

/// A tensor that an operation writes, as it lies in memory.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its name, as in the operation's arguments.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// The type in which what it comes from was last rounded: its own, but for a logarithm of sums over rebuilt keys.
    pub rounded: DType,
    /// From the first element to the last; `None` has to be left as it was (a gap between rows, a row of a token
    /// without an adapter).
    pub elements: Vec<Option<f64>>,
    /// The least magnitude at which a tolerance takes its unit in the last place. Zero, but for a logarithm: an error
    /// of ε in its argument is an error of ε in it, however near to zero it lies.
    pub least: f64,
}

impl Output {
    /// Elements one after another, all of them written.
    fn packed(name: &str, dtype: DType, values: Vec<f64>) -> Self {
        Self { name: name.into(), dtype, rounded: dtype, elements: values.into_iter().map(Some).collect(), least: 0.0 }
    }
}

/// `Err` unless `values` are as many as the descriptor says.
fn expect_len(subject: &str, values: &[f64], expected: u64) -> Result<()> {
    if values.len() as u64 == expected {
        return Ok(());
    }
    Err(Error::invalid(subject, format!("{expected} elements"), values.len()))
}

/// As [`expect_len`], of an operand that is there only where `wanted`.
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

/// Steps of arithmetic from which on threads are worth their start.
const MANY: usize = 1 << 22;

/// What `of` gives for each number below `count`, each of which takes `steps` steps: on every core where that is much. Every value is
/// the same as on one.
fn every(count: usize, steps: usize, of: impl Fn(usize) -> f64 + Sync) -> Vec<f64> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(16);
    if threads == 1 || count.saturating_mul(steps) < MANY {
        return (0..count).map(of).collect();
    }
    let share = count.div_ceil(threads);
    let mut values = vec![0.0; count];
    std::thread::scope(|scope| {
        for (number, part) in values.chunks_mut(share).enumerate() {
            let of = &of;
            scope.spawn(move || part.iter_mut().enumerate().for_each(|(at, value)| *value = of(number * share + at)));
        }
    });
    values
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
        let of = |number: usize| (number as f64).sqrt();
        let one: Vec<f64> = (0..1001).map(of).collect();
        assert_eq!(every(1001, 1, of), one);
        assert_eq!(every(1001, MANY, of), one);
        assert_eq!(every(0, MANY, of), Vec::<f64>::new());
    }
}
