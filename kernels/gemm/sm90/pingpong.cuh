// Tiles of X·Wᵀ as in gemm/sm90/mainloop.cuh, for a K so short that a tile's outputs take a good part of the time of its products: the two warpgroups
// have tiles of their own, 64 rows each, and take turns. While one writes outputs the other has the tensor cores to itself.
//
// The turns are a matter of right as well as of speed: a warpgroup sees every second tile's stages, and of the phases of a barrier only the
// last two can be told apart. When its turn has come, all stages before its own have arrived.
#pragma once

#include "gemm/sm90/mainloop.cuh"

constexpr u32 PINGPONG_ROWS = 64, PINGPONG_BAND = 16;
constexpr u32 PINGPONG_CLUSTER = 2;   // whatever the other kernels of a unit have: W is read twice as often as theirs
constexpr u32 PINGPONG_BARRIER = 3;   // and the next: a named barrier of each warpgroup, told that its turn has come

// Clusters' tiles, one below the other.
__device__ __forceinline__ u32 pingpong_down(const GemmParams &p) { return u32((p.rows + PINGPONG_ROWS * PINGPONG_CLUSTER - 1) / (PINGPONG_ROWS * PINGPONG_CLUSTER)); }

// Y = act(X·Wᵀ + bias) + residual.
template <u32 COLUMNS, u32 RING, u32 FORM> __device__ __forceinline__ void wgmma_pingpong(const GemmParams &p, char *shared) {
    using P = Places<COLUMNS>;
    WgmmaRing<COLUMNS, RING, PINGPONG_CLUSTER, PINGPONG_ROWS> ring(shared);
    // Said so that the compiler knows that a warp has one, as in wgmma_gemm.
    u32 group = shuffle_from(threadIdx.x / 128, 0), rank = cluster_rank();
    wgmma_open(ring, p);
    cluster_arrive();
    cluster_wait();
    wgmma_await(p);
    u32 steps = u32((p.depth + WGMMA_DEPTH - 1) / WGMMA_DEPTH), stage = 0, phase = 0;
    // Reckoned where they are used: held all along they are registers too many.
    auto place = [&](u32 index, u32 &row, u32 &column) { tile_place<PINGPONG_BAND>(index, pingpong_down(p), tiles_across<COLUMNS>(p), row, column); };
    auto there = [&](u32 index) { return index < pingpong_down(p) * tiles_across<COLUMNS>(p); };
    auto each = [] { return block_count_anew() / PINGPONG_CLUSTER; };
    if (group == 2) {
        registers_give<56>();
        if (shuffle_from(threadIdx.x / 32, 0) == 8) {
            u32 own = shuffle_from(rank, 0);
            bool leads = elect_one();
            for (u32 index = blockIdx.x / PINGPONG_CLUSTER; there(index); index += each()) {
                u32 row, column;
                place(index, row, column);
                i32 y = i32((row * PINGPONG_CLUSTER + own) * PINGPONG_ROWS), first = i32(column * COLUMNS);
                auto rows = [&](char *x_tile, u64 *full, i32 k) { tma_load_2d(x_tile, &p.x_map, full, k, y); };
                auto weights = [&](char *w_tile, u64 *full, i32 k) {
                    bring_weights<COLUMNS, false, false, PINGPONG_CLUSTER>(p, w_tile, full, own, k, first, EVICT_NORMAL);
                };
                ring.bring(stage, phase, leads, 0, steps, ring.STAGE, rows, weights, [&] {
                    if (p.residual) {
                        prefetch_residual<COLUMNS>(p, y, PINGPONG_ROWS, first);
                    }
                });
            }
        }
        __syncwarp();
    } else {
        registers_take<224>();
        f32 d[COLUMNS / 2];
        auto pass = [&] {
            stage += steps;
            phase ^= stage / RING & 1;
            stage %= RING;
        };
        if (group == 1) {
            pass();
        }
        u32 index = blockIdx.x / PINGPONG_CLUSTER + group * each();
        if (!there(index)) {
            cluster_arrive();
        }
        for (; there(index); index += 2 * each()) {
            u32 tile_row, tile_column;
            place(index, tile_row, tile_column);
            u64 column = u64(tile_column) * COLUMNS;
            BiasAhead bias;
            bias.read<P>(p, column);
            if (index >= each()) {
                named_barrier_sync(PINGPONG_BARRIER + group, 256);
            }
            u32 last = ring.template multiply<false>(stage, phase, 0, 0, steps, d);
            if (there(index + each())) {
                named_barrier_arrive(PINGPONG_BARRIER + 1 - group, 256);
            }
            // Rows of a warpgroup's tile are counted from its threads' places in the block on.
            u64 row = u64(tile_row * PINGPONG_CLUSTER + rank) * PINGPONG_ROWS - group * PINGPONG_ROWS;
            Ahead ahead;
            if (p.residual) {
                read_ahead<P>(p, row, column, ahead);
            }
            wgmma_wait<0>();
            wgmma_hold(d);
            ring.release(last);
            // As in wgmma_gemm.
            if (!there(index + 2 * each())) {
                cluster_arrive();
            }
            if (p.adds) {
                grid_wait();
            }
            write_tile<P, false, FORM>(p, row, column, d, ahead, bias);
            pass();
        }
    }
    // The other block may still write into this one, or arrive at its barriers.
    if (group == 2) {
        cluster_arrive();
    }
    cluster_wait();
}
