//! How far from float64 a right answer may lie.
//!
//! With `plain` the same computation done step by step in the operand's precision ([`Stepwise`]) and `ref` float64:
//!
//! ```text
//! max|out − ref| ≤ 2·max|plain − ref| + 2 ulp(max|ref|)    and    ‖out − ref‖₂ / ‖ref‖₂ ≤ 1e-3 (f16), 8e-3 (bf16), 1e-5 (f32)
//! ```
//!
//! The first rule is that of flash-attention's own tests: it moves with what the precision can do. The second refuses
//! an answer that is a little wrong everywhere. NaN never passes. An output of fewer than 32 elements is too small a sample
//! of what the precision can do, and all of it may be what is left of sums that cancel: there both terms of the first rule
//! are doubled, and the second asks for no more than the first. Where f32 comes of 16-bit operands, the first allows half
//! a unit more for each sum that a tensor core cuts off, after 16 products each. That the two together refuse zeros, a
//! missing tile and a transposed operand is proven for every case by the tests.

use crate::cases::{Posed, Problem};
use crate::oracle::{Define, Exact, Output, Stepwise};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result, ensure};

/// One output as it should be, and how far from that it may lie.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Name of the output, as in the operation's arguments.
    pub name: String,
    /// Element type of the output.
    pub dtype: DType,
    /// Values from the first element to the last; `None` has to be left as it was.
    pub elements: Vec<Option<f64>>,
    /// How far off it may be.
    pub tolerance: Tolerance,
    /// Whether its elements are whole numbers of 32 bits with a sign.
    pub integers: bool,
}

/// The bounds for one output.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Tolerance {
    /// The most that |out − ref| may be anywhere.
    pub max_abs: f64,
    /// The most that ‖out − ref‖₂ / ‖ref‖₂ may be.
    pub relative_l2: f64,
}

/// How an output compares.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Metrics {
    /// The greatest |out − ref|; infinite where either is NaN.
    pub max_abs: f64,
    /// ‖out − ref‖₂ / ‖ref‖₂.
    pub relative_l2: f64,
    /// The element where |out − ref| is greatest.
    pub worst: usize,
    /// The reference there.
    pub expected: f64,
    /// What was found there.
    pub found: f64,
    /// What was allowed.
    pub tolerance: Tolerance,
}

/// Elements below which an output is a small sample.
const FEW: usize = 32;

impl Tolerance {
    /// The rule of the module's text. A unit in the last place is taken of the greatest reference, but of `least` at
    /// least.
    pub fn new(dtype: DType, reference: &[Option<f64>], plain: &[Option<f64>], least: f64) -> Self {
        let pairs = || reference.iter().zip(plain).filter_map(|(r, p)| Some(((*r)?, (*p)?)));
        let greatest = pairs().map(|(r, _)| r.abs()).filter(|r| r.is_finite()).fold(least, f64::max);
        let plain_error = pairs().map(|(r, p)| distance(r, p)).fold(0.0, f64::max);
        let relative_l2 = relative_l2_of(dtype);
        let max_abs = 2.0 * plain_error + 2.0 * dtype.ulp(greatest);
        let count = pairs().count();
        if count >= FEW {
            return Self { max_abs, relative_l2 };
        }
        let norm = pairs().map(|(r, _)| if r.is_finite() { r * r } else { 0.0 }).sum::<f64>().sqrt();
        let implied = if norm > 0.0 { 2.0 * max_abs * (count as f64).sqrt() / norm } else { 0.0 };
        Self { max_abs: 2.0 * max_abs, relative_l2: relative_l2.max(implied) }
    }

    /// Compares the elements that have a reference.
    ///
    /// # Errors
    /// `found` has another length.
    pub fn compare(self, reference: &[Option<f64>], found: &[f64]) -> Result<Metrics> {
        if reference.len() != found.len() {
            return Err(Error::invalid("output", format!("{} elements", reference.len()), found.len()));
        }
        let mut metrics = Metrics { max_abs: 0.0, relative_l2: 0.0, worst: 0, expected: 0.0, found: 0.0, tolerance: self };
        let (mut square_error, mut square) = (0.0, 0.0);
        let mut first = true;
        for (index, (expected, &found)) in reference.iter().zip(found).enumerate() {
            let Some(expected) = *expected else { continue };
            let error = distance(expected, found);
            square_error += error * error;
            square += if expected.is_finite() { expected * expected } else { 0.0 };
            if first || error > metrics.max_abs {
                metrics = Metrics { max_abs: error, worst: index, expected, found, ..metrics };
                first = false;
            }
        }
        metrics.relative_l2 = if square_error == 0.0 { 0.0 } else { square_error.sqrt() / square.sqrt() };
        Ok(metrics)
    }
}

impl Metrics {
    /// Whether both rules hold.
    pub fn accepted(&self) -> bool {
        self.max_abs <= self.tolerance.max_abs && self.relative_l2 <= self.tolerance.relative_l2
    }
}

impl std::fmt::Display for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { max_abs, relative_l2, worst, expected, found, tolerance } = self;
        write!(f, "max |error| {max_abs:.3e} of {:.3e} allowed (element {worst}: expected {expected:e}, found {found:e}), ", tolerance.max_abs)?;
        write!(f, "relative L2 {relative_l2:.3e} of {:.3e}", tolerance.relative_l2)
    }
}

/// The second rule's bound.
const fn relative_l2_of(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        DType::F32 => 1e-5,
    }
}

/// |a − b|: zero for equal infinities, infinite where either is NaN.
fn distance(a: f64, b: f64) -> f64 {
    let error = (a - b).abs();
    match (a == b, error.is_nan()) {
        (true, _) => 0.0,
        (false, true) => f64::INFINITY,
        (false, false) => error,
    }
}

/// What `problem` should give, and how far from that its outputs may lie.
///
/// # Errors
/// The errors of [`Define::evaluate`].
pub fn expect(problem: &Problem) -> Result<Vec<Expected>> {
    problem.with(ExpectWork)
}

/// What `problem` should give by reference values from elsewhere (a case file), as [`expect`] says it. The bound still comes
/// from this crate's own step by step run.
///
/// # Errors
/// The errors of [`Define::evaluate`]; another number of outputs or elements.
pub fn expect_given(problem: &Problem, given: Vec<Vec<Option<f64>>>) -> Result<Vec<Expected>> {
    let plain = problem.with(PlainWork)?;
    if given.len() != plain.len() {
        return Err(Error::invalid("expected outputs", format!("{}", plain.len()), given.len()));
    }
    plain.into_iter().zip(given).map(|(plain, given)| bound(&plain, given)).collect()
}

/// The values of the step by step run, output by output.
///
/// # Errors
/// The errors of [`Define::evaluate`].
pub fn plain(problem: &Problem) -> Result<Vec<Output>> {
    problem.with(PlainWork)
}

fn bound(plain: &Output, elements: Vec<Option<f64>>) -> Result<Expected> {
    if plain.elements.len() != elements.len() {
        return Err(Error::invalid(&plain.name, format!("{} elements", plain.elements.len()), elements.len()));
    }
    if plain.integers {
        let tolerance = Tolerance { max_abs: 0.0, relative_l2: 0.0 };
        return Ok(Expected { name: plain.name.clone(), dtype: plain.dtype, elements, tolerance, integers: true });
    }
    let mut tolerance = Tolerance::new(plain.dtype, &elements, &plain.elements, plain.least);
    // Sums that overflow on the way are no measure: twice their error would allow any answer.
    let bounds = "values that a step by step run comes near to, and does not overflow";
    ensure(tolerance.max_abs.is_finite(), &plain.name, bounds, "values that it is infinitely far from")?;
    let greatest = elements.iter().flatten().map(|value| value.abs()).filter(|value| value.is_finite()).fold(0.0, f64::max);
    tolerance.max_abs += plain.cut as f64 * 0.5 * plain.dtype.ulp(greatest);
    // Written in f32, it is no more exact than what was rounded on the way.
    tolerance.relative_l2 = tolerance.relative_l2.max(relative_l2_of(plain.rounded));
    Ok(Expected { name: plain.name.clone(), dtype: plain.dtype, elements, tolerance, integers: false })
}

struct ExpectWork;

impl crate::cases::Work for ExpectWork {
    type Out = Result<Vec<Expected>>;

    fn on<O: Define>(self, Posed { op, host }: &Posed<O>) -> Self::Out {
        let reference = op.evaluate(host, Exact)?;
        let plain = op.evaluate(host, Stepwise(op.dtype()))?;
        reference.into_iter().zip(&plain).map(|(reference, plain)| bound(plain, reference.elements)).collect()
    }
}

struct PlainWork;

impl crate::cases::Work for PlainWork {
    type Out = Result<Vec<Output>>;

    fn on<O: Define>(self, Posed { op, host }: &Posed<O>) -> Self::Out {
        op.evaluate(host, Stepwise(op.dtype()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn some(values: &[f64]) -> Vec<Option<f64>> {
        values.iter().copied().map(Some).collect()
    }

    #[test]
    fn the_bound_is_twice_the_plain_error_and_two_units() {
        let [reference, plain] = [[1.0, -1.5], [1.25, -1.5]].map(|pair| some(&pair.repeat(16)));
        let tolerance = Tolerance::new(DType::F16, &reference, &plain, 0.0);
        assert_eq!(tolerance, Tolerance { max_abs: 0.5 + 2.0 / 1024.0, relative_l2: 1e-3 });
    }

    #[test]
    fn a_small_output_is_held_to_twice_the_first_rule_alone() {
        let (reference, plain) = (some(&[1e-3]), some(&[1.002e-3]));
        let Tolerance { max_abs, relative_l2 } = Tolerance::new(DType::F16, &reference, &plain, 0.0);
        assert!((max_abs - 4.0 * (2e-6 + DType::F16.ulp(1e-3))).abs() < 1e-12 && (relative_l2 - 1e3 * max_abs).abs() < 1e-9);
        // A few large elements that are well off by neither rule.
        assert_eq!(Tolerance::new(DType::BF16, &some(&[1.0]), &some(&[1.0]), 0.0).relative_l2, 4.0 * DType::BF16.ulp(1.0));
        assert_eq!(Tolerance::new(DType::F32, &some(&[0.0]), &some(&[0.0]), 0.0).relative_l2, 1e-5);
    }

    #[test]
    fn nan_never_passes_and_infinities_must_agree() {
        let reference = some(&[1.0, f64::NEG_INFINITY]);
        let tolerance = Tolerance::new(DType::F32, &reference, &reference, 0.0);
        let accepted = |found: &[f64]| tolerance.compare(&reference, found).unwrap().accepted();
        assert!(accepted(&[1.0, f64::NEG_INFINITY]));
        assert!(!accepted(&[f64::NAN, f64::NEG_INFINITY]));
        assert!(!accepted(&[1.0, f64::NAN]));
        assert!(!accepted(&[1.0, f64::INFINITY]));
        assert!(!accepted(&[1.0, -1e30]));
        assert!(!Tolerance::new(DType::F32, &some(&[f64::NAN]), &some(&[f64::NAN]), 0.0).compare(&some(&[f64::NAN]), &[f64::NAN]).unwrap().accepted());
        assert!(tolerance.compare(&reference, &[1.0]).is_err());
    }

    #[test]
    fn the_worst_element_is_named() {
        let reference = [Some(1.0), None, Some(2.0)];
        let metrics = Tolerance::new(DType::F32, &reference, &reference, 0.0).compare(&reference, &[1.0, 77.0, 2.5]).unwrap();
        assert_eq!((metrics.worst, metrics.expected, metrics.found, metrics.max_abs), (2, 2.0, 2.5, 0.5));
        assert!(!metrics.accepted());
    }
}
