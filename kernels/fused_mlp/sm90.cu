// Y = act(X·W1ᵀ + b1)·W2ᵀ + b2 + residual and its gated form on the tensor cores of Hopper, f16 and bf16, chunk of tokens by
// chunk as in sm80.cu. Operands that TMA cannot read go to the kernels for Ampere.

#include "gemm/sm90/tiles.cuh"
#include "fused_mlp/mma.cuh"
#include "tile/repack_operands.cuh"

extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) mlp_up_wgmma(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_tiles<UP_COLUMNS, UP_LAST, UP_STAGES, UP_IN_TURNS, MLP_GATED, ACTIVATION_FORM>(p, shared);
}

extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) mlp_down_wgmma(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_tiles<WGMMA_COLUMNS, WGMMA_LAST, WGMMA_STAGES, false, false, FLOOR>(p, shared);
}

// For outputs that cannot be moved 16 bytes at a time.
extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) mlp_down_wgmma_odd(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_gemm<WGMMA_COLUMNS, WGMMA_STAGES, false, FLOOR, true>(p, shared);
}
