// The last step of the codebook GEMM on the tensor cores: y (+)= s·g·Uᵀ. A warp has one or two groups of 32 columns of y, and all
// adapters of the tile, or some where there are more warps than groups. All adapters add to the same sums of mma: of g, a row is zero
// for every adapter but its own. A piece of work is one adapter and one group. As decode.cuh orders columns, D leaves lane 4q + t with
// columns 8t to 8t + 7 of its two rows: 16 bytes of y.
#pragma once

#include "codebook_gemm/decode.cuh"
#include "tile/columns.cuh"

// One warp's share of the block's work. Codes do not depend on x: the first pieces may be decoded before x is there. HELD: groups of
// columns whose sums a warp has at once. DECODED: pieces that it decodes before it multiplies them, of rank 16.
template <bool ALIGNED, u32 HELD, u32 DECODED = HELD == 1 ? 4 : 2> struct Pieces {
    static constexpr bool DEPENDENT = false;
    static constexpr u32 AHEAD = DECODED > DEPTHS ? DECODED / DEPTHS : 1;

    Window window;
    u32 group, held;             // the warp's first group in the window, and how many; the second is WARPS further on
    u32 rows;                    // bit i: the adapter of a lane's row i is the warp's in this window of groups
    u32 first, next, total;      // its first slot in the window; pieces, of which `next` is to be multiplied
    u32 segment[2];              // of a lane's two rows
    u32 decoded[AHEAD][DEPTHS][4][2]; // AHEAD pieces from `next` on as mma's B: fragment i of the four for each 16 ranks
    f32 sum[HELD][4][4];
    u32 a[DEPTHS][4];

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
        // Where there are fewer groups than warps, some warps share a group and split the adapters: rows of one adapter are one warp's.
        u32 warp = threadIdx.x / 32, segments = tile.segments, shift = window.groups <= 1 ? 0 : window.groups <= 2 ? 1 : window.groups <= 4 ? 2 : 3;
        u32 each = (segments + (WARPS >> shift) - 1) >> (3 - shift);
        group = warp & ((1u << shift) - 1);
        held = HELD == 2 && group + WARPS < window.groups ? 2 : group < window.groups ? 1 : 0;
        u32 low = (warp >> shift) * each, high = low + each < segments ? low + each : segments;
        rows = 0;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            rows |= u32(segment[half] >= low && segment[half] < high) << half;
        }
        u32 from = low > first_segment ? low : first_segment, until = first_segment + window.segments;
        until = high < until ? high : until;
        first = from - first_segment;
        total = from < until ? (until - from) * held : 0;
        next = 0;
    }

    // Until the window is there, for all threads after the next barrier.
    __device__ __forceinline__ void wait(Tile &tile) { wait_window(tile, window); }

    // Which of the warp's groups piece `n` is of, and its slot.
    __device__ __forceinline__ u32 which(u32 n) const { return HELD == 2 && held == 2 ? n % 2 : 0; }
    __device__ __forceinline__ u32 slot(u32 n) const { return first + (HELD == 2 && held == 2 ? n / 2 : n); }

    __device__ __forceinline__ u64 first_column(u32 held) const {
        return u64(window.first_group + group + held * WARPS) * GROUP + threadIdx.x % 4 * 8;
    }

    // Whether a lane has something of its row `half` to add to its columns.
    __device__ __forceinline__ bool mine(const TileParams &p, u32 k, u32 half) const {
        return k < held && (rows >> half & 1) && first_column(k) < p.output.d;
    }
    __device__ __forceinline__ bool whole(const TileParams &p, u32 k) const { return ALIGNED || (p.y_aligned && first_column(k) + 8 <= p.output.d); }

    __device__ __forceinline__ element *destination(const TileParams &p, const Tile &tile, u32 k, u32 half) const {
        return p.y + u64(tile.token[threadIdx.x % 32 / 4 + 8 * half]) * p.y_stride + first_column(k);
    }

    // The next pieces. After the tables are filled and the window is there.
    __device__ __forceinline__ void decode_next(const Tile &tile, const Space &space) {
#pragma unroll
        for (u32 c = 0; c < AHEAD; c++) {
            if (next + c < total) {
                decode(tile, space, window, slot(next + c), group + which(next + c) * WARPS, decoded[c]);
            }
        }
    }

    __device__ __forceinline__ void multiply_next() {
#pragma unroll
        for (u32 c = 0; c < AHEAD; c++) {
            if (next + c < total) {
                u32 here = window.first_segment + slot(next + c);
                bool own[2] = {segment[0] == here, segment[1] == here};
#pragma unroll
                for (u32 depth = 0; depth < DEPTHS; depth++) {
                    const u32 g[4] = {own[0] ? a[depth][0] : 0, own[1] ? a[depth][1] : 0, own[0] ? a[depth][2] : 0, own[1] ? a[depth][3] : 0};
#pragma unroll
                    for (u32 k = 0; k < HELD; k++) {
                        if (which(next + c) == k) {
#pragma unroll
                            for (u32 i = 0; i < 4; i++) {
                                mma_m16n8k16<element>(sum[k][i], g, decoded[c][depth][i]);
                            }
                        }
                    }
                }
            }
        }
        next += AHEAD;
    }

    // What is there, once y may be read: a place of its own for each lane's 16 bytes.
    __device__ __forceinline__ uint4 *place(Space &space, u32 free, u32 k, u32 half) const {
        return reinterpret_cast<uint4 *>(space.v[free]) + (k * 2 + half) * THREADS + threadIdx.x;
    }

    __device__ __forceinline__ void fetch_y(const TileParams &p, const Tile &tile, Space &space, u32 free) {
#pragma unroll
        for (u32 k = 0; k < HELD; k++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                if (p.accumulate && mine(p, k, half) && whole(p, k)) {
                    cp_async_16(shared_address(place(space, free, k, half)), destination(p, tile, k, half));
                }
            }
        }
        cp_async_commit();
    }

    __device__ __forceinline__ void store(const TileParams &p, const Tile &tile, Space &space, u32 free, u32 k, u32 half) {
        element *to = destination(p, tile, k, half);
        f32 value[8], scale = tile.scaling[threadIdx.x % 32 / 4 + 8 * half] * tile.segment_scale[segment[half]];
#pragma unroll
        for (u32 e = 0; e < 8; e++) {
            value[e] = scale * sum[k][e % 4][2 * half + e / 4];
        }
        if (whole(p, k)) {
            uint4 before = make_uint4(0, 0, 0, 0);
            if (p.accumulate) {
                before = *place(space, free, k, half);
            }
            store_columns(to, value, true, before);
            return;
        }
        u64 column = first_column(k);
#pragma unroll 1
        for (u32 e = 0; e < 8 && column + e < p.output.d; e++) {
            // Chosen, not indexed: an index known at run time alone would put the values into memory.
            f32 one = value[0];
#pragma unroll
            for (u32 other = 1; other < 8; other++) {
                one = e == other ? value[other] : one;
            }
            to[e] = narrow<element>(p.accumulate ? widen(to[e]) + one : one);
        }
    }

    __device__ __forceinline__ void fetch_g(const Space &space) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 depth = 0; depth < DEPTHS; depth++) {
            ldmatrix_x4(a[depth], shared_address(&space.g[lane % 16][depth * 16 + lane / 16 * 8]));
        }
    }

    __device__ __forceinline__ void clear_sums() {
#pragma unroll
        for (u32 i = 0; i < HELD * 16; i++) {
            sum[i / 16][i / 4 % 4][i % 4] = 0.0f;
        }
    }

    __device__ __forceinline__ void store_all(const TileParams &p, const Tile &tile, Space &space, u32 free) {
        cp_async_wait<0>();
#pragma unroll
        for (u32 k = 0; k < HELD; k++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                if (mine(p, k, half)) {
                    store(p, tile, space, free, k, half);
                }
            }
        }
    }

    // Whether all of the block's columns and adapters are in the first window, and the warp's pieces decoded by decode_next.
    __device__ __forceinline__ bool all_decoded(const Tile &tile) const {
        return window.segments == tile.segments && window.first_group + window.groups >= tile.end_group && total <= AHEAD;
    }

    // The same of every warp.
    __device__ __forceinline__ bool all_decoded_everywhere(const Tile &tile) const {
        u32 shift = window.groups <= 1 ? 0 : window.groups <= 2 ? 1 : window.groups <= 4 ? 2 : 3;
        u32 each = (tile.segments + (WARPS >> shift) - 1) >> (3 - shift);
        return window.segments == tile.segments && window.first_group + window.groups >= tile.end_group && each * HELD <= AHEAD;
    }

    // What is left then, after apply_core.
    __device__ __forceinline__ void finish(const TileParams &p, const Tile &tile, Space &space, u32 free) {
        fetch_g(space);
        clear_sums();
        multiply_next();
        store_all(p, tile, space, free);
    }

    // After apply_core. `free`: which buffer of V is. `ready`: the first pieces are decoded. Calls `before_y` before it writes y the
    // first time; by its end y has been fetched.
    template <class BeforeY>
    __device__ __forceinline__ void run(const TileParams &p, Tile &tile, Space &space, u32 free, bool ready, BeforeY before_y) {
        fetch_g(space);
#pragma unroll 1
        for (bool begun = false, writing = false;;) {
            if (!begun) {
                clear_sums();
            }
#pragma unroll 1
            for (; next < total; ready = false) {
                if (!ready) {
                    decode_next(tile, space);
                }
                multiply_next();
            }
            ready = false;
            u32 next_segment = window.first_segment + window.segments, next_group = window.first_group;
            begun = next_segment < tile.segments;
            if (!begun) {
                if (!writing) {
                    before_y();
                    writing = true;
                }
                store_all(p, tile, space, free);
                next_segment = 0;
                next_group += window.groups;
                if (next_group >= tile.end_group) {
                    break;
                }
            }
            // Everyone is done with this window.
            __syncthreads();
            open(p, tile, space, next_group, next_segment);
            if (writing) {
                fetch_y(p, tile, space, free);
            }
            wait(tile);
            __syncthreads();
        }
    }
};
