// Activations, in f32. The numbers are those of the host's `activation_code`.
#pragma once

#include "ptx/special.cuh"

enum Activation : u32 { NONE = 0, GELU_TANH = 1, GELU_ERF = 2, SILU = 3, RELU = 4 };

// The exponent of 2 whose power is Φ(−a), the normal distribution up to −a, from 0 to GELU_END: nearly −a²/2, fitted for the least
// greatest error. For f16, where a·Φ(−a) ends at 6.5, the power is right to 8.5e-5 of its value, above the smallest normal number; for bf16, whose numbers are as small as
// those of f32, to 5.2e-4. Half a step of these types is 4.9e-4 and 2e-3.
template <class T> constexpr f32 GELU_END = 6.5f;
template <> constexpr f32 GELU_END<bf16> = 13.0f;

// A polynomial of a, from the highest power to the lowest.
__device__ __forceinline__ f32 polynomial(f32, f32 value) { return value; }
template <class... Rest> __device__ __forceinline__ f32 polynomial(f32 a, f32 value, f32 next, Rest... rest) {
    return polynomial(a, fmaf(value, a, next), rest...);
}

template <class T> __device__ __forceinline__ f32 gelu_exponent(f32 a) {
    return polynomial(a, -0.00032051062f, 0.005827313f, -0.048237495f, -0.4641202f, -1.1491766f, -1.0001206f);
}

template <> __device__ __forceinline__ f32 gelu_exponent<bf16>(f32 a) {
    return polynomial(a, -3.3647072e-07f, 1.8525567e-05f, -0.00042996064f, 0.0055473954f, -0.044775419f, -0.47225139f, -1.1434127f, -1.000729f);
}

// GELU by the error function, for 16-bit results: x·Φ(x) is max(x, 0) − a·Φ(−a) with a = |x|, which keeps its digits at both ends. One
// special function an output; erfcf, with branches and a division, takes many times as long.
__device__ __forceinline__ f32 gelu_erf_half(f32 x) {
    f32 a = fminf(fabsf(x), GELU_END<element>);
    return fmaf(-a, exp2_fast(gelu_exponent<element>(a)), max_or_nan(x, 0.0f));
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
