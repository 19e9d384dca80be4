// Activations, in f32. The numbers are those of the host's `activation_code`.
#pragma once

#include "ptx/special.cuh"

enum Activation : u32 { NONE = 0, GELU_TANH = 1, GELU_ERF = 2, SILU = 3, RELU = 4 };

// GELU by the error function, to 1.7e-5 of its value, a thirtieth of a half-precision step: for 16-bit results.
//
// x·Φ(x) is max(x, 0) − a·Φ(−a) with a = |x|, which keeps its digits at both ends; and Φ(−a) is e^(−a²/2)·R(a), where R falls as
// slowly as 1/a. So R is a polynomial of t = 1 / (1 + 0.36·a), fitted for the least relative error over 0..13, where the power ends.
// Its two special functions take the time; erfcf, with branches and a division, takes five times as long.
__device__ __forceinline__ f32 gelu_erf_half(f32 x) {
    // Beyond 14 the power is zero, which infinity may not meet.
    f32 a = fminf(fabsf(x), 14.0f);
    f32 t = reciprocal_fast(fmaf(0.36f, a, 1.0f));
    f32 u = 0.8493218f * a;   // √(log2(e) / 2)
    f32 r = -0.09927564f;
    r = fmaf(r, t, 0.2563954f);
    r = fmaf(r, t, 0.03312565f);
    r = fmaf(r, t, 0.16961469f);
    r = fmaf(r, t, 0.13992774f);
    r = fmaf(r, t, 0.0002067839f);
    return fmaf(-a, exp2_fast(-u * u) * r, max_or_nan(x, 0.0f));
}

__device__ __forceinline__ f32 activate(u32 kind, f32 x) {
    switch (kind) {
    case GELU_TANH: {
        // ½(1 + tanh u) is 1 / (1 + e^-2u), which keeps its digits where tanh u is near -1.
        f32 u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
        return x / (1.0f + expf(-2.0f * u));
    }
    case GELU_ERF:
        if constexpr (sizeof(element) == 2) {
            return gelu_erf_half(x);
        }
        // 1 + erf(z) is erfc(-z), which keeps its digits where erf z is near -1.
        return 0.5f * x * erfcf(-0.7071067811865476f * x);
    case SILU:
        return x / (1.0f + expf(-x));
    case RELU:
        return max_or_nan(x, 0.0f);
    default:
        return x;
    }
}
