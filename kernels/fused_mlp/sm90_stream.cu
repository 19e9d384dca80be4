// Y = act(X·W1ᵀ + b1)·W2ᵀ + b2 + residual and its gated form for few tokens on Hopper, f16 and bf16: two launches, each of which streams
// its weight once. The second asks for its first stages of W2 on every multiprocessor where the first has ended, before the intermediate is
// there. Where an operand starts at an odd place, the kernels for Ampere take over.

#include "gemm/sm90/skinny.cuh"
#include "gemm/skinny_params.cuh"
#include "fused_mlp/mma.cuh"
#include "tile/repack_operands.cuh"

extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 1) mlp_up_stream(const __grid_constant__ StreamParams p) {
    extern __shared__ __align__(1024) char shared[];
    stream_gemm<MLP_GATED, WHOLE, ACTIVATION_FORM>(p.gemm, p.tile_rows, cache_policy(p.keeps), p.ahead, shared);
}

extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 1) mlp_down_stream(const __grid_constant__ StreamParams p) {
    extern __shared__ __align__(1024) char shared[];
    stream_gemm<false, STREAM_SPLIT ? BY_BLOCKS : WHOLE, FLOOR>(p.gemm, p.tile_rows, cache_policy(p.keeps), p.ahead, shared);
}
