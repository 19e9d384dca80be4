// Y = act(X·Wᵀ + bias) + residual for few rows on Hopper, f16 and bf16: W is streamed once. Where an operand starts at an odd
// place, the kernels for Ampere take over.

#include "tile/stream_gemm.cuh"
#include "linear/stream_params.cuh"
#include "linear/mma.cuh"
#include "tile/repack_operands.cuh"

template <u32 CUT> __device__ __forceinline__ void stream(const LinearStreamParams &p, char *shared) {
    u64 policy = cache_policy(p.keeps);
    StreamRing ring(shared, 2, [&](const StreamRing &ring) { stream_early<false, CUT>(p.gemm, p.tile_rows, ring, policy); });
    f32 sum[1][TOKENS / 2];
    if (threadIdx.x < 256) {
        registers_take<232>();
        stream_products<false, CUT, ACTIVATION_FORM>(p.gemm, p.tile_rows, ring, sum);
        stream_end<CUT, ACTIVATION_FORM>(p.gemm, p.tile_rows, ring, true, sum[0]);
    } else {
        registers_give<40>();
        if (threadIdx.x == STREAM_LOADER) {
            stream_weights<false, CUT>(p.gemm, p.tile_rows, ring, policy, true);
        } else if (threadIdx.x == 288) {
            stream_tokens<false, CUT>(p.gemm, p.tile_rows, ring, true);
        }
        __syncwarp();
        stream_end<CUT, ACTIVATION_FORM>(p.gemm, p.tile_rows, ring, false, sum[0]);
    }
}

extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 1) linear_stream(const __grid_constant__ LinearStreamParams p) {
    extern __shared__ __align__(1024) char shared[];
    stream<STREAM_SPLIT ? BY_BLOCKS : WHOLE>(p, shared);
}

// Where a block has one tile, of at most 64 rows of W: a warp group alone would multiply it.
#if !STREAM_SPLIT
extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 1) linear_stream_groups(const __grid_constant__ LinearStreamParams p) {
    extern __shared__ __align__(1024) char shared[];
    stream<BY_GROUPS>(p, shared);
}
#endif
