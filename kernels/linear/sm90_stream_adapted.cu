// As sm90_stream.cu, with what adapters add, in the same launch. The blocks that compute h are waited for by all others, so that the
// host starts as many as fit at once.

#include "tile/stream_adapters.cuh"
#include "linear/mma.cuh"

extern "C" __global__ void __launch_bounds__(STREAM_THREADS + ADAPTER_THREADS, 1) linear_stream_adapted(const __grid_constant__ LinearAdaptedParams p) {
    extern __shared__ __align__(1024) char shared[];
    AdapterSpace &space = adapter_space(shared);
    StreamRing ring(shared);
    f32 sum[1][TOKENS / 2];
    StreamSums adapters{space};
    if (threadIdx.x < 256) {
        registers_take<168>();
        stream_products<false, STREAM_SPLIT, ACTIVATION_FORM>(p.gemm, p.tile_rows, ring, sum, adapters);
        stream_end<STREAM_SPLIT, ACTIVATION_FORM>(p.gemm, p.tile_rows, ring, true, sum[0], adapters);
        return;
    }
    if (threadIdx.x < STREAM_THREADS) {
        registers_give<40>();
        if (threadIdx.x == 256) {
            stream_weights<false, STREAM_SPLIT>(p.gemm, p.tile_rows, ring);
        } else if (threadIdx.x == 288) {
            stream_tokens<false, STREAM_SPLIT>(p.gemm, p.tile_rows, ring);
        }
        __syncwarp();
    } else {
        stream_adapters<STREAM_SPLIT>(p, space);
    }
    stream_end<STREAM_SPLIT, ACTIVATION_FORM>(p.gemm, p.tile_rows, ring, false, sum[0], adapters);
}
