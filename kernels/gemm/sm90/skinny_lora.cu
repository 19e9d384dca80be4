// As skinny.cu, with what adapters add, in the same launch.

#include "gemm/sm90/skinny_lora.cuh"

extern "C" __global__ void __launch_bounds__(SKINNY_THREADS + ADAPTER_THREADS, 1) linear_skinny_lora(const __grid_constant__ LinearAdaptedParams p) {
    extern __shared__ __align__(1024) char shared[];
    AdapterSpace &space = adapter_space(shared);
    // On its way while the cluster meets; which waits for it, but so does all of W, behind which it would take four times as long.
    i32 adapter = threadIdx.x < ADAPTER_FIRST ? -1 : adapter_of_lane(p);
    SkinnyRing ring(shared, 2 + SHRINK_WARPS, [](const SkinnyRing &) {});
    f32 sum[1][TOKENS / 2];
    SkinnySums adapters{space};
    if (threadIdx.x < 256) {
        registers_take<152>();
        skinny_products<false, SKINNY_SPLIT, ACTIVATION_FORM>(p.gemm, p.tile_rows, ring, sum, adapters);
        skinny_end<SKINNY_SPLIT, ACTIVATION_FORM>(p.gemm, p.tile_rows, ring, true, sum[0], adapters);
    } else if (threadIdx.x < SKINNY_THREADS) {
        registers_give<80>();
        if (threadIdx.x == SKINNY_LOADER) {
            skinny_weights<false, SKINNY_SPLIT>(p.gemm, p.tile_rows, ring, cache_policy(false));
        } else if (threadIdx.x == 288) {
            skinny_tokens<false, SKINNY_SPLIT>(p.gemm, p.tile_rows, ring, false, Basis(p));
        } else if (threadIdx.x >= SHRINK_FIRST) {
            skinny_shrink<SKINNY_SPLIT>(p, space, ring);
        }
        __syncwarp();
        skinny_end<SKINNY_SPLIT, ACTIVATION_FORM>(p.gemm, p.tile_rows, ring, false, sum[0], adapters);
    } else {
        skinny_adapters<SKINNY_SPLIT>(p, space, adapter);
    }
}
