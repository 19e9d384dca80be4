//! Functions of f32, over whole slices so that the compiler turns them into vector code. Loops count, and do not zip: where the library's iterators are
//! not inlined each step would call.
#![allow(clippy::needless_range_loop, reason = "see above")]

use crate::ops::Activation;

/// Runs `work` compiled for the vector instructions of this machine. What it calls must be `inline(always)`.
pub fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}

/// eˣ within 2 units in the last place. It is 0 below −87.33 (the smallest normal number), a large number above 88.37, and NaN for NaN.
/// After J.-M. Muller, Elementary Functions: `x = n·ln 2 + r`, with ln 2 in two parts and a polynomial in r.
#[inline(always)]
#[allow(clippy::excessive_precision, reason = "the constants as published")]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2²³ rounds to an integer and leaves it in the low bits: no conversion, which would not vectorise.
    const SHIFT: f32 = 12_582_912.0;
    let clamped = if x > 88.37 { 88.37 } else { x };
    let shifted = clamped * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    // ln 2 = 0.693359375 − 2.12194440e-4: the first part has few bits, so that its product with n is exact.
    let r = (clamped - n * 0.693_359_375) + n * 2.121_944_4e-4;
    let mut p = 1.987_569_15e-4;
    for coefficient in [1.398_199_95e-3, 8.333_451_9e-3, 4.166_579_59e-2, 1.666_666_55e-1, 5.000_000_1e-1] {
        p = p * r + coefficient;
    }
    let polynomial = p * (r * r) + r + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    // The comparison is written so that NaN, for which every comparison is false, passes through.
    if x < -87.33 { 0.0 } else { polynomial * power }
}

/// Applies `activation` to `values` in place.
pub fn activate(activation: Activation, values: &mut [f32]) {
    match activation {
        Activation::Relu => vectorised(|| each(values, |x| if x < 0.0 { 0.0 } else { x })),
        Activation::Silu => vectorised(|| each(values, |x| damped(x, x))),
        // ½(1 + tanh u) = 1/(1 + e⁻²ᵘ), which loses nothing where tanh u is close to −1.
        Activation::GeluTanh => vectorised(|| {
            each(values, |x| {
                let u = 0.797_884_6 * (x + 0.044_715 * (x * x * x));
                damped(x, 2.0 * u)
            });
        }),
        // Φ(x) = ½ erfc(−x/√2), which loses nothing where Φ is close to 0.
        Activation::GeluErf => each(values, |x| 0.5 * x * libm::erfcf(-x * std::f32::consts::FRAC_1_SQRT_2)),
    }
}

/// `x/(1 + e⁻ᵘ)`. It is 0 for u below −88, where `exp` saturates.
#[inline(always)]
fn damped(x: f32, u: f32) -> f32 {
    if u < -88.0 { 0.0 * x } else { x / (1.0 + exp(-u)) }
}

#[inline(always)]
fn each(values: &mut [f32], f: impl Fn(f32) -> f32) {
    for value in values {
        *value = f(*value);
    }
}

/// `a[i] += b[i]`.
pub fn add(a: &mut [f32], b: &[f32]) {
    vectorised(
        #[inline(always)]
        || {
            for i in 0..a.len().min(b.len()) {
                a[i] += b[i];
            }
        },
    );
}

/// `a[i] += factor · b[i]`.
pub fn add_scaled(a: &mut [f32], factor: f32, b: &[f32]) {
    vectorised(
        #[inline(always)]
        || {
            for i in 0..a.len().min(b.len()) {
                a[i] += factor * b[i];
            }
        },
    );
}

/// `Σ f(x)`, in eight partial sums, combined in a fixed order.
#[inline(always)]
pub fn sum(values: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut partial = [0.0f32; 8];
    let (chunks, rest) = values.as_chunks::<8>();
    let rest: f32 = rest.iter().map(|&x| f(x)).sum();
    for chunk in chunks {
        for i in 0..8 {
            partial[i] += f(chunk[i]);
        }
    }
    let [a, b, c, d, e, g, h, i] = partial;
    ((a + e) + (b + g)) + ((c + h) + (d + i)) + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_the_true_value_everywhere() {
        for step in -8700..8830 {
            let x = step as f32 / 100.0;
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got - want).abs() <= 2.5e-7 * want, "exp({x}) = {got}, not {want}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert!(exp(f32::INFINITY) > 1e38);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn activations_are_close_to_their_definitions() {
        for step in -800..800 {
            let x = step as f32 / 80.0;
            let wide = f64::from(x);
            for activation in Activation::ALL {
                let mut values = [x];
                activate(activation, &mut values);
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044715 * wide.powi(3));
                let want = match activation {
                    Activation::GeluTanh => wide / (1.0 + (-2.0 * inner).exp()),
                    Activation::GeluErf => 0.5 * wide * libm::erfc(-wide / 2f64.sqrt()),
                    Activation::Silu => wide / (1.0 + (-wide).exp()),
                    Activation::Relu => wide.max(0.0),
                };
                let error = (f64::from(values[0]) - want).abs();
                assert!(error <= 2e-5 * want.abs(), "{activation:?}({x}) = {}, not {want}", values[0]);
            }
        }
    }

    #[test]
    fn activations_of_great_numbers_are_those_numbers_or_nothing() {
        for activation in Activation::ALL {
            for x in [89.0, 300.0, 1e20, 1e38, f32::MAX].into_iter().flat_map(|x| [x, -x]) {
                let mut values = [x];
                activate(activation, &mut values);
                assert!((values[0] - x.max(0.0)).abs() <= 1e-6 * x.max(0.0) + 1e-30, "{activation:?}({x:e}) = {:e}", values[0]);
            }
        }
    }
}
