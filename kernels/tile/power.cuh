// Powers of two, as they are taken out of values on their way to 16 bits: f16 has few exponents.
#pragma once

#include "ptx/types.cuh"

// The power of two below `value`, within what has an exact inverse.
__device__ __forceinline__ u32 exponent_below(f32 value) {
    u32 exponent = __float_as_uint(value) >> 23 & 255;
    return exponent < 1 ? 1 : exponent > 252 ? 252 : exponent;
}

__device__ __forceinline__ f32 power(u32 exponent) { return __uint_as_float(exponent << 23); }

__device__ __forceinline__ f32 inverse_power(u32 exponent) { return __uint_as_float((254 - exponent) << 23); }
