// What the CUDA compiler knows without any header, for g++.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "interface.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

#define threadIdx (emulated_place()->thread)
#define blockIdx (emulated_place()->block)
#define blockDim (emulated_place()->block_dim)
#define gridDim (emulated_place()->grid_dim)

inline void __syncthreads() { emulated_barrier(); }
inline void __syncwarp() { emulated_warp_barrier(); }
// Fibres of one thread see each other's writes at once.
inline void __threadfence() {}

struct float2 {
    float x, y;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <class To, class From> To emulated_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    return memcpy(&to, &from, sizeof to), to;
}
inline float __uint_as_float(unsigned bits) { return emulated_bits<float>(bits); }
inline float __int_as_float(int bits) { return emulated_bits<float>(bits); }
inline unsigned __float_as_uint(float value) { return emulated_bits<unsigned>(value); }
inline int __float_as_int(float value) { return emulated_bits<int>(value); }

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) { return unsigned(((unsigned long long)high << 32 | low) >> shift % 32); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) { return unsigned(((unsigned long long)high << 32 | low) << shift % 32 >> 32); }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
template <class T> T __ldcg(const T *from) { return *from; }
// One thread runs at a time.
template <class T> T atomicAdd(T *to, T value) {
    T before = *to;
    *to += value;
    return before;
}
inline void sincospif(float x, float *sine, float *cosine) {
    *sine = float(sin(M_PI * x));
    *cosine = float(cos(M_PI * x));
}

#include "warp.h"
