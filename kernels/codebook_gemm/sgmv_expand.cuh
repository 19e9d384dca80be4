// y (+)= s·h·Q·Uᵀ for the tokens of one adapter after the other: the second kernel of sgmv.cu, and what sgmv_fused.cu has of it.
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define BULK
#endif

#include "codebook_gemm/expand.cuh"
#include "ptx/grid.cuh"
#include "codebook_gemm/sgmv_params.cuh"
#include "codebook_gemm/sgmv_parts.cuh"

// Sums of both stages, of which there are 128, fill two words of each bank as they are packed, so that a load of 32 of them takes two passes. Here
// each lane has a bank of its own.
constexpr bool SPREAD = WIDTH == 7 || WIDTH == 16;

struct Spread {
    const u8 *tables;
    u32 lane;    // where the lane's bank of the adapter's table starts, in bytes

    __device__ __forceinline__ u32 value(u32 fields, u32 place, u32) const {
        return *reinterpret_cast<const u32 *>(tables + and_or(place < 7 ? fields << (7 - place) : fields >> (place - 7), 127u << 7, lane));
    }
};

// What the tokens of a part are multiplied with.
struct Coefficients {
    element g[ROWS][G_STRIDE];
    f32 h[ROWS][RANK];
};

// Behind it lie the codes of all ranks.
struct ExpandSpace {
    alignas(128) u8 table[MOST_PARTS][SPREAD ? 128 * 128 : 2 * TABLE];
    Coefficients of[MOST_PARTS];
};

static_assert(sizeof(ExpandSpace) == EXPAND_BYTES, "the host's size is another");

// As fill_tables takes it.
struct OneTable {
    element table[1][TABLE];
};

// The table of a part's adapter: see fill_tables. Warps share it.
template <class Adapters> __device__ __forceinline__ void fill_spread(Record record, Adapters &tile, u8 *table) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Holding holding = record.holding();
    f32 low = warp & 2 ? record.values[1] : record.values[0], high = warp & 2 ? record.values[3] : record.values[2];
    u32 mine = holding.hold(warp & 4 ? high : low).bits;
    // A warp has 16 values; of one, eight lanes write a copy for each lane.
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 entry = warp % 2 * 16 + i * 4 + lane / 8, value = __shfl_sync(ALL_LANES, mine, entry);
        *reinterpret_cast<uint4 *>(table + (warp / 2 * 32 + entry) * 128 + lane % 8 * 16) = make_uint4(value, value, value, value);
    }
    if (threadIdx.x == 0) {
        tile.segment_scale[0] = holding.scale();
    }
}

// The sums of all shares for the row and the columns that sum_parts gives a thread.
__device__ __forceinline__ void fetch_h(const TileParams &p, const SgmvPlan &plan, u32 slice, u32 place, bool there, f32 (&h)[DEPTHS]) {
    const f32 *from = plan.shrunk + (u64(slice) * plan.shares * p.tokens + place) * RANK + threadIdx.x % 16;
    f32 part[SHARES][DEPTHS];
#pragma unroll
    for (u32 share = 0; share < SHARES; share++) {
#pragma unroll
        for (u32 d = 0; d < DEPTHS; d++) {
            part[share][d] = there && share < plan.shares ? from[u64(share) * p.tokens * RANK + d * 16] : 0.0f;
        }
    }
#pragma unroll
    for (u32 d = 0; d < DEPTHS; d++) {
        h[d] = 0.0f;
#pragma unroll
        for (u32 share = 0; share < SHARES; share++) {
            h[d] += part[share][d];
        }
    }
}

// Tokens without an adapter get zeros: rows in turn are a block's.
template <bool ALIGNED> __device__ __forceinline__ void clear_bare(const TileParams &p) {
    constexpr u32 AT_ONCE = ALIGNED ? 8 : 1;
#pragma unroll 1
    for (u64 token = blockIdx.x + threadIdx.x / 32 * gridDim.x; token < p.tokens; token += WARPS * gridDim.x) {
        if (p.index[2 + token] < 0) {
            element *to = p.y + token * p.y_stride;
#pragma unroll 1
            for (u64 o = threadIdx.x % 32 * AT_ONCE; o < p.output.d; o += 32 * AT_ONCE) {
                if constexpr (ALIGNED) {
                    store_16(to + o, make_uint4(0, 0, 0, 0));
                } else {
                    to[o] = narrow<element>(0.0f);
                }
            }
        }
    }
}

// The rows from the part's `first` token on, of which some may not be there.
__device__ __forceinline__ void take_rows(const TileParams &p, const Part &part, u32 first, Tile &tile) {
    u32 row = threadIdx.x % ROWS;
    bool there = first + row < part.count;
    tile.token[row] = there ? p.index[2 + p.tokens + part.start + first + row] : -1;
    tile.adapter[row] = there ? part.adapter : -1;
}

// The scalings of the rows, each kept for the thread that apply_core wants it of.
__device__ __forceinline__ void keep_scalings(const TileParams &p, const Piece &piece, Tile (&tile)[MOST_PARTS]) {
#pragma unroll
    for (u32 part = 0; part < MOST_PARTS; part++) {
        if (piece.part[part].groups > 0 && threadIdx.x % 16 == 0) {
            tile[part].scaling[threadIdx.x / 16] = fetch_scaling(p, tile[part]);
        }
    }
}

// AHEAD: groups of columns that a warp decodes before it waits.
template <bool ALIGNED, u32 AHEAD = 6 / DEPTHS> __device__ __forceinline__ void expand(const TileParams &p, const SgmvPlan &plan, u32 slice) {
    extern __shared__ __align__(1024) u8 dynamic[];
    __shared__ Tile tile[MOST_PARTS];
    __shared__ Piece piece;
    ExpandSpace &space = *reinterpret_cast<ExpandSpace *>(dynamic);
    u32 *codes = reinterpret_cast<u32 *>(dynamic + sizeof(ExpandSpace));
    grid_launch_next();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#ifdef BULK
    if (threadIdx.x < MOST_PARTS) {
        mbarrier_init(&tile[threadIdx.x].codes_arrived, 1);
        fence_mbarrier_init();
    }
#endif
    read_piece(p, plan.segments, piece);
    __syncthreads();
    const Part(&parts)[MOST_PARTS] = piece.part;
    u32 before_second = parts[0].groups, all = before_second + parts[1].groups, words = WIDTH ? WIDTH : p.output.bits == EACH_COLUMN ? WIDEST : p.output.bits;
    Window window;
    Record record[MOST_PARTS];
    // Rows of the second part start behind those of the first, on 16 bytes.
    u32 behind = HEAD + (before_second * words + 6) / 4 * 4, pitch = row_pitch(behind + (all - before_second) * words + 3);
#pragma unroll
    for (u32 part = 0; part < MOST_PARTS; part++) {
        if (threadIdx.x < ROWS) {
            take_rows(p, parts[part], 0, tile[part]);
        }
        if (threadIdx.x == 0) {
            u32 column = u32((p.output.d + 31) / 32) * words;
            tile[part].in_bulk = WIDTH && (column | p.output.words_per_adapter) % 4 == 0 && u64(p.output.codes) % 16 == 0;
            tile[part].codes = part * behind;
            tile[part].pitch = pitch;
            tile[part].segments = 1;
            tile[part].segment_adapter[0] = parts[part].adapter;
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 part = 0; part < MOST_PARTS; part++) {
        window.first_segment = 0;
        window.segments = 1;
        window.first_group = parts[part].first;
        window.groups = parts[part].groups;
        window.skew = 0;
        if (parts[part].groups > 0) {
            stage_codes(p.output, tile[part], *codes, window);
            record[part].fetch(p.output, tile[part], SPREAD ? 0 : warp);
            if (threadIdx.x == 0) {
                piece.skew[part] = window.skew;
            }
        }
    }
#pragma unroll
    for (u32 part = 0; part < MOST_PARTS; part++) {
        if (parts[part].groups > 0) {
            if constexpr (SPREAD) {
                fill_spread(record[part], tile[part], space.table[part]);
            } else {
                fill_tables(p.output, tile[part], reinterpret_cast<OneTable &>(space.table[part]), record[part]);
            }
        }
    }
    keep_scalings(p, piece, tile);
    cp_async_wait<0>();
#ifdef BULK
#pragma unroll
    for (u32 part = 0; part < MOST_PARTS; part++) {
        if (parts[part].groups > 0 && tile[part].in_bulk) {
            mbarrier_wait(&tile[part].codes_arrived, 0);
        }
    }
#endif
    __syncthreads();
    // A warp has one of the parts, and of that neighbouring groups from `own` on: so a row's columns come together.
    u32 firsts = all > 0 ? (before_second * WARPS + all / 2) / all : 0;
    firsts = before_second > 0 && firsts == 0 ? 1 : before_second < all && firsts == WARPS ? WARPS - 1 : firsts;
    bool second = warp >= firsts;
    const Tile &its = tile[second];
    u32 groups = parts[second].groups, warps = second ? WARPS - firsts : firsts, each = (groups + warps - 1) / warps;
    u32 own = (second ? warp - firsts : warp) * each, held = own < groups ? (groups - own < each ? groups - own : each) : 0;
    auto decode_own = [&](u32 k, u32(&b)[DEPTHS][4][2]) {
        const u32 *rows = codes + its.codes;
        u32 pitch = its.pitch, skew = piece.skew[second];
        if constexpr (SPREAD) {
            decode_group(rows, pitch, skew, own + k, Spread{space.table[0], lane * 4 + (second ? u32(sizeof(space.table[0])) : 0)}, b);
        } else {
            decode_group(rows, pitch, skew, own + k, Packed{shared_address(space.table[second])}, b);
        }
    };
    u32 decoded[AHEAD][DEPTHS][4][2];
#pragma unroll
    for (u32 k = 0; k < AHEAD; k++) {
        if (k < held) {
            decode_own(k, decoded[k]);
        }
    }
    grid_wait();
    u32 most = parts[0].count > parts[1].count ? parts[0].count : parts[1].count;
    // Of each of a lane's rows: where its columns start, in how many groups there are some, and what is there of them. The last comes while the group
    // before is made.
    u32 a[DEPTHS][4], inside[2];
    element *to[2];
    u64 rest;
    f32 scale[2];
    uint4 before[2] = {};
    auto fetch_before = [&](u32 k, u32 half) {
        if (ALIGNED && p.accumulate && k < inside[half]) {
            before[half] = *reinterpret_cast<const uint4 *>(to[half] + k * GROUP);
        }
    };
    // Takes the tokens from the `first` of each part on.
    auto next_rows = [&](u32 first) {
        // Everyone has read the last rows' coefficients.
        __syncthreads();
#pragma unroll
        for (u32 part = 0; part < MOST_PARTS; part++) {
            if (threadIdx.x < ROWS) {
                take_rows(p, parts[part], first, tile[part]);
            }
        }
        __syncthreads();
        keep_scalings(p, piece, tile);
    };
    // Turns to the rows from the `first` of each part on, whose tokens are taken, and from group `k` on.
    auto turn = [&](u32 first, u32 k) {
        f32 h[MOST_PARTS][DEPTHS];
#pragma unroll
        for (u32 part = 0; part < MOST_PARTS; part++) {
            u32 row = first + threadIdx.x / 16;
            fetch_h(p, plan, slice, parts[part].start + row, row < parts[part].count, h[part]);
        }
#pragma unroll
        for (u32 part = 0; part < MOST_PARTS; part++) {
            if (parts[part].groups > 0) {
                apply_core(p, tile[part], space.of[part], h[part], tile[part].scaling[threadIdx.x / 16]);
            }
        }
#pragma unroll
        for (u32 depth = 0; depth < DEPTHS; depth++) {
            ldmatrix_x4(a[depth], shared_address(&space.of[second].g[lane % 16][depth * 16 + lane / 16 * 8]));
        }
        u64 column = u64(parts[second].first + own) * GROUP + lane % 4 * 8;
        rest = column < p.output.d ? p.output.d - column : 0;
        u32 groups_inside = rest >= u64(held) * GROUP ? held : u32((rest + GROUP - 1) / GROUP);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            i32 token = its.token[lane / 4 + 8 * half];
            inside[half] = token >= 0 ? groups_inside : 0;
            to[half] = p.y + u64(token >= 0 ? token : 0) * p.y_stride + column;
            scale[half] = its.scaling[lane / 4 + 8 * half] * its.segment_scale[0];
            fetch_before(k, half);
        }
    };
    auto multiply = [&](u32 k, const u32(&b)[DEPTHS][4][2]) {
        f32 sum[4][4] = {};
#pragma unroll
        for (u32 depth = 0; depth < DEPTHS; depth++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                mma_m16n8k16<element>(sum[i], a[depth], b[depth][i]);
            }
        }
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            if (k < inside[half]) {
                f32 value[8];
#pragma unroll
                for (u32 e = 0; e < 8; e++) {
                    value[e] = scale[half] * sum[e % 4][2 * half + e / 4];
                }
                if constexpr (ALIGNED) {
                    store_columns(to[half] + k * GROUP, value, p.accumulate, before[half]);
                } else {
                    store_columns(to[half] + k * GROUP, value, p.accumulate, rest - k * GROUP);
                }
            }
            fetch_before(k + 1, half);
        }
    };
    if (most > 0) {
        turn(0, 0);
    }
#pragma unroll
    for (u32 k = 0; k < AHEAD; k++) {
        if (k < held) {
            multiply(k, decoded[k]);
        }
    }
    // For further rows what was decoded ahead is decoded again: it would take the registers of all that comes in between.
#pragma unroll 1
    for (u32 first = 0, k = AHEAD; first < most; k = 0) {
#pragma unroll 1
        for (; k < held; k++) {
            u32 b[DEPTHS][4][2];
            decode_own(k, b);
            multiply(k, b);
        }
        first += ROWS;
        if (first < most) {
            next_rows(first);
            turn(first, 0);
        }
    }
    if (!p.accumulate) {
        clear_bare<ALIGNED>(p);
    }
}
