// The codebook GEMM in S2LC's form by mma.sync, for Ampere and later: see tile.cuh.
//
// Blocks cannot exchange anything within a launch, so that each one that shares a tile computes x·V anew; the host lets few share.

#include "codebook_gemm/expand.cuh"

constexpr u32 HELD = 2;

template <bool ALIGNED> __device__ __forceinline__ void codebook_gemm(const TileParams &p) {
    extern __shared__ __align__(1024) u8 dynamic[];
    __shared__ Tile tile;
    static_assert(sizeof(Space) == SHARED_BYTES, "the host's size is another");
    Space &space = *reinterpret_cast<Space *>(dynamic);
    u32 index = blockIdx.x / p.blocks, member = blockIdx.x % p.blocks;
    u32 groups = u32((p.output.d + GROUP - 1) / GROUP), share = (groups + p.blocks - 1) / p.blocks;
    u32 first = member * share, end = first + share < groups ? first + share : groups;
    if (first >= end) {
        return;
    }
    read_tile(p, index, first, end, HELD, p.input.d, tile);
    __syncthreads();
    if (!p.accumulate) {
        clear_rows(p, tile, index, u64(first) * GROUP, u64(end) * GROUP < p.output.d ? u64(end) * GROUP : p.output.d);
    }
    if (tile.rows == 0) {
        return;
    }
    fetch_v<ALIGNED>(p, tile.bases[0], 0, p.input.d, space.v[0]);
    Rows rows(p, tile);
    Inputs inputs;
    inputs.fetch<ALIGNED>(p, rows, 0, p.input.d);
    f32 scaling = fetch_scaling(p, tile);
    Record record;
    record.fetch(p.output, tile, threadIdx.x / 32);
    Pieces<ALIGNED, HELD> pieces;
    pieces.start(p, tile, space, first);
    fill_tables(p.output, tile, space, record);
    cp_async_wait<0>();
    __syncthreads();
    u32 buffer = shrink<ALIGNED>(p, tile, rows, inputs, space, 0, p.input.d);
    f32 h[DEPTHS];
    sum_parts<WARPS>(parts_in(space, buffer), h);
    apply_core(p, tile, space, h, scaling);
    pieces.fetch_y(p, tile, space, buffer ^ 1);
    pieces.run(p, tile, space, buffer ^ 1, false, [] {});
}

#ifdef COMPILE_codebook_gemm_sm80
extern "C" __global__ void __launch_bounds__(THREADS, 1) codebook_gemm_sm80(const TileParams p) { codebook_gemm<true>(p); }
#endif

#ifdef COMPILE_codebook_gemm_sm80_any
extern "C" __global__ void __launch_bounds__(THREADS, 1) codebook_gemm_sm80_any(const TileParams p) { codebook_gemm<false>(p); }
#endif

// Several slices: each row of the grid is one.
#ifdef COMPILE_codebook_gemm_sm80_grouped
extern "C" __global__ void __launch_bounds__(THREADS, 1) codebook_gemm_sm80_grouped(const __grid_constant__ TileGroup p) { codebook_gemm<true>(slice_of(p, blockIdx.y)); }
#endif
