// Rows that do not start on multiples of 16 bytes, copied to where they do.
#pragma once

#include "ptx/types.cuh"
#include "linear/repack_params.cuh"

constexpr int REPACK_THREADS = 256;

// to[rows, to_stride] = from[rows, depth], with zeros up to the stride, which is even. Each thread writes a pair.
extern "C" __global__ void __launch_bounds__(REPACK_THREADS) linear_repack(const RepackParams p) {
    u64 pairs = p.to_stride / 2, all = p.rows * pairs;
    for (u64 pair = u64(blockIdx.x) * REPACK_THREADS + threadIdx.x; pair < all; pair += u64(gridDim.x) * REPACK_THREADS) {
        u64 row = pair / pairs, k = (pair - row * pairs) * 2;
        const element *from = p.from + row * p.depth + k;
        u32 low = k < p.depth ? from[0].bits : 0, high = k + 1 < p.depth ? from[1].bits : 0;
        *(u32 *)(p.to + row * p.to_stride + k) = low | high << 16;
    }
}
