//! Curves and factors against direct evaluation.

use proptest::prelude::*;

use super::*;
use crate::adapters::encode::linalg::energy;

/// A matrix that looks drawn.
fn drawn(rows: usize, cols: usize, seed: u64) -> Mat {
    Mat::from_fn(rows, cols, |i, j| ((i * 131 + j * 17) as f64 * 0.61 + seed as f64 * 1.7 + (i * j) as f64 * 0.13).sin())
}

fn moment(size: usize, seed: u64) -> Mat {
    let rows = drawn(3 * size, size, seed);
    mul(rows.transpose(), rows.as_ref())
}

/// Everything that is known of a projection.
struct Known {
    weight: Mat,
    inputs: Mat,
    outputs: Mat,
    /// Gradients at the outputs.
    gradients: Mat,
    narrow: Mat,
    sizes: Vec<f64>,
}

fn known(m: usize, n: usize, seed: u64) -> Known {
    let (weight, inputs, gradients) = (drawn(m, n, seed), moment(n, seed + 1), moment(m, seed + 2));
    let outputs = mul(mul(weight.as_ref(), inputs.as_ref()).as_ref(), weight.transpose());
    let narrow = if m <= n { gradients.clone() } else { between(&weight, &gradients) };
    Known { weight, inputs, outputs, gradients, narrow, sizes: (0..n).map(|j| 0.5 + (j as f64).cos().abs()).collect() }
}

/// `½ tr(G·ΔW·C·ΔWᵀ)`, from the matrices themselves.
fn direct(known: &Known, found: &Mat, gradients: &Mat) -> f64 {
    let off = plus(&known.weight, -1.0, found);
    let spread = mul(mul(off.as_ref(), known.inputs.as_ref()).as_ref(), off.transpose());
    0.5 * trace(&mul(gradients.as_ref(), spread.as_ref()))
}

fn product(factors: &Factors, rank: usize) -> Mat {
    mul(factors.left.subcols(0, rank), factors.right.subrows(0, rank))
}

/// Whether the curve is what a direct evaluation gives, at every rank.
fn holds(known: &Known, factors: &Factors, weighed: &Mat, method: Method) {
    let (m, n) = known.weight.shape();
    let whole = direct(known, &Mat::zeros(m, n), weighed);
    for (rank, &loss) in factors.loss().iter().enumerate() {
        let direct = direct(known, &product(factors, rank), weighed);
        assert!((loss - direct).abs() < 1e-9 * whole, "{} {m}x{n} rank {rank}: {loss} of {direct}", method.name());
    }
}

#[test]
fn a_curve_is_what_a_direct_evaluation_gives() {
    for (m, n) in [(6, 9), (9, 6), (7, 7), (3, 12)] {
        let known = known(m, n, 5);
        let (inputs, outputs, sizes) = (Some(&known.inputs), Some(&known.outputs), Some(&known.sizes[..]));
        for method in Method::ALL {
            let gradients = (method == Method::TwoSided).then_some(&known.narrow);
            let factors = Factors::new(&known.weight, &Statistics { inputs, outputs, sizes, gradients }, method).unwrap();
            // With what was added to the gradients, so that no direction is free.
            let identity = Mat::identity(m, m);
            let weighed = match gradients {
                None => identity,
                Some(narrow) if m <= n => plus(&known.gradients, RIDGE * trace(narrow) / m as f64, &identity),
                Some(narrow) => {
                    let square = mul(known.weight.transpose(), known.weight.as_ref());
                    plus(&known.gradients, RIDGE * trace(narrow) / trace(&square), &identity)
                }
            };
            holds(&known, &factors, &weighed, method);
            let off = &product(&factors, m.min(n)) - &known.weight;
            assert!(energy(off.as_ref()) < 1e-18 * energy(known.weight.as_ref()), "{}: the full rank is the matrix", method.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn whitened_directions_lose_least_at_every_rank(m in 2usize..9, n in 2usize..9, seed in 0u64..1000) {
        let known = known(m, n, seed);
        let of = |method| Factors::new(&known.weight, &Statistics { inputs: Some(&known.inputs), sizes: Some(&known.sizes), ..Statistics::default() }, method).unwrap();
        let best = of(Method::Whiten);
        for other in [of(Method::Svd), of(Method::Asvd)] {
            for rank in 0..=m.min(n) {
                prop_assert!(best.loss()[rank] <= other.loss()[rank] + 1e-6 * other.loss()[0], "rank {}", rank);
            }
        }
        prop_assert!(best.loss().windows(2).all(|pair| pair[0] >= pair[1] - 1e-6 * best.loss()[0]));
    }
}

#[test]
fn a_curve_holds_where_eigenvalues_are_raised() {
    for (m, n) in [(6, 9), (9, 6)] {
        let mut known = known(m, n, 5);
        // Of fewer tokens than there are inputs.
        let few = drawn(4, n, 3);
        known.inputs = mul(few.transpose(), few.as_ref());
        known.outputs = mul(mul(known.weight.as_ref(), known.inputs.as_ref()).as_ref(), known.weight.transpose());
        for method in [Method::Svd, Method::Asvd, Method::Whiten] {
            let of = Statistics { inputs: Some(&known.inputs), outputs: None, sizes: Some(&known.sizes[..]), gradients: None };
            let factors = Factors::new(&known.weight, &of, method).unwrap();
            holds(&known, &factors, &Mat::identity(m, m), method);
        }
    }
}

#[test]
fn what_a_method_needs_has_to_be_there() {
    let known = known(4, 6, 1);
    for method in [Method::Asvd, Method::Whiten, Method::TwoSided] {
        assert!(Factors::new(&known.weight, &Statistics::default(), method).is_err(), "{}", method.name());
    }
    assert!(Factors::new(&known.weight, &Statistics::default(), Method::Svd).is_ok());
    let other = Statistics { inputs: Some(&known.outputs), ..Statistics::default() };
    assert!(Factors::new(&known.weight, &other, Method::Whiten).is_err());
}
