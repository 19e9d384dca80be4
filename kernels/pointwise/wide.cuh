// Norms of long rows: a block a row, which stays in registers, so that memory is read once.
#pragma once

#include "ptx/grid.cuh"
#include "pointwise/lines.cuh"
#include "pointwise/norm.cuh"

constexpr int WIDE_THREADS = 256;

// The sum of every thread's value, given to all, in an order that is always the same. Calls in a row alternate between two
// `scratch`, so that one barrier each is enough: whoever writes one again has passed the barrier of the other.
__device__ __forceinline__ f32 wide_sum(f32 value, f32 (&scratch)[WIDE_THREADS / 32]) {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) {
        scratch[threadIdx.x / 32] = value;
    }
    __syncthreads();
    f32 sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WIDE_THREADS / 32; warp++) {
        sum += scratch[warp];
    }
    return sum;
}

// Rows of at most COUNT · WIDE_THREADS whole lines, all operands on whole lines.
template <int COUNT> __device__ __forceinline__ void norm_wide(const PointwiseParams &p) {
    __shared__ f32 scratch[2][WIDE_THREADS / 32];
    u32 across = u32(p.columns) / EACH, turn = 0;
    grid_launch_next();
    grid_wait();
#pragma unroll 1
    for (u64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
        Line x[COUNT] = {}, residual[COUNT] = {};
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            u32 number = i * WIDE_THREADS + threadIdx.x;
            if (number < across) {
                x[i] = line_of(p.x, row * across + number);
                if (p.residual) {
                    residual[i] = line_of(p.residual, row * across + number);
                }
            }
        }
        f32 z[COUNT][EACH];
        f32 sum = 0.0f;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
#pragma unroll
            for (u32 e = 0; e < EACH; e++) {
                z[i][e] = widen(x[i].values[e]) + widen(residual[i].values[e]);
                sum += z[i][e];
            }
        }
        f32 mean = 0.0f;
        if (p.kind == LAYER_NORM) {
            mean = wide_sum(sum, scratch[turn]) / f32(p.columns);
            turn ^= 1;
        }
        f32 squares = 0.0f;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            bool there = i * WIDE_THREADS + threadIdx.x < across;
#pragma unroll
            for (u32 e = 0; e < EACH; e++) {
                z[i][e] -= mean;
                squares += there ? z[i][e] * z[i][e] : 0.0f;
            }
        }
        squares = wide_sum(squares, scratch[turn]);
        turn ^= 1;
        f32 factor = p.kind == L2_NORMALISE ? 1.0f / fmaxf(sqrtf(squares), 1e-12f) : 1.0f / sqrtf(squares / f32(p.columns) + p.eps);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            u32 number = i * WIDE_THREADS + threadIdx.x;
            if (number < across) {
                // The same for every row: from the caches.
                Line weight = p.weight ? line_of(p.weight, number) : Line{};
                Line bias = p.bias ? line_of(p.bias, number) : Line{};
                Line line;
#pragma unroll
                for (u32 e = 0; e < EACH; e++) {
                    line.values[e] = narrow<element>(z[i][e] * factor * (p.weight ? widen(weight.values[e]) : 1.0f) + widen(bias.values[e]));
                }
                reinterpret_cast<Line *>(p.y)[row * across + number] = line;
            }
        }
    }
}
