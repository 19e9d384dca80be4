// Y = act(X·Wᵀ + bias) + residual on the tensor cores of Hopper, rows of W as wgmma's M, f16 and bf16. Where an operand starts at an odd
// place, the kernels for Ampere take over.

#include "gemm/sm90/swap_ab.cuh"

#ifdef COMPILE_linear_across
extern "C" __global__ void __launch_bounds__(ACROSS_THREADS, 1) linear_across(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_across<ACROSS_TOKENS, WGMMA_STAGES, ACROSS_GROUPS, ACROSS_EACH, CLUSTER, ACTIVATION_FORM, false>(p, shared);
}
#endif

// For outputs that cannot be moved 16 bytes at a time.
#ifdef COMPILE_linear_across_odd
extern "C" __global__ void __launch_bounds__(ACROSS_THREADS, 1) linear_across_odd(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_across<ACROSS_TOKENS, WGMMA_STAGES, ACROSS_GROUPS, ACROSS_EACH, CLUSTER, ACTIVATION_FORM, true>(p, shared);
}
#endif
