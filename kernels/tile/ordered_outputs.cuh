// Outputs of a warp group of Hopper in whole runs of 32 whose sums lie in another order: W's rows were brought so that a thread's sums are of
// neighbouring outputs, and are stored 16 bytes at a time without an exchange. Of each 32 rows of W, place 8i + 2q + e has row
// 8q + 2i + e (see D in ptx/wgmma.cuh).
#pragma once

#include "tile/outputs.cuh"

// Eight neighbouring values in f32; zeros where there are none.
__device__ __forceinline__ void read_eight(const element *from, bool there, f32 (&values)[8]) {
    u32x4 found = there ? *(const u32x4 *)from : u32x4{};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        values[2 * i] = low_half(found.word[i]);
        values[2 * i + 1] = high_half(found.word[i]);
    }
}

// Eight values of the bias from a tile's column `at` on: from shared memory, as f32, or as the operand has them.
struct BiasNear {
    const f32 *from;

    __device__ __forceinline__ void read(u32 at, f32 (&values)[8]) const {
        float4 both[2] = {*(const float4 *)(from + at), *(const float4 *)(from + at + 4)};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            values[i] = ((const f32 *)both)[i];
        }
    }
};

struct BiasFar {
    const element *from;

    __device__ __forceinline__ void read(u32 at, f32 (&values)[8]) const { read_eight(from + at, from != nullptr, values); }
};

// Writes RUNS runs of outputs of this warp group's 64 rows from `row` on. MORE: there is a residual, or, where ADDS, something in Y to add.
template <u32 FORM, u32 RUNS, bool MORE, bool ADDS, class Bias, u32 COUNT>
__device__ __forceinline__ void write_rows(const GemmParams &p, const Bias &bias, u64 row, u64 column, const f32 (&d)[COUNT]) {
    u32 thread = threadIdx.x % 128, quad = thread % 4;
    row += thread / 32 * 16 + thread % 32 / 4;
    i64 left = i64(p.columns - column);
    u64 start = row * p.y_stride + column + quad * 8;
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
        if (run * 32 >= left) {
            break;
        }
        f32 found[2][8], residual[2][8];
        if constexpr (MORE) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u64 at = start + half * 8 * p.y_stride + run * 32;
                bool there = row + half * 8 < p.rows;
                read_eight(p.y + at, there && ADDS && p.adds, found[half]);
                read_eight(p.residual + at, there && p.residual, residual[half]);
            }
        }
        f32 b[8];
        bias.read(run * 32 + quad * 8, b);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32x4 packed;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                f32 value[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    f32 sum = d[(run * 4 + i) * 4 + half * 2 + e];
                    if constexpr (MORE) {
                        sum += found[half][i * 2 + e];
                    }
                    value[e] = activate_form<FORM>(p, sum + b[i * 2 + e]);
                    if constexpr (MORE) {
                        value[e] += residual[half][i * 2 + e];
                    }
                }
                packed.word[i] = narrow2<element>(value[0], value[1]);
            }
            if (row + half * 8 < p.rows) {
                *(u32x4 *)(p.y + start + half * 8 * p.y_stride + run * 32) = packed;
            }
        }
    }
}
