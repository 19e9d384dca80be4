// Y = act(X·Wᵀ + bias) + residual, or act(X·Gᵀ) ⊙ (X·Wᵀ + bias) + residual, for few rows on Hopper, f16 and bf16: W is streamed once. Its first
// stages are asked for on every SM where the launch before has ended. Where an operand starts at an odd place, the kernels for Ampere
// take over.

#include "gemm/sm90/skinny.cuh"
#include "gemm/skinny_params.cuh"

#ifdef COMPILE_gemm_skinny
extern "C" __global__ void __launch_bounds__(SKINNY_THREADS, 1) gemm_skinny(const __grid_constant__ SkinnyParams p) {
    extern __shared__ __align__(1024) char shared[];
    skinny_gemm<SKINNY_GATED, SKINNY_SPLIT ? BY_BLOCKS : WHOLE, ACTIVATION_FORM>(p.gemm, p.tile_rows, cache_policy(p.keeps), p.ahead, shared);
}
#endif

// Where a block has one tile, of at most 64 rows of W: a warpgroup alone would multiply it.
#ifdef COMPILE_gemm_skinny_groups
extern "C" __global__ void __launch_bounds__(SKINNY_THREADS, 1) gemm_skinny_groups(const __grid_constant__ SkinnyParams p) {
    extern __shared__ __align__(1024) char shared[];
    skinny_gemm<false, BY_GROUPS, ACTIVATION_FORM>(p.gemm, p.tile_rows, cache_policy(p.keeps), p.ahead, shared);
}
#endif
