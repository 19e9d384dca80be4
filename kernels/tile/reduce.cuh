// Sums over a block, always in the same order, so that results are bitwise the same from run to run.
#pragma once

#include "ptx/types.cuh"

// The sum of every thread's `value`, given to all. `scratch` holds THREADS numbers, THREADS is a power of two.
template <int THREADS> __device__ __forceinline__ f32 block_sum(f32 value, f32 *scratch) {
    static_assert((THREADS & (THREADS - 1)) == 0, "halved until one is left");
    u32 thread = threadIdx.x;
    scratch[thread] = value;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (thread < half) {
            scratch[thread] += scratch[thread + half];
        }
        __syncthreads();
    }
    f32 sum = scratch[0];
    // The next use must not overwrite what others still read.
    __syncthreads();
    return sum;
}
