// Y = act(X·W1ᵀ + b1)·W2ᵀ + b2 + residual and its gated form on the tensor cores of Ampere and later, f16 and bf16, every size.
// The host walks over chunks of tokens: a first product leaves a chunk's intermediate in the workspace, where the second-level
// cache still has it when the second product reads it.

#include "fused_mlp/mma.cuh"
#include "tile/repack_operands.cuh"

extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) mlp_mma_16(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<16, false>(p, shared);
}

// Rows on multiples of 16 bytes whose last piece is shorter: what follows in memory is no element of K.
extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) mlp_mma_ragged(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<16, false, true>(p, shared);
}

#if MLP_GATED
extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) mlp_gated_mma_ragged(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<16, true, true>(p, shared);
}

extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) mlp_gated_mma_16(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<16, true>(p, shared);
}
#endif
