// Y = act(X·Wᵀ + bias) + residual on the tensor cores of Hopper, f16 and bf16. TMA wants every row on a multiple of 16 bytes,
// which is only known where an operand's place is: for all else there are the kernels for Ampere.

#include "tile/wgmma_gemm.cuh"
#include "tile/mma_gemm.cuh"

extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) linear_wgmma(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_gemm<false, ACTIVATION>(p, shared);
}

extern "C" __global__ void __launch_bounds__(MMA_THREADS) linear_mma_4(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<4, false>(p, shared, Nothing{});
}

extern "C" __global__ void __launch_bounds__(MMA_THREADS) linear_mma_2(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<2, false>(p, shared, Nothing{});
}
