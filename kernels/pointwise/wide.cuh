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

// Whole lines as words: a register holds two elements of 16 bits.
struct alignas(16) Words {
    u32 words[4];
};

// What a thread holds of a row: every WIDE_THREADS-th line, and zeros for those that are not there.
template <int COUNT> __device__ __forceinline__ void load_words(Words (&to)[COUNT], const element *row, u32 across) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        u32 number = i * WIDE_THREADS + threadIdx.x;
        to[i] = number < across ? reinterpret_cast<const Words *>(row)[number] : Words{};
    }
}

// Rows of at most COUNT · WIDE_THREADS whole lines, all operands on whole lines. The next row is on its way while one is worked on.
template <int COUNT> __device__ __forceinline__ void norm_wide(const PointwiseParams &p) {
    __shared__ f32 scratch[2][WIDE_THREADS / 32];
    u32 across = u32(p.columns) / EACH, turn = 0;
    u64 row = blockIdx.x;
    grid_launch_next();
    grid_wait();
    Words x[COUNT] = {};
    if (row < p.rows) {
        load_words(x, p.x + row * p.columns, across);
    }
#pragma unroll 1
    for (; row < p.rows; row += gridDim.x) {
        // The same for every row, so from the first-level cache; asked for before the first row has come, so that one wait is for both.
        Words weight[COUNT] = {}, bias[COUNT] = {};
        if (p.weight) {
            load_words(weight, p.weight, across);
        }
        if (p.bias) {
            load_words(bias, p.bias, across);
        }
        f32 z[COUNT][EACH];
        f32 sum = 0.0f;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            u32 number = i * WIDE_THREADS + threadIdx.x;
            Words residual = p.residual && number < across ? reinterpret_cast<const Words *>(p.residual + row * p.columns)[number] : Words{};
#pragma unroll
            for (u32 e = 0; e < EACH; e++) {
                z[i][e] = Packed<element>::get(x[i], e) + Packed<element>::get(residual, e);
                sum += z[i][e];
            }
        }
        u64 ahead = row + gridDim.x;
        if (ahead < p.rows) {
            load_words(x, p.x + ahead * p.columns, across);
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
        f32 factor = p.kind == L2_NORMALISE ? 1.0f / max_or_nan(sqrtf(squares), 1e-12f) : 1.0f / sqrtf(squares / f32(p.columns) + p.eps);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            u32 number = i * WIDE_THREADS + threadIdx.x;
            if (number < across) {
#pragma unroll
                for (u32 e = 0; e < EACH; e++) {
                    f32 scale = p.weight ? Packed<element>::get(weight[i], e) : 1.0f;
                    z[i][e] = z[i][e] * factor * scale + Packed<element>::get(bias[i], e);
                }
                Words line;
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    line.words[w] = Packed<element>::word(z[i], w);
                }
                reinterpret_cast<Words *>(p.y + row * p.columns)[number] = line;
            }
        }
    }
}
