// Tiles of X·Wᵀ by the main loop of gemm/sm90/ring.cuh. Blocks stay and take tile after tile; the next tile's operands arrive while
// outputs are written. The host defines the tiles: 128 × COLUMNS sums, RING stages.
//
// Rows of W lie in shared memory in another order than the outputs (see Places). Where Y, the bias or the residual cannot be moved 16
// bytes at a time (UNALIGNED), they lie in order, and outputs go through shared memory.
#pragma once

#include "ptx/copy.cuh"
#include "tile/activation.cuh"
#include "gemm/sm90/unaligned_epilogue.cuh"
#include "gemm/sm90/epilogue.cuh"
#include "gemm/sm90/ring.cuh"

constexpr u32 BAND = 16 / CLUSTER;

// Brings W's rows of one stage, elements `k` and on, from row `first` on: each of two blocks half of them, to both, or a block by itself all.
template <u32 COLUMNS, bool GATED, bool UNALIGNED, u32 SHARERS = CLUSTER>
__device__ __forceinline__ void bring_weights(const GemmParams &p, char *w_tile, u64 *full, u32 rank, i32 k, i32 first, CacheHint hint) {
    constexpr u32 SETS = GATED ? 2 : 1, OUTPUTS = COLUMNS / SETS, RUNS = OUTPUTS / 32, EIGHTS = OUTPUTS / 8;
    static_assert(!GATED || OUTPUTS % 32 == 0, "whole runs of both weights");
    if constexpr (UNALIGNED && (SHARERS == 1 || COLUMNS / 2 % 8 != 0)) {
        // A half that is not whole in eights would start in the middle of the swizzle's pattern.
        tma_load_2d(w_tile, &p.w_map, full, k, first);
    } else if constexpr (UNALIGNED) {
        tma_load_2d_multicast(w_tile + rank * (COLUMNS / 2) * PANEL, &p.w_map, full, k, first + i32(rank * (COLUMNS / 2)), 3);
    } else {
        // Runs of 32 rows as places have them: TMA takes them in another order, as a tensor of four axes (see wgmma.rs). Eights that are
        // not whole in runs are boxes of their own.
#pragma unroll
        for (u32 set = 0; set < SETS; set++) {
            char *to = w_tile + set * OUTPUTS * PANEL;
#pragma unroll
            for (u32 box = 0; box < RUNS + EIGHTS % 4; box++) {
                bool whole = box < RUNS;
                u32 eight = whole ? box * 4 : RUNS * 3 + box, twice_middle = eight * 2 + (whole ? 4 : 1);
                const tensor_map *map = !whole ? &p.rest_map : set ? &p.gate_map : &p.w_map;
                if constexpr (SHARERS == 1) {
                    tma_load_4d_by(hint, to + eight * 8 * PANEL, map, full, k, 0, first / 8 + i32(eight), 0);
                } else if ((GATED ? set : twice_middle / EIGHTS) == rank) {
                    tma_load_4d_multicast(to + eight * 8 * PANEL, map, full, k, 0, first / 8 + i32(eight), 0, 3, hint);
                }
            }
        }
    }
}

// What brings the rows of X of the tile from row `y` on, and how many bytes of a stage that are. A last tile that is not whole has a map whose
// box is only of the rows that there are, in whole patterns of the swizzle: rows that are none take longer than others.
struct TileRows {
    bool whole;
    u32 bytes;

    __device__ __forceinline__ TileRows(const GemmParams &p, u32 y) {
        whole = y + WGMMA_ROWS <= p.rows;
        bytes = (whole ? WGMMA_ROWS : ((u32(p.rows) - 1) % WGMMA_ROWS + 8) / 8 * 8) * PANEL;
    }

    // Both written out: a choice between the two addresses costs registers that tiles of two widths do not have.
    __device__ __forceinline__ void load(const GemmParams &p, char *x_tile, u64 *full, i32 k, i32 y, CacheHint hint = EVICT_NORMAL) const {
        if (whole) {
            tma_load_2d_by(hint, x_tile, &p.x_map, full, k, y);
        } else {
            tma_load_2d_by(hint, x_tile, &p.x_last_map, full, k, y);
        }
    }
};

// W of up to so many rows is evict-first in L2: its rows are read at about the same time by all who do.
constexpr u32 FIRST_TO_LEAVE = 512;

__device__ __forceinline__ CacheHint weights_hint(const GemmParams &p) { return p.rows <= FIRST_TO_LEAVE ? EVICT_FIRST : EVICT_NORMAL; }

// Has the residual's part under `rows` rows of a block's tile brought to L2. By a warp.
template <u32 OUTPUTS> __device__ __forceinline__ void prefetch_residual(const GemmParams &p, u64 y, u32 rows, u64 first) {
    // The second of two blocks side by side may have none.
    u64 there = first < p.columns ? p.columns - first : 0, width = there < OUTPUTS ? there : OUTPUTS;
    for (u64 row = y + threadIdx.x % 32; row < y + rows && row < p.rows; row += 32) {
        const element *from = p.residual + row * p.y_stride + first;
        for (u64 column = 0; column < width; column += 64) {
            prefetch_line(from + column);
        }
    }
}

// Clusters' tiles, one below the other and beside each other. Reckoned where they are used: held all along they are registers too many.
__device__ __forceinline__ u32 tiles_down(const GemmParams &p) { return u32((p.rows + WGMMA_ROWS * CLUSTER - 1) / (WGMMA_ROWS * CLUSTER)); }
template <u32 OUTPUTS> __device__ __forceinline__ u32 tiles_across(const GemmParams &p) { return u32((p.columns + OUTPUTS - 1) / OUTPUTS); }

// How every kernel of this ring starts, before its cluster meets: the maps on their way and the barriers, by a thread of the warp that brings.
template <class Ring> __device__ __forceinline__ void wgmma_open(const Ring &ring, const GemmParams &p) {
    if (threadIdx.x == 256) {
        tma_prefetch_map(&p.x_map);
        tma_prefetch_map(&p.w_map);
        ring.init();
    }
    __syncwarp();
}

// The block of a cluster that this one is.
__device__ __forceinline__ u32 wgmma_rank() {
    if constexpr (CLUSTER == 1) {
        return 0;
    } else {
        return cluster_rank();
    }
}

// The blocks of a cluster meet, or the threads of a block by itself, so that barriers are there before they are used. Who brings made them: by
// itself it does not wait for the others.
__device__ __forceinline__ void wgmma_meet() {
    if constexpr (CLUSTER == 1) {
        if (shuffle_from(threadIdx.x / 32, 0) == 8) {
            named_barrier_arrive(OPEN_BARRIER, WGMMA_THREADS);
        } else {
            named_barrier_sync(OPEN_BARRIER, WGMMA_THREADS);
        }
    } else {
        cluster_arrive();
        cluster_wait();
    }
}

// Says that a warp no longer touches the other block's memory, and waits until nobody touches this one's.
__device__ __forceinline__ void wgmma_leave() {
    if constexpr (CLUSTER > 1) {
        cluster_arrive();
    }
}

// In a block by itself too the ways of all warps meet: where they never do, the assembler may give sums only the registers that the launch has,
// not those that warpgroups take, and spills.
__device__ __forceinline__ void wgmma_await_other() {
    if constexpr (CLUSTER > 1) {
        cluster_wait();
    } else {
        __syncwarp();
    }
}

// And after: where the host lets a kernel start early, its operands are still being written; or Y alone, which is read last. The next kernel
// starts behind the wait: it may know that all before this one has ended.
__device__ __forceinline__ void wgmma_await(const GemmParams &p) {
    if (!p.adds) {
        grid_wait();
    }
    grid_launch_next();
}

// The wait of the warp that brings. Before it W of the first steps is asked for, where nothing that still runs writes that (the host knows): as
// many steps as there are stages, whose rows of X follow. Gives how many those are.
template <class Ring, class Rows, class Weights>
__device__ __forceinline__ u32 wgmma_begin(const GemmParams &p, const Ring &ring, u32 &stage, u32 &phase, bool leads, u32 steps, u32 bytes, Rows rows, Weights weights) {
    u32 ahead = !p.weights_early ? 0 : steps < ring.LENGTH ? steps : ring.LENGTH;
#pragma unroll 1
    for (u32 step = 0; step < ahead; step++) {
        if (leads) {
            weights(ring.x_tile(step) + ring.X_BYTES, ring.expect(step, bytes), i32(step * WGMMA_DEPTH));
        }
        __syncwarp();
    }
    wgmma_await(p);
#pragma unroll 1
    for (u32 step = 0; step < ahead; step++) {
        if (leads) {
            rows(ring.x_tile(step), &ring.full[step], i32(step * WGMMA_DEPTH));
        }
        __syncwarp();
        ring.advance(stage, phase);
    }
    return ahead;
}

// Y = act(X·Wᵀ + bias) + residual, or act(X·Gᵀ) ⊙ (X·Wᵀ + bias) where GATED: then half the columns of a tile are of each weight.
template <u32 COLUMNS, u32 RING, bool GATED, u32 FORM, bool UNALIGNED> __device__ __forceinline__ void wgmma_gemm(const GemmParams &p, char *shared) {
    constexpr u32 OUTPUTS = GATED ? COLUMNS / 2 : COLUMNS;
    static_assert(CLUSTER <= 2 || COLUMNS == 0, "each of two brings half of W's tile");
    static_assert(!GATED || !UNALIGNED, "a gated product writes where the host chose the place");
    using P = Places<OUTPUTS>;
    WgmmaRing<COLUMNS, RING> ring(shared);
    // Said so that the compiler knows that a warp has one: what follows from it is then computed in uniform registers.
    u32 group = shuffle_from(threadIdx.x / 128, 0), rank = wgmma_rank();
    wgmma_open(ring, p);
    wgmma_meet();
    // Places fit into 32 bits (the host sees to it), and so does the count of tiles of anything that fits into a memory.
    u32 steps = u32((p.depth + WGMMA_DEPTH - 1) / WGMMA_DEPTH);
    u32 stage = 0, phase = 0;
    if (group == 2) {
        registers_give<56>();
        if (shuffle_from(threadIdx.x / 32, 0) == 8) {
            // Uniform too: what TMA is told need not be found out for each lane.
            u32 own = shuffle_from(rank, 0);
            bool leads = elect_one();
            u32 down = tiles_down(p), across = tiles_across<OUTPUTS>(p);
            for (u32 index = blockIdx.x / CLUSTER; index < down * across; index += gridDim.x / CLUSTER) {
                u32 row, column;
                tile_place<BAND>(index, down, across, row, column);
                i32 y = i32((row * CLUSTER + own) * WGMMA_ROWS), first = i32(column * OUTPUTS);
                TileRows x(p, y);
                u32 bytes = x.bytes + COLUMNS * PANEL;
                auto rows = [&](char *x_tile, u64 *full, i32 k) { x.load(p, x_tile, full, k, y); };
                auto weights = [&](char *w_tile, u64 *full, i32 k) {
                    bring_weights<COLUMNS, GATED, UNALIGNED>(p, w_tile, full, own, k, first, weights_hint(p));
                };
                u32 begin = index == blockIdx.x / CLUSTER ? wgmma_begin(p, ring, stage, phase, leads, steps, bytes, rows, weights) : 0;
                ring.bring(stage, phase, leads, begin, steps, bytes, rows, weights, [&] {
                    if (!GATED && p.residual) {
                        prefetch_residual<OUTPUTS>(p, y, WGMMA_ROWS, first);
                    }
                });
            }
        }
        __syncwarp();
    } else {
        registers_take<224>();
        wgmma_await(p);
        f32 d[COLUMNS / 2];
        u32 down = tiles_down(p), across = tiles_across<OUTPUTS>(p);
        for (u32 index = blockIdx.x / CLUSTER; index < down * across; index += gridDim.x / CLUSTER) {
            u32 tile_row, tile_column;
            tile_place<BAND>(index, down, across, tile_row, tile_column);
            u32 last = ring.multiply(stage, phase, group, 0, steps, d);
            u64 row = u64(tile_row * CLUSTER + rank) * WGMMA_ROWS, column = u64(tile_column) * OUTPUTS;
            Ahead ahead;
            if constexpr (!GATED) {
                if (!UNALIGNED && p.residual) {
                    read_ahead<P>(p, row, column, ahead);
                }
            }
            wgmma_wait<0>();
            wgmma_hold(d);
            ring.release(last);
            // Said before the last outputs are written, which would hold it up: this warpgroup no longer touches the other block's memory.
            if (index + gridDim.x / CLUSTER >= down * across) {
                wgmma_leave();
            }
            if (!GATED && p.adds) {
                grid_wait();
            }
            if constexpr (UNALIGNED) {
                write_unaligned_tile<P, FORM>(p, row, column, d, (char *)(ring.empty + RING));
            } else {
                write_tile<P, GATED, FORM>(p, row, column, d, ahead);
            }
        }
    }
    // The other block may still write into this one, or arrive at its barriers.
    if (group == 2) {
        wgmma_leave();
    }
    wgmma_await_other();
}
