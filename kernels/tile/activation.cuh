// Activations, in f32. The numbers are those of the host's `activation_code`.
#pragma once

#include "ptx/types.cuh"

enum Activation : u32 { NONE = 0, GELU_TANH = 1, GELU_ERF = 2, SILU = 3, RELU = 4 };

__device__ __forceinline__ f32 activate(u32 kind, f32 x) {
    switch (kind) {
    case GELU_TANH: {
        // ½(1 + tanh u) is 1 / (1 + e^-2u), which keeps its digits where tanh u is near -1.
        f32 u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
        return x / (1.0f + expf(-2.0f * u));
    }
    case GELU_ERF:
        // 1 + erf(z) is erfc(-z), which keeps its digits where erf z is near -1.
        return 0.5f * x * erfcf(-0.7071067811865476f * x);
    case SILU:
        return x / (1.0f + expf(-x));
    case RELU:
        // A NaN stays one: fmaxf would turn it into 0.
        return x < 0.0f ? 0.0f : x;
    default:
        return x;
    }
}
