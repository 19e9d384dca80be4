// Y = act(X·Wᵀ + bias) + residual for few rows on Hopper, f16 and bf16: W is streamed once. Where an operand starts at an odd
// place, the kernels for Ampere take over.

#include "gemm/sm90/skinny.cuh"
#include "gemm/skinny_params.cuh"
#include "gemm/sm80/fallback.cuh"
#include "tile/repack_operands.cuh"

extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 1) linear_stream(const __grid_constant__ StreamParams p) {
    extern __shared__ __align__(1024) char shared[];
    stream_gemm<false, STREAM_SPLIT ? BY_BLOCKS : WHOLE, ACTIVATION_FORM>(p.gemm, p.tile_rows, cache_policy(p.keeps), p.ahead, shared);
}

// Where a block has one tile, of at most 64 rows of W: a warp group alone would multiply it.
#if !STREAM_SPLIT
extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 1) linear_stream_groups(const __grid_constant__ StreamParams p) {
    extern __shared__ __align__(1024) char shared[];
    stream_gemm<false, BY_GROUPS, ACTIVATION_FORM>(p.gemm, p.tile_rows, cache_policy(p.keeps), p.ahead, shared);
}
#endif
