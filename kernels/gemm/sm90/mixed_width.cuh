// Tiles of X·Wᵀ as in gemm/sm90/mainloop.cuh, of two widths: those that fill whole waves are COLUMNS wide, and those of the
// last ones LAST, so that these are whole too. The host says how many columns of tiles are wide.
#pragma once

#include "gemm/sm90/mainloop.cuh"

// Where tile number `index` of a cluster lies: all wide ones come before all others.
template <u32 COLUMNS, u32 LAST> struct MixedWidthPlace {
    bool wide;
    u32 row, first;   // in tiles of clusters; in outputs

    __device__ __forceinline__ MixedWidthPlace(const GemmParams &p, u32 index) {
        u32 down = tiles_down(p), before = down * p.wide, column;
        wide = index < before;
        tile_place<BAND>(wide ? index : index - before, down, wide ? p.wide : across(p), row, column);
        first = wide ? column * COLUMNS : p.wide * COLUMNS + column * LAST;
    }

    // Tiles of the last width beside each other.
    static __device__ __forceinline__ u32 across(const GemmParams &p) { return (u32(p.columns) - p.wide * COLUMNS + LAST - 1) / LAST; }

    static __device__ __forceinline__ u32 count(const GemmParams &p) { return tiles_down(p) * (p.wide + across(p)); }
};

// A tile's products and outputs, by both warpgroups.
template <u32 WIDTH, u32 FORM, class Ring, u32 SUMS>
__device__ __forceinline__ void mixed_width_tile(const GemmParams &p, const Ring &ring, u32 &stage, u32 &phase, u32 group, u32 steps, u64 row, u64 column,
                                            bool last_tile, f32 (&sums)[SUMS]) {
    using P = Places<WIDTH>;
    f32(&d)[WIDTH / 2] = reinterpret_cast<f32(&)[WIDTH / 2]>(sums);
    u32 last = ring.template multiply<true, WIDTH>(stage, phase, group, 0, steps, d);
    Ahead ahead;
    if (p.residual) {
        read_ahead<P>(p, row, column, ahead);
    }
    wgmma_wait<0>();
    wgmma_hold(d);
    ring.release(last);
    // As in wgmma_gemm.
    if (last_tile) {
        wgmma_leave();
    }
    if (p.adds) {
        grid_wait();
    }
    write_tile<P, false, FORM>(p, row, column, d, ahead);
}

// Y = act(X·Wᵀ + bias) + residual.
template <u32 COLUMNS, u32 LAST, u32 RING, u32 FORM> __device__ __forceinline__ void wgmma_mixed_width(const GemmParams &p, char *shared) {
    using Place = MixedWidthPlace<COLUMNS, LAST>;
    WgmmaRing<COLUMNS, RING> ring(shared);
    // Said so that the compiler knows that a warp has one, as in wgmma_gemm.
    u32 group = shuffle_from(threadIdx.x / 128, 0), rank = wgmma_rank();
    wgmma_open(ring, p);
    wgmma_meet();
    u32 steps = u32((p.depth + WGMMA_DEPTH - 1) / WGMMA_DEPTH), stage = 0, phase = 0;
    if (group == 2) {
        registers_give<56>();
        if (shuffle_from(threadIdx.x / 32, 0) == 8) {
            u32 own = shuffle_from(rank, 0);
            bool leads = elect_one();
            for (u32 index = blockIdx.x / CLUSTER; index < Place::count(p); index += gridDim.x / CLUSTER) {
                Place place(p, index);
                i32 y = i32((place.row * CLUSTER + own) * WGMMA_ROWS), first = i32(place.first);
                TileRows x(p, y);
                u32 bytes = x.bytes + (place.wide ? COLUMNS : LAST) * PANEL;
                auto rows = [&](char *x_tile, u64 *full, i32 k) { x.load(p, x_tile, full, k, y); };
                auto weights = [&](char *w_tile, u64 *full, i32 k) {
                    if (place.wide) {
                        bring_weights<COLUMNS, false, false>(p, w_tile, full, own, k, first, weights_hint(p));
                    } else {
                        bring_weights<LAST, false, false>(p, w_tile, full, own, k, first, weights_hint(p));
                    }
                };
                u32 begin = index == blockIdx.x / CLUSTER ? wgmma_begin(p, ring, stage, phase, leads, steps, bytes, rows, weights) : 0;
                ring.bring(stage, phase, leads, begin, steps, bytes, rows, weights, [&] {
                    if (p.residual) {
                        place.wide ? prefetch_residual<COLUMNS>(p, y, WGMMA_ROWS, first) : prefetch_residual<LAST>(p, y, WGMMA_ROWS, first);
                    }
                });
            }
        }
        __syncwarp();
    } else {
        registers_take<224>();
        wgmma_await(p);
        // Of tiles of both widths: with sums of their own each the assembler finds no registers.
        f32 d[COLUMNS / 2];
        for (u32 index = blockIdx.x / CLUSTER; index < Place::count(p); index += block_count_anew() / CLUSTER) {
            Place place(p, index);
            u64 row = u64(place.row * CLUSTER + rank) * WGMMA_ROWS;
            bool last = index + block_count_anew() / CLUSTER >= Place::count(p);
            if (place.wide) {
                mixed_width_tile<COLUMNS, FORM>(p, ring, stage, phase, group, steps, row, place.first, last, d);
            } else {
                mixed_width_tile<LAST, FORM>(p, ring, stage, phase, group, steps, row, place.first, last, d);
            }
        }
    }
    // The other block may still write into this one, or arrive at its barriers.
    if (group == 2) {
        wgmma_leave();
    }
    wgmma_await_other();
}
