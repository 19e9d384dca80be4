// The activations, by the constant ACTIVATION: 0 none, 1 GELU (tanh form), 2 GELU (erf form), 3 SiLU, 4 ReLU.

// v/(1 + exp(-u)). The exponent is held where exp stays finite: WGSL promises nothing for infinities. Where it is held nothing is left of
// the greatest v.
fn damped(v: f32, u: f32) -> f32 {
    return select(v / (1.0 + exp(min(-u, 88.0))), 0.0 * v, u < -88.0);
}

// The error function to 1e-7: its power series below 1; from there 1 - t P(t) exp(-v^2), t = 1/(1 + v/2), with P the
// Chebyshev interpolation of erfc(v) exp(v^2) / t on 0.9 <= v <= 10.
fn erf(v: f32) -> f32 {
    let a = abs(v);
    if (a < 1.0) {
        let s = v * v;
        var sum = -1.0 / (362880.0 * 19.0);
        sum = sum * s + 1.0 / (40320.0 * 17.0);
        sum = sum * s - 1.0 / (5040.0 * 15.0);
        sum = sum * s + 1.0 / (720.0 * 13.0);
        sum = sum * s - 1.0 / (120.0 * 11.0);
        sum = sum * s + 1.0 / (24.0 * 9.0);
        sum = sum * s - 1.0 / (6.0 * 7.0);
        sum = sum * s + 1.0 / (2.0 * 5.0);
        sum = sum * s - 1.0 / 3.0;
        sum = sum * s + 1.0;
        return 1.1283791670955126 * v * sum;
    }
    let bounded = min(a, 9.0);
    let t = 1.0 / (1.0 + 0.5 * bounded);
    var p = 0.05389036497449492;
    p = p * t - 0.26626474193182026;
    p = p * t + 0.29400509076394754;
    p = p * t + 0.08882260003215448;
    p = p * t + 0.2669712280454723;
    p = p * t + 0.2796720312125092;
    p = p * t + 0.2822132268573681;
    let tail = t * p * exp(-bounded * bounded);
    return sign(v) * (1.0 - tail);
}

fn activate(v: f32) -> f32 {
    switch (ACTIVATION) {
        case 1u: {
            // v/2 (1 + tanh u) = v / (1 + exp(-2u)): no tanh, which some drivers overflow.
            return damped(v, 1.5957691216057308 * (v + 0.044715 * v * v * v));
        }
        case 2u: {
            return 0.5 * v * (1.0 + erf(v * 0.7071067811865476));
        }
        case 3u: {
            return damped(v, v);
        }
        case 4u: {
            return select(v, 0.0, v < 0.0);
        }
        default: {
            return v;
        }
    }
}
