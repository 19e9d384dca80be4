// Y = act(X·Wᵀ + bias) + residual on the tensor cores of Hopper, rows of W as wgmma's M, f16 and bf16. Where an operand starts at an odd
// place, the kernels for Ampere take over.

#include "gemm/sm90/swap_ab.cuh"

#ifdef COMPILE_linear_swap_ab
extern "C" __global__ void __launch_bounds__(SWAP_AB_THREADS, 1) linear_swap_ab(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_swap_ab<SWAP_AB_TOKENS, WGMMA_STAGES, SWAP_AB_GROUPS, SWAP_AB_EACH, CLUSTER, ACTIVATION_FORM, false>(p, shared);
}
#endif

// For outputs that cannot be moved 16 bytes at a time.
#ifdef COMPILE_linear_swap_ab_unaligned
extern "C" __global__ void __launch_bounds__(SWAP_AB_THREADS, 1) linear_swap_ab_unaligned(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_swap_ab<SWAP_AB_TOKENS, WGMMA_STAGES, SWAP_AB_GROUPS, SWAP_AB_EACH, CLUSTER, ACTIVATION_FORM, true>(p, shared);
}
#endif
