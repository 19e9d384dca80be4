// Rotary positions: the halves of each head turned against each other.
#pragma once

#include "ptx/grid.cuh"
#include "pointwise/angle.cuh"
#include "pointwise/lines.cuh"

constexpr int ROPE_THREADS = 256;

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
