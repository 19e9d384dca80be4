use super::Rounding;
use trifuse::ops::Activation;

/// `activation(x)`.
pub fn activate<R: Rounding>(activation: Activation, x: f64, rounding: R) -> f64 {
    use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};
    let step = |value| rounding.step(value);
    step(match activation {
        Activation::GeluTanh => {
            let inner = step(FRAC_2_PI.sqrt() * step(x + 0.044715 * step(x * step(x * x))));
            0.5 * x * step(1.0 + step(inner.tanh()))
        }
        Activation::GeluErf => 0.5 * x * step(1.0 + step(libm::erf(step(x * FRAC_1_SQRT_2)))),
        Activation::Silu => x / step(1.0 + step((-x).exp())),
        // Not by `max`, which hides what is not a number.
        Activation::Relu if x < 0.0 => 0.0,
        Activation::Relu => x,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Exact;

    #[test]
    fn activations_have_their_published_values() {
        let near = |activation, x, expected: f64| {
            let found = activate(activation, x, Exact);
            assert!((found - expected).abs() < 1e-6, "{activation:?}({x}) = {found}, not {expected}");
        };
        near(Activation::GeluErf, 1.0, 0.841_344_7);
        near(Activation::GeluErf, -2.0, -0.045_500_3);
        near(Activation::GeluTanh, 1.0, 0.841_192);
        near(Activation::GeluTanh, -2.0, -0.045_402_3);
        near(Activation::Silu, 1.0, 0.731_058_6);
        near(Activation::Silu, -1e4, 0.0);
        near(Activation::Relu, -3.0, 0.0);
        near(Activation::Relu, 3.0, 3.0);
        assert!(Activation::ALL.into_iter().all(|activation| activate(activation, f64::NAN, Exact).is_nan()));
    }
}
