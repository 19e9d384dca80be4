// Tiles of X·Wᵀ by the main loop of tile/wgmma_ring.cuh. Blocks stay and take tile after tile; the next tile's operands arrive while
// outputs are written. The host defines the tiles: 128 × COLUMNS sums, RING stages.
//
// Where tiles leave multiprocessors idle in the last round, K may be cut into parts there (p.whole, p.parts): blocks of their own take
// each, leave their sums in the workspace and finish a part of the tile's columns each, always adding up in the order of the parts.
//
// Rows of W lie in shared memory in another order than the outputs (see Places). Where Y, the bias or the residual cannot be moved 16
// bytes at a time (ODD), they lie in order, and outputs go through shared memory.
#pragma once

#include "ptx/copy.cuh"
#include "tile/activation.cuh"
#include "tile/wgmma_odd.cuh"
#include "tile/wgmma_outputs.cuh"
#include "tile/wgmma_ring.cuh"

constexpr u32 BAND = 16 / CLUSTER;

// What a block does of a product, one item after the other: whole tiles first, then parts of K of the rest.
struct WgmmaItem {
    u32 row, column;  // of the cluster's tile, in tiles
    u32 cut_tile;     // number of the tile among those that are cut
    Cut cut;

    __device__ __forceinline__ WgmmaItem(const GemmParams &p, u32 index, u32 down, u32 across, u32 parts) : cut_tile(0), cut{0, 1} {
        u32 tile = index;
        if (parts > 1 && index >= p.whole) {
            cut_tile = (index - p.whole) / parts;
            cut = {(index - p.whole) % parts, parts};
            tile = p.whole + cut_tile;
        }
        tile_place<BAND>(tile, down, across, row, column);
    }

    // The steps of K.
    __device__ __forceinline__ u32 begin(u32 steps) const { return steps * cut.part / cut.parts; }
    __device__ __forceinline__ u32 end(u32 steps) const { return steps * (cut.part + 1) / cut.parts; }
};

// Brings W's rows of one stage, elements `k` and on, from row `first` on. The blocks of a cluster each bring half of them to both, or
// where they lie beside each other (ACROSS), all of their own.
template <u32 COLUMNS, bool GATED, bool ODD, bool ACROSS>
__device__ __forceinline__ void bring_weights(const GemmParams &p, char *w_tile, u64 *full, u32 rank, i32 k, i32 first) {
    constexpr u32 SETS = GATED ? 2 : 1, OUTPUTS = COLUMNS / SETS, RUNS = OUTPUTS / 32;
    static_assert(!GATED || OUTPUTS % 32 == 0, "whole runs of both weights");
    constexpr bool ALONE = CLUSTER == 1 || ACROSS;
    if constexpr (ODD && (ACROSS || COLUMNS / 2 % 8 != 0)) {
        // A half that is not whole in eights would start in the middle of the swizzle's pattern.
        tma_load_2d(w_tile, &p.w_map, full, k, first);
    } else if constexpr (ODD) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            char *to = w_tile + half * (COLUMNS / 2) * PANEL;
            i32 from = first + i32(half * COLUMNS / 2);
            if constexpr (CLUSTER == 1) {
                tma_load_2d(to, &p.w_map, full, k, from);
            } else if (half == rank) {
                tma_load_2d_multicast(to, &p.w_map, full, k, from, 3);
            }
        }
    } else {
        // Runs of 32 rows as places have them: TMA takes them in another order, as a tensor of four axes (see wgmma.rs). What is not
        // whole in runs is a box of its own.
#pragma unroll
        for (u32 set = 0; set < SETS; set++) {
            char *to = w_tile + set * OUTPUTS * PANEL;
#pragma unroll
            for (u32 run = 0; run < RUNS + (OUTPUTS % 32 ? 1 : 0); run++) {
                const tensor_map *map = run == RUNS ? &p.rest_map : set ? &p.gate_map : &p.w_map;
                if constexpr (ALONE) {
                    tma_load_4d(to + run * 32 * PANEL, map, full, k, 0, first / 8 + i32(run) * 4, 0);
                } else if ((GATED ? set : run / ((RUNS + 1) / 2)) == rank) {
                    tma_load_4d_multicast(to + run * 32 * PANEL, map, full, k, 0, first / 8 + i32(run) * 4, 0, 3);
                }
            }
        }
    }
}

// Has the residual's part under a block's tile brought to the second-level cache. By a warp.
template <u32 OUTPUTS> __device__ __forceinline__ void prefetch_residual(const GemmParams &p, u64 y, u64 first) {
    // The second of two blocks side by side may have none.
    u64 there = first < p.columns ? p.columns - first : 0, width = there < OUTPUTS ? there : OUTPUTS;
    for (u64 row = y + threadIdx.x % 32; row < y + WGMMA_ROWS && row < p.rows; row += 32) {
        const element *from = p.residual + row * p.y_stride + first;
        for (u64 column = 0; column < width; column += 64) {
            prefetch_line(from + column);
        }
    }
}

// Y = act(X·Wᵀ + bias) + residual, or act(X·Gᵀ) ⊙ (X·Wᵀ + bias) where GATED: then half the columns of a tile are of each weight.
// CUT: K may be cut into parts. ACROSS: where there is one tile of rows, two blocks of a cluster lie beside each other and share that of X.
template <u32 COLUMNS, u32 RING, bool GATED, u32 FORM, bool CUT, bool ODD, bool ACROSS = false>
__device__ __forceinline__ void wgmma_gemm(const GemmParams &p, char *shared) {
    constexpr u32 OUTPUTS = GATED ? COLUMNS / 2 : COLUMNS, DOWN = ACROSS ? 1 : CLUSTER, BESIDE = ACROSS ? CLUSTER : 1;
    static_assert(!ACROSS || CLUSTER == 2, "each brings half of X's tile");
    static_assert(!GATED || !ODD, "a gated product writes where the host chose the place");
    using P = Places<OUTPUTS>;
    WgmmaRing<COLUMNS, RING, CUT> ring(shared);
    // Said so that the compiler knows that a warp has one: what follows from it is then computed in uniform registers.
    u32 group = shuffle_from(threadIdx.x / 128, 0), rank = CLUSTER > 1 ? cluster_rank() : 0;
    if (threadIdx.x == 0) {
        ring.init();
    }
    if (threadIdx.x == 256) {
        tma_prefetch_map(&p.x_map);
        tma_prefetch_map(&p.w_map);
    }
    if constexpr (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }
    // Where the host lets this kernel start early, its operands are still being written; or Y alone, which is read last.
    grid_launch_next();
    if (!p.adds) {
        grid_wait();
    }
    // Places fit into 32 bits (the host sees to it), and so does the count of tiles of anything that fits into a memory.
    u32 down = u32((p.rows + WGMMA_ROWS * DOWN - 1) / (WGMMA_ROWS * DOWN)), across = u32((p.columns + OUTPUTS * BESIDE - 1) / (OUTPUTS * BESIDE));
    u32 steps = u32((p.depth + WGMMA_DEPTH - 1) / WGMMA_DEPTH);
    u32 stage = 0, phase = 0, parts = CUT ? p.parts : 1, items = down * across;
    if (parts > 1) {
        items = p.whole + (items - p.whole) * parts;
    }
    auto advance = [&] { ring.advance(stage, phase); };
    if (group == 2) {
        registers_give<56>();
        if (threadIdx.x < 288) {
            u32 lane = threadIdx.x % 32;
            for (u32 index = blockIdx.x / CLUSTER; index < items; index += gridDim.x / CLUSTER) {
                WgmmaItem item(p, index, down, across, parts);
                i32 y = i32((item.row * DOWN + (ACROSS ? 0 : rank)) * WGMMA_ROWS), first = i32((item.column * BESIDE + (ACROSS ? rank : 0)) * OUTPUTS);
                u32 begin = item.begin(steps), end = item.end(steps);
                for (u32 step = begin; step < end; step++) {
                    ring.wait_free(stage, phase);
                    if (lane == 0) {
                        char *x_tile = ring.x_tile(stage);
                        i32 k = i32(step * WGMMA_DEPTH);
                        // A half of X's tile in which there is no row takes as long as any other: it is left as it is.
                        constexpr u32 HALF = WGMMA_ROWS / 2;
                        u64 *full = ring.expect(stage, ring.STAGE - (ACROSS && y + HALF >= p.rows ? HALF * PANEL : 0));
                        if constexpr (ACROSS) {
                            if (y + rank * HALF < p.rows) {
                                tma_load_2d_multicast(x_tile + rank * HALF * PANEL, &p.x_map, full, k, y + i32(rank * HALF), 3);
                            }
                        } else {
                            tma_load_2d(x_tile, &p.x_map, full, k, y);
                        }
                        bring_weights<COLUMNS, GATED, ODD, ACROSS>(p, x_tile + WGMMA_X_BYTES, full, rank, k, first);
                    }
                    __syncwarp();
                    if (!GATED && p.residual && step == begin) {
                        prefetch_residual<OUTPUTS>(p, y, first);
                    }
                    advance();
                }
            }
        }
        __syncwarp();
    } else {
        registers_take<224>();
        f32 d[COLUMNS / 2];
        for (u32 index = blockIdx.x / CLUSTER; index < items; index += gridDim.x / CLUSTER) {
            WgmmaItem item(p, index, down, across, parts);
            u32 last = ring.multiply(stage, phase, group, item.begin(steps), item.end(steps), d);
            u64 row = u64(item.row * DOWN + (ACROSS ? 0 : rank)) * WGMMA_ROWS, column = u64(item.column * BESIDE + (ACROSS ? rank : 0)) * OUTPUTS;
            Ahead ahead;
            if constexpr (!GATED) {
                if (!ODD && p.residual && item.cut.parts == 1) {
                    read_ahead<P>(p, row, column, ahead);
                }
            }
            wgmma_wait<0>();
            wgmma_hold(d);
            ring.release(last);
            if constexpr (CUT) {
                if (item.cut.parts > 1) {
                    exchange_sums<P>(p, u64(item.cut_tile * CLUSTER + rank) * 2 + group, item.cut, d);
                }
            }
            if (!GATED && p.adds) {
                grid_wait();
            }
            if constexpr (ODD) {
                write_odd_tile<P, FORM>(p, row, column, item.cut, d, (char *)(ring.empty + RING));
            } else {
                write_tile<P, GATED, FORM>(p, row, column, item.cut, d, ahead);
            }
        }
    }
    if constexpr (CLUSTER > 1) {
        // The other block may still write into this one, or arrive at its barriers.
        cluster_arrive();
        cluster_wait();
    }
}
