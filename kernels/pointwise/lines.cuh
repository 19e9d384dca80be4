// What moves 16 bytes at once: rows of a table, sums, activations, and means of rows.
#pragma once

#include "ptx/grid.cuh"
#include "tile/activation.cuh"
#include "pointwise/kind.cuh"
#include "pointwise/params.cuh"

constexpr int LINE_THREADS = 256;
constexpr u32 EACH = 16 / sizeof(element);

struct alignas(16) Line {
    element values[EACH];
};

__device__ __forceinline__ const Line &line_of(const element *from, u64 number) { return reinterpret_cast<const Line *>(from)[number]; }

// Embedding, add, activation, the product of gates. The lines of all rows together are fewer than 2^32.
__device__ __forceinline__ void each_line(const PointwiseParams &p) {
    u32 across = u32(p.columns / EACH), all = u32(p.rows) * across;
    grid_launch_next();
    grid_wait();
    for (u64 at = u64(blockIdx.x) * LINE_THREADS + threadIdx.x; at < all; at += u64(gridDim.x) * LINE_THREADS) {
        Line line = {};
        if (p.kind == EMBEDDING) {
            u32 row = u32(at) / across;
            // Words: two counts, then the ids.
            i32 id = p.index[2 + row];
            if (id >= 0) {
                line = line_of(p.x, u64(id) * across + (u32(at) - row * across));
            }
        } else {
            // Of gates: a row of x has two of y's, and what a gate lets through lies a row of y behind it.
            u64 from = p.kind == GLU ? at + u32(at) / across * u64(across) : at;
            line = line_of(p.x, from);
            Line other = p.kind == ADD ? line_of(p.residual, at) : p.kind == GLU ? line_of(p.x, from + across) : Line{};
#pragma unroll
            for (u32 e = 0; e < EACH; e++) {
                f32 value = widen(line.values[e]), more = widen(other.values[e]);
                f32 changed = p.kind == ADD ? value + more : activate(p.activation, value);
                line.values[e] = narrow<element>(p.kind == GLU ? changed * more : changed);
            }
        }
        reinterpret_cast<Line *>(p.y)[at] = line;
    }
}

// Lines of a row that a block takes, and rows that it sums side by side. Their sums are added in a fixed order, by the number
// of rows alone.
constexpr u32 POOL_LINES = 16, POOL_GROUPS = LINE_THREADS / POOL_LINES;

__device__ __forceinline__ void mean_pool(const PointwiseParams &p) {
    __shared__ f32 sums[POOL_GROUPS][POOL_LINES * EACH];
    u32 across = u32(p.columns / EACH), parts = (across + POOL_LINES - 1) / POOL_LINES;
    u32 lane = threadIdx.x % POOL_LINES, group = threadIdx.x / POOL_LINES;
    grid_launch_next();
    grid_wait();
    for (u64 work = blockIdx.x; work < p.rows * parts; work += gridDim.x) {
        u64 row = work / parts;
        u32 part = u32(work - row * parts), number = part * POOL_LINES + lane;
        i32 first = p.index[row], end = p.index[row + 1];
        f32 sum[EACH] = {};
        if (number < across) {
#pragma unroll 4
            for (i32 r = first + i32(group); r < end; r += POOL_GROUPS) {
                Line line = line_of(p.x, u64(r) * across + number);
#pragma unroll
                for (u32 e = 0; e < EACH; e++) {
                    sum[e] += widen(line.values[e]);
                }
            }
        }
#pragma unroll
        for (u32 e = 0; e < EACH; e++) {
            sums[group][lane * EACH + e] = sum[e];
        }
        __syncthreads();
        u32 column = part * POOL_LINES * EACH + threadIdx.x;
        if (threadIdx.x < POOL_LINES * EACH && column < p.columns) {
            f32 total = 0.0f;
#pragma unroll
            for (u32 g = 0; g < POOL_GROUPS; g++) {
                total += sums[g][threadIdx.x];
            }
            p.y[row * p.columns + column] = narrow<element>(end > first ? total / f32(end - first) : 0.0f);
        }
        // The next sums take this place.
        __syncthreads();
    }
}
