// What the CUDA compiler knows without any header, for g++.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "fibre.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

#define threadIdx (emulated_place()->thread)
#define blockIdx (emulated_place()->block)
#define blockDim (emulated_place()->block_dim)
#define gridDim (emulated_place()->grid_dim)

inline void __syncthreads() { emulated_barrier(); }
inline void __syncwarp() { emulated_warp_barrier(); }

struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

inline float __uint_as_float(unsigned bits) {
    float value;
    return memcpy(&value, &bits, 4), value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    return memcpy(&bits, &value, 4), bits;
}
inline void sincospif(float x, float *sine, float *cosine) {
    *sine = float(sin(M_PI * x));
    *cosine = float(cos(M_PI * x));
}
