// Which part of y a block of *expand* has. All pairs of a unit, up to MOST tokens of one adapter, and a group of columns stand in one line, of
// which each block takes an equal piece: whatever tokens the adapters have, blocks have about the same to decode.
#pragma once

#include "codebook_gemm/tile.cuh"

constexpr u32 MOST = 64;    // tokens of a unit, neighbours in the index's order
constexpr u32 MOST_PARTS = 2;    // of a block's piece, which is no longer than a unit

// Neighbouring groups of columns of one unit.
struct Part {
    i32 adapter;
    u32 start, count;     // of its tokens, in the order
    u32 first, groups;    // of columns
};

// A block's piece.
struct Piece {
    Part part[MOST_PARTS];
    u32 totals[WARPS];       // units that each warp found
    u32 skew[MOST_PARTS];    // of its window of codes
};

// Units of a segment.
__device__ __forceinline__ u32 units_of(u32 tokens) { return (tokens + MOST - 1) / MOST; }

// Finds the piece of the block: everyone may use it after the next barrier. The index has segments for `most` at least; those that are not there
// are empty.
__device__ __forceinline__ void read_piece(const TileParams &p, u32 most, Piece &piece) {
    constexpr u32 EACH = 2;    // segments of a thread: THREADS · EACH is as many as there may be
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i32 *segment_adapter = p.index + 2 + 2 * p.tokens, *segment_start = segment_adapter + p.tokens;
    u32 start[EACH + 1];
    i32 adapter[EACH];
#pragma unroll
    for (u32 i = 0; i <= EACH; i++) {
        u32 segment = threadIdx.x * EACH + i;
        start[i] = u32(segment_start[segment < most ? segment : most]);
        if (i < EACH) {
            adapter[i] = segment < most ? segment_adapter[segment] : -1;
        }
    }
    if (threadIdx.x < MOST_PARTS) {
        piece.part[threadIdx.x].count = 0;
        piece.part[threadIdx.x].groups = 0;
    }
    u32 units[EACH], own = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        units[i] = units_of(start[i + 1] - start[i]);
        own += units[i];
    }
    u32 through = own;
#pragma unroll
    for (u32 distance = 1; distance < 32; distance *= 2) {
        u32 below = __shfl_up_sync(ALL_LANES, through, distance);
        through += lane >= distance ? below : 0;
    }
    if (lane == 31) {
        piece.totals[warp] = through;
    }
    __syncthreads();
    u32 total = 0, before = through - own;
#pragma unroll
    for (u32 other = 0; other < WARPS; other++) {
        u32 found = piece.totals[other];
        total += found;
        before += other < warp ? found : 0;
    }
    u32 groups = u32((p.output.d + GROUP - 1) / GROUP), all = total * groups, each = (all + gridDim.x - 1) / gridDim.x;
    u32 begin = blockIdx.x * each, end = begin + each < all ? begin + each : all;
    u32 first = begin / groups;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
#pragma unroll
        for (u32 number = 0; number < MOST_PARTS; number++) {
            u32 unit = first + number;
            u32 from = unit * groups < begin ? begin : unit * groups, to = (unit + 1) * groups < end ? (unit + 1) * groups : end;
            if (unit >= before && unit < before + units[i] && from < to) {
                u32 at = start[i] + (unit - before) * MOST;
                Part &part = piece.part[number];
                part.adapter = adapter[i];
                part.start = at;
                part.count = start[i + 1] - at < MOST ? start[i + 1] - at : MOST;
                part.first = from - unit * groups;
                part.groups = to - from;
            }
        }
        before += units[i];
    }
}
