// Several products of few rows on Hopper in one launch, as gemm/sm90/skinny.cu computes one: each has some clusters of the launch, and these stream its W.

#include "gemm/sm90/skinny.cuh"
#include "gemm/skinny_list_params.cuh"

// What clusters have a product, and the rows of its tiles.
struct ListShare {
    u32 tile_rows, first, clusters;

    __device__ __forceinline__ operator u32() const { return tile_rows; }
};

__device__ __forceinline__ u64 cluster_of(ListShare share) { return blockIdx.x / SKINNY_CLUSTER - share.first; }
__device__ __forceinline__ u64 clusters_of(ListShare share) { return share.clusters; }

extern "C" __global__ void __launch_bounds__(SKINNY_THREADS, 1) gemm_skinny_list(const __grid_constant__ SkinnyListParams p) {
    extern __shared__ __align__(1024) char shared[];
    u32 cluster = blockIdx.x / SKINNY_CLUSTER, number = 0;
#pragma unroll
    for (u32 i = 1; i < LIST_PROBLEMS; i++) {
        number += cluster >= p.problems[i].first;
    }
    const SkinnyProblem &own = p.problems[number];
    skinny_gemm<false, WHOLE, ACTIVATION_FORM>(own.gemm, ListShare{own.tile_rows, own.first, own.clusters}, cache_policy(0), p.ahead, shared);
}
