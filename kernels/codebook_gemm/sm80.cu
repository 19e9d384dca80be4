// The codebook GEMM in S2LC's form by mma.sync, for Ampere and later: see tile.cuh.
//
// Blocks cannot exchange anything within a launch, so that each one that shares a tile computes x·V anew; the host lets few share.

#include "codebook_gemm/expand.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) codebook_gemm_sm80(const TileParams p) {
    extern __shared__ __align__(128) u8 dynamic[];
    __shared__ Tile tile;
    static_assert(sizeof(Space) == SHARED_BYTES, "the host's size is another");
    Space &space = *reinterpret_cast<Space *>(dynamic);
    u32 index = blockIdx.x / p.blocks, member = blockIdx.x % p.blocks;
    u32 groups = u32((p.output.d + GROUP - 1) / GROUP), share = (groups + p.blocks - 1) / p.blocks;
    u32 first = member * share, end = first + share < groups ? first + share : groups;
    if (first >= end) {
        return;
    }
    if (!p.accumulate) {
        clear_rows(p, index, u64(first) * GROUP, u64(end) * GROUP < p.output.d ? u64(end) * GROUP : p.output.d);
    }
    read_tile(p, index, tile);
    __syncthreads();
    if (tile.rows == 0) {
        return;
    }
    fetch_v(p, tile.bases[0], 0, p.input.d, space.v[0]);
    Pieces pieces;
    pieces.start(p, tile, first, end);
    fill_tables(p, tile, space);
    f32 sum[RANK / 8][4], h[DEPTHS];
    shrink(p, tile, space, 0, p.input.d, sum);
    share_sums(space, sum);
    sum_parts(space.part, WARPS, h);
    apply_core(p, tile, space, h);
    pieces.decode_next(p, tile, space);
    pieces.fetch_y(p, tile);
    pieces.run(p, tile, space);
}
