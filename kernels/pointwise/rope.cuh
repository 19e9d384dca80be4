// Rotary positions: the halves of each head turned against each other. The angle is taken in f64, and in half turns: at
// position 100,000 an f32 angle is off by 0.004, and the f32 sine of a large angle needs local memory.
#pragma once

#include "ptx/grid.cuh"
#include "pointwise/lines.cuh"

constexpr int ROPE_THREADS = 256;

// Half turns from one position to the next, of pair `j` of a head.
__device__ __forceinline__ f64 half_turns(const PointwiseParams &p, u64 j) {
    if (p.frequencies) {
        return f64(p.frequencies[j]) * 0.3183098861837907;
    }
    return exp2(-2.0 * f64(j) / f64(p.head_dim) * p.log2_base) * 0.3183098861837907;
}

__device__ __forceinline__ void sine_cosine(f64 turns, f32 *sine, f32 *cosine) {
    sincospif(f32(turns - 2.0 * rint(0.5 * turns)), sine, cosine);
}

// Any size and place: a block a row. In place: a thread reads both elements of a pair before it writes them.
__device__ __forceinline__ void rotate(const PointwiseParams &p, u64 row) {
    u64 start = row * p.stride, half = p.head_dim / 2;
    f64 position = p.index[row];
    for (u64 j = threadIdx.x; j < half; j += ROPE_THREADS) {
        f32 sine, cosine;
        sine_cosine(position * half_turns(p, j), &sine, &cosine);
        for (u64 head = start; head < start + p.columns; head += p.head_dim) {
            f32 a = widen(p.x[head + j]), b = widen(p.x[head + half + j]);
            p.y[head + j] = narrow<element>(a * cosine - b * sine);
            p.y[head + half + j] = narrow<element>(b * cosine + a * sine);
        }
    }
}

// Half a head a multiple of whole lines and at most ROPE_THREADS pairs, rows on whole lines. A block takes a row: its first
// threads make the row's sines, then all turn its heads.
__device__ __forceinline__ void rope_lines(const PointwiseParams &p) {
    alignas(16) __shared__ f32 sines[ROPE_THREADS], cosines[ROPE_THREADS];
    u32 half = u32(p.head_dim) / 2, lines = half / EACH, all = u32(p.columns) / (2 * EACH), j = threadIdx.x;
    // Of a base it depends on no operand, and is done while the kernel before still runs.
    f64 frequency = j < half && !p.frequencies ? half_turns(p, j) : 0.0;
    grid_launch_next();
    grid_wait();
    if (j < half && p.frequencies) {
        frequency = half_turns(p, j);
    }
    for (u64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
        if (j < half) {
            sine_cosine(f64(p.index[row]) * frequency, &sines[j], &cosines[j]);
        }
        __syncthreads();
        const element *x = p.x + row * p.stride;
        Line *y = reinterpret_cast<Line *>(p.y + row * p.stride);
        for (u32 item = threadIdx.x; item < all; item += ROPE_THREADS) {
            u32 head = item / lines, part = item - head * lines, at = head * 2 * lines + part;
            Line low = line_of(x, at), high = line_of(x, at + lines);
#pragma unroll
            for (u32 e = 0; e < EACH; e++) {
                f32 a = widen(low.values[e]), b = widen(high.values[e]);
                f32 sine = sines[part * EACH + e], cosine = cosines[part * EACH + e];
                low.values[e] = narrow<element>(a * cosine - b * sine);
                high.values[e] = narrow<element>(b * cosine + a * sine);
            }
            y[at] = low;
            y[at + lines] = high;
        }
        // The next row's sines take this place.
        __syncthreads();
    }
}
