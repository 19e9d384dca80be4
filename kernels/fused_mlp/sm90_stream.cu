// Y = act(X·W1ᵀ + b1)·W2ᵀ + b2 + residual and its gated form for few tokens on Hopper, f16 and bf16, in one launch: every weight is
// streamed once, and W2 keeps coming while the intermediate goes from all blocks to all blocks through the second-level
// cache. Blocks wait for each other, so the host starts as many as fit at once. Where an operand starts at an odd place, the kernels
// for Ampere take over.

#include "tile/stream_gemm.cuh"
#include "fused_mlp/stream_params.cuh"
#include "fused_mlp/mma.cuh"
#include "tile/repack_operands.cuh"

// Of 128 tokens X is as long as W, and blocks had better share all of it.
constexpr bool EARLY = TOKENS < 128;

extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 1) mlp_stream(const __grid_constant__ MlpStreamParams p) {
    extern __shared__ __align__(1024) char shared[];
    u64 policy = cache_policy(false);
    StreamRing ring(shared, 2, [&](const StreamRing &ring) {
        if (EARLY) {
            stream_early<MLP_GATED, false>(p.up, p.up_rows, ring, policy);
        }
    });
    f32 sum[1][TOKENS / 2];
    if (threadIdx.x < 256) {
        registers_take<232>();
        f32 up[MLP_GATED ? 2 : 1][TOKENS / 2];
        stream_products<MLP_GATED, false, ACTIVATION_FORM>(p.up, p.up_rows, ring, up);
        // What thread 0 counts releases what the barrier has shown it.
        fence_proxy_async_global();
        named_barrier_sync(1, 256);
        if (threadIdx.x == 0) {
            count_up(p.ready);
        }
        stream_products<false, STREAM_SPLIT, FLOOR>(p.down, p.down_rows, ring, sum);
        stream_end<STREAM_SPLIT, FLOOR>(p.down, p.down_rows, ring, true, sum[0]);
    } else {
        registers_give<40>();
        if (threadIdx.x == STREAM_LOADER) {
            stream_weights<MLP_GATED, false>(p.up, p.up_rows, ring, policy, EARLY);
            stream_weights<false, STREAM_SPLIT>(p.down, p.down_rows, ring, policy);
        } else if (threadIdx.x == 288) {
            stream_tokens<MLP_GATED, false>(p.up, p.up_rows, ring, EARLY);
            // The whole intermediate, from all blocks.
            wait_for_count(p.ready, gridDim.x);
            fence_proxy_async_global();
            stream_tokens<false, STREAM_SPLIT>(p.down, p.down_rows, ring);
            // The last to pass leaves the counter as it was found.
            if (count_up(p.ready) == 2 * gridDim.x - 1) {
                *p.ready = 0;
            }
        }
        __syncwarp();
        stream_end<STREAM_SPLIT, FLOOR>(p.down, p.down_rows, ring, false, sum[0]);
    }
}
