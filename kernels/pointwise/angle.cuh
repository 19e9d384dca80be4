// Angles of rotary positions. They are taken in f64, and in half turns: at position 100,000 an f32 angle is off by 0.004, and the f32 sine of a large
// angle needs local memory.
#pragma once

#include "ptx/types.cuh"

// Half turns from one position to the next, of pair `j` of a head.
template <class Params> __device__ __forceinline__ f64 half_turns(const Params &p, u64 j) {
    if (p.frequencies) {
        return f64(p.frequencies[j]) * 0.3183098861837907;
    }
    return exp2(-2.0 * f64(j) / f64(p.head_dim) * p.log2_base) * 0.3183098861837907;
}

__device__ __forceinline__ void sine_cosine(f64 turns, f32 *sine, f32 *cosine) {
    sincospif(f32(turns - 2.0 * rint(0.5 * turns)), sine, cosine);
}

// The heads of a row at any place, by a block of THREADS. In place: a thread reads both elements of a pair before it writes them.
template <int THREADS, class Params> __device__ __forceinline__ void turn_row(const Params &p, f64 position, const element *x, element *y) {
    u64 half = p.head_dim / 2;
    for (u64 j = threadIdx.x; j < half; j += THREADS) {
        f32 sine, cosine;
        sine_cosine(position * half_turns(p, j), &sine, &cosine);
        for (u64 head = 0; head < p.columns; head += p.head_dim) {
            f32 a = widen(x[head + j]), b = widen(x[head + half + j]);
            y[head + j] = narrow<element>(a * cosine - b * sine);
            y[head + half + j] = narrow<element>(b * cosine + a * sine);
        }
    }
}
