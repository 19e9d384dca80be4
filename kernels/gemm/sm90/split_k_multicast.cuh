// Tiles of X·Wᵀ where K is long and whole tiles are few: every block has one tile and a part of K. Blocks of a cluster lie one below the
// other and share W's tile, as in gemm/sm90/mainloop.cuh; those that have a tile of outputs in common are of several clusters, and each finishes a
// slice of its columns. The others' sums of that come through L2, from every thread to the same thread of another block.
//
// Blocks wait for each other. Clusters that do are neighbours in the grid, whose blocks start in order: none waits for one that cannot start.
#pragma once

#include "gemm/sm90/mainloop.cuh"
#include "gemm/split_k_params.cuh"

constexpr u32 OWN_BARRIER = 3;   // and the next: named barriers of one warpgroup

// The way of a warpgroup's sums of a tile of COLUMNS to the parts that finish them, 16 bytes of a thread beside those of the next, and the
// counts of the parts that have sent theirs: zero before and after a launch.
template <u32 COLUMNS, u32 PARTS> struct Passage {
    static constexpr u32 SUMS = COLUMNS / PARTS / 2, PIECES = SUMS / 4;   // of a thread, of a slice

    float4 *pieces;
    u32 *arrived;
    u32 group;

    __device__ __forceinline__ Passage(const SplitKParams &p, u32 tile, u32 group)
        : pieces((float4 *)p.sums + u64(tile) * ((PARTS - 1) * WGMMA_ROWS * COLUMNS / 4) + group * (PIECES * 128) + threadIdx.x % 128),
          arrived(p.arrived + tile * (PARTS * 2) + group), group(group) {}

    // This thread's pieces, 128 from one to the next.
    __device__ __forceinline__ float4 *way(u32 to, u32 from) const { return pieces + (to * (PARTS - 1) + (from + PARTS - to) % PARTS - 1) * (PIECES * 256); }

    // Sends what the other parts finish, and gives the own slice. By all threads of the warpgroup, as the next.
    __device__ __forceinline__ void send(u32 part, const f32 (&d)[COLUMNS / 2], f32 (&own)[SUMS]) const {
#pragma unroll
        for (u32 to = 0; to < PARTS; to++) {
            const f32 *slice = d + to * SUMS;
            if (to == part) {
#pragma unroll
                for (u32 i = 0; i < SUMS; i++) {
                    own[i] = slice[i];
                }
            } else {
#pragma unroll
                for (u32 i = 0; i < PIECES; i++) {
                    way(to, part)[i * 128] = {slice[i * 4], slice[i * 4 + 1], slice[i * 4 + 2], slice[i * 4 + 3]};
                }
            }
        }
        named_barrier_sync(OWN_BARRIER + group, 128);
        u32 to = threadIdx.x % 128;
        if (to < PARTS && to != part) {
            count_up(arrived + to * 2);
        }
    }

    // Adds what they send, always in the same order.
    __device__ __forceinline__ void add(u32 part, f32 (&own)[SUMS]) const {
        wait_for_count(arrived + part * 2, PARTS - 1);
        float4 found[(PARTS - 1) * PIECES];
#pragma unroll
        for (u32 i = 0; i < (PARTS - 1) * PIECES; i++) {
            found[i] = way(part, (part + 1 + i / PIECES) % PARTS)[i % PIECES * 128];
        }
        named_barrier_sync(OWN_BARRIER + group, 128);
        if (threadIdx.x % 128 == 0) {
            arrived[part * 2] = 0;
        }
#pragma unroll
        for (u32 i = 0; i < (PARTS - 1) * PIECES; i++) {
            f32 *sums = own + i % PIECES * 4;
            sums[0] += found[i].x;
            sums[1] += found[i].y;
            sums[2] += found[i].z;
            sums[3] += found[i].w;
        }
    }
};

// Y = act(X·Wᵀ + bias) + residual.
template <u32 COLUMNS, u32 RING, u32 PARTS, u32 FORM, bool UNALIGNED> __device__ __forceinline__ void wgmma_split_k_multicast(const SplitKParams &all, char *shared) {
    const GemmParams &p = all.gemm;
    constexpr u32 SLICE = COLUMNS / PARTS;
    static_assert(CLUSTER == 2 && SLICE % 32 == 0, "two share W's tile, and a slice is whole in runs of places");
    using P = Places<SLICE>;
    WgmmaRing<COLUMNS, RING> ring(shared);
    // Said so that the compiler knows that a warp has one.
    u32 group = shuffle_from(threadIdx.x / 128, 0), rank = shuffle_from(cluster_rank(), 0);
    wgmma_open(ring, p);
    cluster_arrive_relaxed();
    cluster_wait();
    wgmma_await(p);
    u32 down = tiles_down(p), cluster = blockIdx.x / CLUSTER, part = cluster % PARTS, tile = cluster / PARTS;
    u32 y = (tile % down * CLUSTER + rank) * WGMMA_ROWS, first = tile / down * COLUMNS;
    u32 steps = u32((p.depth + WGMMA_DEPTH - 1) / WGMMA_DEPTH), begin = steps * part / PARTS, end = steps * (part + 1) / PARTS;
    u32 stage = 0, phase = 0;
    if (group == 2) {
        registers_give<56>();
        if (shuffle_from(threadIdx.x / 32, 0) == 8) {
            bool leads = elect_one();
            TileRows x(p, y);
            // All who read a line do so at about the same time: what it would drive out need not be written back for it.
            auto rows = [&](char *x_tile, u64 *full, i32 k) { x.load(p, x_tile, full, k, i32(y), EVICT_FIRST); };
            auto weights = [&](char *w_tile, u64 *full, i32 k) {
                bring_weights<COLUMNS, false, UNALIGNED>(p, w_tile, full, rank, k, i32(first), EVICT_FIRST);
            };
            ring.bring(stage, phase, leads, begin, end, x.bytes + COLUMNS * PANEL, rows, weights, [&] {
                if (p.residual) {
                    prefetch_residual<SLICE>(p, y, WGMMA_ROWS, first + part * SLICE);
                }
            });
        }
        __syncwarp();
    } else {
        registers_take<224>();
        f32 d[COLUMNS / 2], own[SLICE / 2];
        ring.multiply(stage, phase, group, begin, end, d);
        u32 column = first + part * SLICE;
        Ahead ahead;
        if (!UNALIGNED && p.residual) {
            read_ahead<P>(p, y, column, ahead);
        }
        wgmma_wait<0>();
        wgmma_hold(d);
        if (p.adds) {
            grid_wait();
        }
        Passage<COLUMNS, PARTS> passage(all, tile * CLUSTER + rank, group);
        passage.send(part, d, own);
        passage.add(part, own);
        if constexpr (UNALIGNED) {
            write_unaligned_tile<P, FORM>(p, y, column, own, (char *)(ring.empty + RING));
        } else {
            write_tile<P, false, FORM>(p, y, column, own, ahead);
        }
    }
    // The other block may still write into this one, or arrive at its barriers.
    cluster_arrive();
    cluster_wait();
}
