// What adapters add to a product's sums, from what the first kernel of codebook_gemm/runs_sm80.cu leaves for a rank of 16 at most: each
// token's h, and each adapter's output factor as fragments of mma in the order of the sums.
#pragma once

#include "ptx/mma.cuh"
#include "tile/adapter_params.cuh"

// Of a lane's two rows of its warp's 16, 8 apart: the adapter (-1 for none), h as mma's A, and what h was divided by.
struct AdapterRows {
    i32 adapter[2];
    u32 a[4];
    f32 scale[2];

    // Rows from `row` on, of `rows`, of one slice.
    __device__ __forceinline__ void fetch(const AdapterSums &sums, const AdapterSlice &slice, u64 row, u64 rows) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u64 own = row + half * 8;
            adapter[half] = -1;
            uint2 pair = make_uint2(0, 0);
            scale[half] = 0.0f;
            if (own < rows) {
                // What lies there of a token without an adapter reaches no sums.
                adapter[half] = sums.token_adapter[own];
                pair = *reinterpret_cast<const uint2 *>(slice.projected + own * 16 + threadIdx.x % 4 * 4);
                scale[half] = slice.token_scale[own];
            }
            a[half] = pair.x;
            a[half + 2] = pair.y;
        }
    }

    // Adds to the sums of `left` columns from the slice's `column` on, a multiple of 32. Lane t of four has columns 8t to 8t + 7 of each 32, two a
    // fragment, as d[run · 16 + fragment · 4 + half · 2 ...].
    template <u32 COUNT> __device__ __forceinline__ void add(const AdapterSlice &slice, u32 groups, u64 column, i64 left, f32 (&d)[COUNT]) const {
        u32 lane = threadIdx.x % 32, rest[2] = {__ballot_sync(0xffffffffu, adapter[0] >= 0), __ballot_sync(0xffffffffu, adapter[1] >= 0)};
        // Once for each adapter that the 16 rows have: mostly one.
#pragma unroll 1
        while (rest[0] | rest[1]) {
            i32 low = __shfl_sync(0xffffffffu, adapter[0], rest[0] ? __ffs(rest[0]) - 1 : 0);
            i32 high = __shfl_sync(0xffffffffu, adapter[1], rest[1] ? __ffs(rest[1]) - 1 : 0);
            i32 which = rest[0] ? low : high;
            bool mine[2] = {adapter[0] == which, adapter[1] == which};
            rest[0] &= ~__ballot_sync(0xffffffffu, mine[0]);
            rest[1] &= ~__ballot_sync(0xffffffffu, mine[1]);
            f32 table = slice.table_scale[which], factor[2] = {scale[0] * table, scale[1] * table};
            const uint4 *from = reinterpret_cast<const uint4 *>(slice.fragments) + (u64(u32(which)) * groups + column / 32) * 64 + lane;
            uint4 ahead[2] = {};
            if (left > 0) {
                ahead[0] = from[0];
                ahead[1] = from[32];
            }
#pragma unroll
            for (u32 run = 0; run < COUNT / 16; run++) {
                if (i64(run * 32) >= left) {
                    break;
                }
                uint4 one = ahead[0], two = ahead[1];
                if (run + 1 < COUNT / 16 && i64(run * 32 + 32) < left) {
                    ahead[0] = from[run * 64 + 64];
                    ahead[1] = from[run * 64 + 96];
                }
                const u32 b[4][2] = {{one.x, one.y}, {one.z, one.w}, {two.x, two.y}, {two.z, two.w}};
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    f32 sum[4] = {};
                    mma_m16n8k16<element>(sum, a, b[i]);
#pragma unroll
                    for (u32 e = 0; e < 4; e++) {
                        // Chosen, not multiplied by zero: another adapter's values need not be finite.
                        if (mine[e / 2]) {
                            d[run * 16 + i * 4 + e] += factor[e / 2] * sum[e];
                        }
                    }
                }
            }
        }
    }
};
