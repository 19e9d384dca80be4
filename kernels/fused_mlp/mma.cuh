// The products of the MLP on the tensor cores of Ampere and later where rows are not on multiples of 16 bytes. The number in a
// kernel's name is how many bytes it moves at once.
#pragma once

#include "gemm/sm80/tile.cuh"

extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) mlp_mma_4(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<4, false>(p, shared);
}

extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) mlp_mma_2(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<2, false>(p, shared);
}

#if MLP_GATED
extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) mlp_gated_mma_4(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<4, true>(p, shared);
}

extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) mlp_gated_mma_2(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<2, true>(p, shared);
}
#endif
