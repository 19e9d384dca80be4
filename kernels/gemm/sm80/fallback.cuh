// The product on the tensor cores of Ampere and later where rows are not on multiples of 16 bytes; beside the kernels for Hopper it takes
// over where an operand starts at an odd place, which only the launch knows. The number in a kernel's name is how many bytes it moves at once.
#pragma once

#include "gemm/sm80/tile.cuh"

extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) linear_mma_4(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<4, false>(p, shared);
}

extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) linear_mma_2(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<2, false>(p, shared);
}
