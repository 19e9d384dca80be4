// The last step for tokens of many adapters, on what the launch before writes. A piece of work is one adapter and one group of 32 columns; those of a
// window stand in one line, adapter after adapter, of which each warp has an equal stretch. Nothing is added across adapters: of what a piece
// sums only the adapter's own rows are stored, so that no sums are held, and registers are left for pieces that are decoded before x is there.
#pragma once

#include "codebook_gemm/expand.cuh"

// AHEAD: pieces that a warp decodes before x is there.
template <u32 AHEAD> struct Balanced {
    static constexpr bool DEPENDENT = true;

    struct Place {
        u32 slot, group;
    };

    Window window;
    u32 segment[2];      // of a lane's two rows
    Place first;         // the warp's first piece
    u32 count;           // of the warp's pieces
    element *to[2];      // a lane's columns of the window's first group
    f32 scale[2];
    u32 a[DEPTHS][4];
    u32 decoded[AHEAD][DEPTHS][4][2];

    // The block's columns from group `begin` on, for every adapter in the tile. Brings the first window. After the tile is read.
    __device__ __forceinline__ void start(const TileParams &p, Tile &tile, Space &space, u32 begin) {
        window.parity = 0;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            segment[half] = tile.row_segment[threadIdx.x % 32 / 4 + 8 * half];
        }
        open(p, tile, space, begin, 0);
    }

    // The window that starts there. Its codes are on their way.
    __device__ __forceinline__ void open(const TileParams &p, Tile &tile, Space &space, u32 first_group, u32 first_segment) {
        open_window(p.output, tile, space, window, first_group, first_segment);
        u32 all = window.segments * window.groups, each = (all + WARPS - 1) / WARPS, from = threadIdx.x / 32 * each;
        count = from >= all ? 0 : all - from < each ? all - from : each;
        first.slot = window.groups > 0 ? from / window.groups : 0;
        first.group = from - first.slot * window.groups;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            i32 token = segment[half] < ROWS ? tile.token[threadIdx.x % 32 / 4 + 8 * half] : 0;
            to[half] = p.y + u64(token) * p.y_stride + u64(first_group) * GROUP + threadIdx.x % 4 * 8;
        }
    }

    // Until the window is there, for all threads after the next barrier.
    __device__ __forceinline__ void wait(Tile &tile) { wait_window(tile, window); }

    __device__ __forceinline__ void advance(Place &place) const {
        place.group++;
        if (place.group == window.groups) {
            place.group = 0;
            place.slot++;
        }
    }

    // After the tables are filled and the window is there.
    __device__ __forceinline__ void decode_next(const Tile &tile, const Space &space) {
        Place place = first;
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) {
            if (k < count) {
                decode(tile, space, window, place.slot, place.group, decoded[k]);
                advance(place);
            }
        }
    }

    __device__ __forceinline__ void multiply(const TileParams &p, Place place, const u32 (&b)[DEPTHS][4][2]) {
        f32 sum[4][4] = {};
#pragma unroll
        for (u32 depth = 0; depth < DEPTHS; depth++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                mma_m16n8k16<element>(sum[i], a[depth], b[depth][i]);
            }
        }
        bool inside = (window.first_group + place.group) * GROUP + threadIdx.x % 4 * 8 < p.output.d;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            if (inside && segment[half] == window.first_segment + place.slot) {
                f32 value[8];
#pragma unroll
                for (u32 e = 0; e < 8; e++) {
                    value[e] = scale[half] * sum[e % 4][2 * half + e / 4];
                }
                store_columns(to[half] + place.group * GROUP, value, false, make_uint4(0, 0, 0, 0));
            }
        }
    }

    // y is written over.
    __device__ __forceinline__ void fetch_y(const TileParams &, const Tile &, Space &, u32) {}

    // After apply_core.
    __device__ __forceinline__ void finish(const TileParams &p, Tile &tile, Space &space, u32) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 depth = 0; depth < DEPTHS; depth++) {
            ldmatrix_x4(a[depth], shared_address(&space.g[lane % 16][depth * 16 + lane / 16 * 8]));
        }
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            scale[half] = segment[half] < ROWS ? tile.scaling[lane / 4 + 8 * half] * tile.segment_scale[segment[half]] : 0.0f;
        }
        Place place = first;
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) {
            if (k < count) {
                multiply(p, place, decoded[k]);
                advance(place);
            }
        }
#pragma unroll 1
        for (u32 done = AHEAD;; done = 0) {
#pragma unroll 1
            for (; done < count; done++) {
                u32 b[DEPTHS][4][2];
                decode(tile, space, window, place.slot, place.group, b);
                multiply(p, place, b);
                advance(place);
            }
            u32 next_segment = window.first_segment + window.segments, next_group = window.first_group;
            if (next_segment >= tile.segments) {
                next_segment = 0;
                next_group += window.groups;
                if (next_group >= tile.end_group) {
                    break;
                }
            }
            // Everyone is done with this window.
            __syncthreads();
            open(p, tile, space, next_group, next_segment);
            wait(tile);
            __syncthreads();
            place = first;
        }
    }
};
