// As skinny.cu, with what adapters add, in the same launch.

#include "gemm/sm90/skinny_lora.cuh"

extern "C" __global__ void __launch_bounds__(STREAM_THREADS + ADAPTER_THREADS, 1) linear_stream_adapted(const __grid_constant__ LinearAdaptedParams p) {
    extern __shared__ __align__(1024) char shared[];
    AdapterSpace &space = adapter_space(shared);
    // On its way while the cluster meets; which waits for it, but so does all of W, behind which it would take four times as long.
    i32 adapter = threadIdx.x < ADAPTER_FIRST ? -1 : adapter_of_lane(p);
    StreamRing ring(shared, 2 + PROJECT_WARPS, [](const StreamRing &) {});
    f32 sum[1][TOKENS / 2];
    StreamSums adapters{space};
    if (threadIdx.x < 256) {
        registers_take<152>();
        stream_products<false, STREAM_SPLIT, ACTIVATION_FORM>(p.gemm, p.tile_rows, ring, sum, adapters);
        stream_end<STREAM_SPLIT, ACTIVATION_FORM>(p.gemm, p.tile_rows, ring, true, sum[0], adapters);
    } else if (threadIdx.x < STREAM_THREADS) {
        registers_give<80>();
        if (threadIdx.x == STREAM_LOADER) {
            stream_weights<false, STREAM_SPLIT>(p.gemm, p.tile_rows, ring, cache_policy(false));
        } else if (threadIdx.x == 288) {
            stream_tokens<false, STREAM_SPLIT>(p.gemm, p.tile_rows, ring, false, Basis(p));
        } else if (threadIdx.x >= PROJECT_FIRST) {
            stream_project<STREAM_SPLIT>(p, space, ring);
        }
        __syncwarp();
        stream_end<STREAM_SPLIT, ACTIVATION_FORM>(p.gemm, p.tile_rows, ring, false, sum[0], adapters);
    } else {
        stream_adapters<STREAM_SPLIT>(p, space, adapter);
    }
}
