// Outputs of a warpgroup of Hopper in whole runs of 32 whose sums lie in another order: W's rows were brought so that a thread's sums are of
// neighbouring outputs, and are stored 16 bytes at a time without an exchange. Of each 32 rows of W, place 8i + 2q + e has row
// 8q + 2i + e (see D in ptx/wgmma.cuh).
#pragma once

#include "ptx/copy.cuh"
#include "gemm/outputs.cuh"

// Eight neighbouring values in f32; zeros where there are none.
__device__ __forceinline__ void read_eight(const element *from, bool there, f32 (&values)[8]) {
    u32x4 found = there ? *(const u32x4 *)from : u32x4{};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        values[2 * i] = low_half(found.word[i]);
        values[2 * i + 1] = high_half(found.word[i]);
    }
}

// Eight neighbouring values of f32 in shared memory, from a multiple of 16 on.
__device__ __forceinline__ void shared_eight(u32 from, f32 (&values)[8]) {
    float4 low = shared_load_16_bytes(from), high = shared_load_16_bytes(from + 16);
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

// Eight values of the bias from a tile's column `at` on: from shared memory, as f32, or as the operand has them.
struct BiasNear {
    u32 from;

    __device__ __forceinline__ void read(u32 at, f32 (&values)[8]) const { shared_eight(from + at * 4, values); }
};

struct BiasFar {
    const element *from;

    __device__ __forceinline__ void read(u32 at, f32 (&values)[8]) const { read_eight(from + at, from != nullptr, values); }
};

// Writes RUNS runs of outputs of this warpgroup's 64 rows from `row` on. MORE: there is a residual, or, where ADDS, something in Y to add.
template <u32 FORM, u32 RUNS, bool MORE, bool ADDS, class Bias, u32 COUNT>
__device__ __forceinline__ void write_rows(const GemmParams &p, const Bias &bias, u64 row, u64 column, const f32 (&d)[COUNT]) {
    u32 thread = threadIdx.x % 128, quad = thread % 4;
    row += thread / 32 * 16 + thread % 32 / 4;
    i64 left = i64(p.columns - column);
    // From the first place of a row on, the runs are known distances.
    u64 start = row * p.y_stride + column + quad * 8;
    element *to[2] = {p.y + start, p.y + start + 8 * p.y_stride};
    bool there[2] = {row < p.rows, row + 8 < p.rows};
#pragma unroll
    for (u32 run = 0; run < RUNS; run++) {
        if (i64(run * 32) >= left) {
            break;
        }
        f32 found[2][8], residual[2][8];
        if constexpr (MORE) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                read_eight(to[half] + run * 32, there[half] && ADDS && p.adds, found[half]);
                read_eight(p.residual + start + half * 8 * p.y_stride + run * 32, there[half] && p.residual, residual[half]);
            }
        }
        f32 b[8];
        bias.read(run * 32 + quad * 8, b);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 packed[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                f32 value[2];
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    f32 sum = d[(run * 4 + i) * 4 + half * 2 + e];
                    if constexpr (MORE) {
                        sum += found[half][i * 2 + e];
                    }
                    value[e] = activate_form<FORM>(p, sum + b[i * 2 + e]);
                    if constexpr (MORE) {
                        value[e] += residual[half][i * 2 + e];
                    }
                }
                packed[i] = narrow2<element>(value[0], value[1]);
            }
            if (there[half]) {
                store_16(to[half] + run * 32, make_uint4(packed[0], packed[1], packed[2], packed[3]));
            }
        }
    }
}
