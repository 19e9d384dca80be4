// Tiles of X·Wᵀ the other way round: rows of W are wgmma's M, tokens its N, of which there are any eights. Every block has one tile, of a
// height that divides the rows that there are, where tiles of 128 would be partly empty.
//
// The blocks of a cluster share the tile of outputs: each takes a part of K and finishes some of the tile's tokens, adding up in the order of
// the parts.
#pragma once

#include "gemm/sm90/split_k_cluster.cuh"

// Of one map, or of another for a last box that is not whole: rows that are none take longer than others.
struct BoxOf {
    bool whole;
    u32 bytes;

    __device__ __forceinline__ BoxOf(u32 first, u32 height, u32 there) {
        whole = first + height <= there;
        bytes = (whole ? height : ((there - 1) % height + 8) / 8 * 8) * PANEL;
    }

    __device__ __forceinline__ void load(const tensor_map &all, const tensor_map &last, char *to, u64 *full, i32 k, i32 first, CacheHint hint) const {
        if (whole) {
            tma_load_2d_by(hint, to, &all, full, k, first);
        } else {
            tma_load_2d_by(hint, to, &last, full, k, first);
        }
    }
};

// The sums of a block's tile, token by token. A token has four more: those that a warp leaves at once are then in other banks.
template <u32 OUTPUTS> struct TokenSums {
    static constexpr u32 LINE = OUTPUTS + 4;

    f32 *sums;

    // By all threads of a warpgroup, of the outputs from `first` on.
    template <u32 TOKENS> __device__ __forceinline__ void leave(u32 first, const f32 (&d)[TOKENS / 2]) const {
        f32 *line = sums + threadIdx.x % 4 * 2 * LINE + first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (u32 i = 0; i < TOKENS / 8; i++) {
            line[i * 8 * LINE] = d[i * 4];
            line[i * 8 * LINE + LINE] = d[i * 4 + 1];
            line[i * 8 * LINE + 8] = d[i * 4 + 2];
            line[i * 8 * LINE + LINE + 8] = d[i * 4 + 3];
        }
    }
};

// Y = act(X·Wᵀ + bias) + residual. Of GROUPS warpgroups each has EACH times 64 outputs of a tile.
template <u32 TOKENS, u32 RING, u32 GROUPS, u32 EACH, u32 PARTS, u32 FORM, bool UNALIGNED> __device__ __forceinline__ void wgmma_swap_ab(const GemmParams &p, char *shared) {
    constexpr u32 OUTPUTS = GROUPS * EACH * 64;
    static_assert(PARTS == CLUSTER, "they share the tile");
    WgmmaRing<TOKENS, RING, 1, OUTPUTS> ring(shared);
    TokenSums<OUTPUTS> sums{(f32 *)ring.tiles};
    static_assert(TOKENS * TokenSums<OUTPUTS>::LINE * 4 <= RING * ring.STAGE, "sums lie where stages were");
    // Said so that the compiler knows that a warp has one.
    u32 warp = shuffle_from(threadIdx.x / 32, 0), part = PARTS == 1 ? 0 : shuffle_from(cluster_rank(), 0);
    if (threadIdx.x == GROUPS * 128) {
        tma_prefetch_map(&p.x_map);
        tma_prefetch_map(&p.w_map);
        for (u32 i = 0; i < RING; i++) {
            mbarrier_init(&ring.full[i], 1);
            mbarrier_init(&ring.empty[i], GROUPS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    wgmma_await(p);
    // Neighbours take tiles of the same rows of W: these are then in L2.
    u32 down = (u32(p.rows) + TOKENS - 1) / TOKENS, tile = blockIdx.x / CLUSTER;
    u32 y = tile % down * TOKENS, first = tile / down * OUTPUTS;
    u32 steps = u32((p.depth + WGMMA_DEPTH - 1) / WGMMA_DEPTH), begin = steps * part / PARTS, end = steps * (part + 1) / PARTS;
    // This block's share of the tokens that there are.
    u32 rows = u32(p.rows - y < TOKENS ? p.rows - y : TOKENS), from = rows * part / PARTS, to = rows * (part + 1) / PARTS;
    u32 stage = 0, phase = 0;
    if (warp >= GROUPS * 4) {
        if constexpr (GROUPS > 1) {
            registers_give<GROUPS == 2 ? 56 : 40>();
        }
        if (warp == GROUPS * 4) {
            bool leads = elect_one();
            BoxOf x(y, TOKENS, u32(p.rows)), w(first, OUTPUTS, u32(p.columns));
            auto weights = [&](char *w_tile, u64 *full, i32 k) { w.load(p.w_map, p.rest_map, w_tile, full, k, i32(first), weights_hint(p)); };
            auto tokens = [&](char *x_tile, u64 *full, i32 k) { x.load(p.x_map, p.x_last_map, x_tile, full, k, i32(y), EVICT_NORMAL); };
            ring.bring(stage, phase, leads, begin, end, x.bytes + w.bytes, weights, tokens, [&] {
                if (p.residual) {
                    prefetch_residual<OUTPUTS>(p, y + from, to - from, first);
                }
            });
        }
        __syncwarp();
        if constexpr (PARTS > 1) {
            cluster_arrive();
            cluster_wait();
        }
    } else {
        if constexpr (GROUPS > 1) {
            registers_take<GROUPS == 2 ? 224 : 152>();
        }
        u32 own = warp / 4 * EACH * 64;
        f32 d[EACH][TOKENS / 2];
        u64 w_tiles = wgmma_descriptor(shared_address(ring.tiles) + own * PANEL, 16, 8 * PANEL, SWIZZLE_128);
        u64 x_tiles = wgmma_descriptor(shared_address(ring.tiles) + ring.X_BYTES, 16, 8 * PANEL, SWIZZLE_128);
        u32 before = 0;
        for (u32 step = begin; step < end; step++) {
            mbarrier_wait(&ring.full[stage], phase);
            u64 w = wgmma_moved(w_tiles, stage * ring.STAGE), x = wgmma_moved(x_tiles, stage * ring.STAGE);
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                multiply_stage<TOKENS>(d[i], w + i * 64 * PANEL / 16, x, step > begin);
            }
            // All but this step's are done, and so is the stage before.
            wgmma_wait<EACH>();
            if (step > begin) {
                ring.release(before);
            }
            before = stage;
            ring.advance(stage, phase);
        }
        wgmma_wait<0>();
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            wgmma_hold(d[i]);
        }
        // Sums lie where the stages were: all warpgroups have read those.
        named_barrier_sync(SUMS_BARRIER, GROUPS * 128);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            sums.template leave<TOKENS>(own + i * 64, d[i]);
        }
        if (p.adds) {
            grid_wait();
        }
        if constexpr (PARTS > 1) {
            cluster_arrive();
            cluster_wait();
        } else {
            named_barrier_sync(SUMS_BARRIER, GROUPS * 128);
        }
        finish_rows<OUTPUTS, PARTS, FORM, UNALIGNED, GROUPS * 128>(p, sums, y, first, from, to);
        __syncwarp();
    }
    // The others may still read this block's sums. In a block by itself too the ways of all warps meet (see wgmma_await_other).
    if constexpr (PARTS > 1) {
        cluster_arrive();
        cluster_wait();
    } else {
        __syncwarp();
    }
}
