// The adapters' part of `linear`: what is left of them in the workspace, and their share of an output.
#pragma once

#include "tile/codes.cuh"
#include "gemm/linear_params.cuh"

// Leaves s·h·Q of each token that has an adapter in the workspace. A block takes a token at a time.
__device__ __forceinline__ void shrink_tokens(const LinearParams &p, Shrinking &space) {
    for (u64 token = blockIdx.x; token < p.rows; token += gridDim.x) {
        i32 adapter = p.token_adapter[token];
        if (adapter < 0) {
            continue;
        }
        shrink(p.x + token * p.x_stride, p.input, p.core, p.scaling[adapter], adapter, space);
        for (u32 j = threadIdx.x; j < p.input.rank; j += ROW_SHRINK_THREADS) {
            p.shrunk[token * p.input.rank + j] = space.g[j];
        }
        __syncthreads();
    }
}

// The adapter's share of y[row, column]; nothing where `adapter` is negative.
__device__ __forceinline__ f32 delta_of(i32 adapter, const f32 *shrunk, const FactorParams &output, u64 row, u64 column) {
    f32 delta = 0.0f;
    if (adapter >= 0) {
        for (u32 r = 0; r < output.rank; r++) {
            delta += shrunk[row * output.rank + r] * element_of(column_of(output, adapter, r), column);
        }
    }
    return delta;
}
