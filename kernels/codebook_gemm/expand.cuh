// The last step of the codebook GEMM on the tensor cores: y (+)= s·g·Uᵀ. A piece of work is one warp's: some of the tile's adapters, and
// 32 columns of y. All adapters of a piece add to the same sums of mma: of g, a row is zero for every adapter but its own.
//
// Codes come through shared memory, a window of columns and adapters at a time. Lane 4q + t, as mma counts them, decodes columns
// 4q to 4q + 3 of the 32, for the ranks that mma wants of lane t: four neighbouring fields of each column of codes, at most two
// words. Fragment i takes field i, so that D leaves each lane with columns 8t to 8t + 7 of its two rows: 16 bytes of y.
#pragma once

#include "codebook_gemm/tile.cuh"
#include "ptx/special.cuh"

// ---- tables ----

// Where the values of a width start in an adapter's table, in bytes. A field's place is added by OR.
__device__ __forceinline__ u32 table_start(u32 bits) { return bits >= 7 ? 0 : bits == 4 ? 256 : bits == 3 ? 288 : bits == 2 ? 304 : 312; }

// The table of each adapter in the tile: every value that a field can stand for, rounded once. f16 has few exponents, and the values
// of an adapter may be small: a power of two goes to the segment's scale. An adapter whose values are not finite must not reach the
// sums of others: its table is zero, and its scale not a number.
__device__ __forceinline__ void fill_tables(const TileParams &p, Tile &tile, Space &space) {
    u32 lane = threadIdx.x % 32, bits = WIDTH ? WIDTH : p.output.bits;
    bool each = bits == EACH_COLUMN, joint = bits >= 7;
    // What the widths in use read of the record; the rest need not hold numbers.
    u32 first = each ? 0 : stage1(bits), end = each || bits == 4 ? 28 : bits == 3 ? 12 : bits == 2 ? 4 : 0;
    for (u32 segment = threadIdx.x / 32; segment < tile.segments; segment += WARPS) {
        const f32 *record = p.output.codebooks + u64(tile.segment_adapter[segment]) * CODEBOOK_LEN;
        // Both stages, two residual centroids apart, and the entries of one stage.
        f32 values[5] = {};
        if (joint) {
            f32 centre = record[28 + lane % 16];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                values[i] = centre + record[STAGE2 + lane / 16 + 2 * i];
            }
        }
        if (WIDTH < 7 && lane >= first && lane < end) {
            values[4] = record[lane];
        }
        f32 greatest = 0.0f;
        bool finite = true;
#pragma unroll
        for (u32 i = 0; i < 5; i++) {
            greatest = fmaxf(greatest, fabsf(values[i]));
            finite = finite && fabsf(values[i]) < infinity();
        }
        finite = __all_sync(ALL_LANES, finite);
#pragma unroll
        for (u32 distance = 16; distance > 0; distance /= 2) {
            greatest = fmaxf(greatest, __shfl_xor_sync(ALL_LANES, greatest, distance));
        }
        u32 exponent = exponent_below(greatest);
        f32 scale = finite ? inverse_power(exponent) : 0.0f;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            space.table[segment][lane + 32 * i] = narrow<element>(finite ? values[i] * scale : 0.0f);
        }
        if (WIDTH < 7) {
            // The record has the narrow widths first; those of no bits read the zeros at the end.
            u32 place = lane < 4 ? 152 + lane : lane < 12 ? 140 + lane : lane < 28 ? 116 + lane : 128 + lane;
            space.table[segment][place] = narrow<element>(finite ? values[4] * scale : 0.0f);
        }
        if (lane == 0) {
            tile.segment_scale[segment] = finite ? power(exponent) : __uint_as_float(0x7fc00000);
        }
    }
}

// ---- codes ----

constexpr u32 HEAD = WIDTH ? 0 : 4;       // words before a row of codes; the first tells its width
constexpr u32 CHUNK = 4 / DEPTHS;         // adapters of a piece, as many as are decoded into 32 registers
constexpr u32 WIDEST = 16;                // words of 32 fields

// What of the block's codes lies in shared memory at once: for each of its adapters and each rank, a row of words.
struct Window {
    u32 first_segment, segments;
    u32 first_group, groups;                // of 32 columns
    u32 segments_at_most, groups_at_most;   // as much as has room
    u32 place, pitch;                       // in words: of the first row in the block's shared memory, from one row to the next
    u32 skew;                               // words of a row before the first that was asked for
};

// Rows start on 16 bytes, and of four that are two ranks apart, eight words lie in different banks.
__device__ __forceinline__ u32 row_pitch(u32 words) { return (HEAD + words + 15) / 16 * 16 + 4; }

// How much of `groups` groups and `segments` adapters has room from word `place` on: of few columns all adapters of a piece.
__device__ __forceinline__ Window plan_windows(const FactorParams &factor, u32 groups, u32 segments, u32 place) {
    Window window;
    u32 words = WIDTH ? WIDTH : factor.bits == EACH_COLUMN ? WIDEST : factor.bits, room = (CODES_END - place) / RANK;
    u32 least = segments < CHUNK ? segments : CHUNK;
#pragma unroll 1
    while (groups > 1 && row_pitch(groups * words) * least > room) {
        groups = (groups + 1) / 2;
    }
    window.pitch = row_pitch(groups * words);
    window.segments_at_most = room / window.pitch;
    window.groups_at_most = groups;
    window.place = place;
    return window;
}

// Brings the codes of a window, as one group of cp.async.
__device__ __forceinline__ void stage_codes(const FactorParams &factor, const Tile &tile, Space &space, Window &window) {
    bool each = WIDTH == 0 && factor.bits == EACH_COLUMN;
    u32 uniform = WIDTH ? WIDTH : factor.bits, column = u32((factor.d + 31) / 32) * uniform;
    bool vectors = !each && (column | factor.words_per_adapter) % 4 == 0 && u64(factor.codes) % 16 == 0;
    u32 start = window.first_group * uniform, words = window.groups * (each ? WIDEST : uniform);
    window.skew = vectors ? start % 4 : 0;
    // Of a row: to the end of the last 16 bytes, which belong to the same column.
    u32 pieces = vectors ? (window.skew + words + 3) / 4 : words;
    u32 shift = pieces <= 4 ? 2 : pieces <= 8 ? 3 : pieces <= 16 ? 4 : 5, lanes = 1u << shift;
    u32 *rows = reinterpret_cast<u32 *>(&space) + window.place;
#pragma unroll 1
    for (u32 row = threadIdx.x >> shift; row < window.segments * RANK; row += THREADS >> shift) {
        u32 j = row % RANK;
        u32 *to = rows + row * window.pitch;
        if (j >= factor.rank) {
            // Of a rank that is not there g is zero: any values that are numbers will do.
            if (HEAD) {
                to[0] = 0;
            }
            continue;
        }
        const u32 *region = factor.codes + u64(tile.segment_adapter[window.first_segment + row / RANK]) * factor.words_per_adapter;
        const u32 *from = region + j * column + start - window.skew;
        u32 count = pieces;
        if (HEAD) {
            u32 bits = uniform;
            if (each) {
                bits = region[j] & 31;
                from = region + (region[j] >> 5) + window.first_group * bits;
                count = window.groups * bits;
            }
            to[0] = bits;
        }
#pragma unroll 1
        for (u32 piece = threadIdx.x % lanes; piece < count; piece += lanes) {
            if (vectors) {
                cp_async_16(shared_address(to + HEAD + 4 * piece), from + 4 * piece);
            } else {
                cp_async_4(shared_address(to + HEAD + piece), from + piece);
            }
        }
    }
    cp_async_commit();
}

// From which word on codes may lie: shrink fills the second buffer of V only if there is more than one to fill.
__device__ __forceinline__ u32 codes_place(const Tile &tile, u64 inputs) {
    return tile.base_count <= 1 && inputs <= STAGE ? CODES_AFTER_ONE : CODES_AFTER_BOTH;
}

// U as mma's B: of each adapter of a piece, fragment i of the four for each 16 ranks.
struct Decoded {
    u32 b[CHUNK][DEPTHS][4][2];
};

// Of the ranks that a lane decodes, the `n`th, less that of lane 0; that of lane 0 for n = 0.
__device__ __forceinline__ u32 rank_step(u32 n) { return n / 4 * 16 + n / 2 % 2 * 8 + n % 2; }
__device__ __forceinline__ u32 first_rank() { return threadIdx.x % 4 * 2; }

// Of one adapter, the `segment`th of the tile and the `slot`th of the window; and the window's `group`th group.
__device__ __forceinline__ void decode(const Space &space, const Window &window, u32 slot, u32 group, u32 (&b)[DEPTHS][4][2]) {
    u32 field = threadIdx.x % 32 / 4 * 4;
    const u32 *rows = reinterpret_cast<const u32 *>(&space) + window.place + (slot * RANK + first_rank()) * window.pitch;
    const u8 *tables = reinterpret_cast<const u8 *>(space.table);
    u32 table = (window.first_segment + slot) * u32(sizeof(space.table[0]));
#pragma unroll
    for (u32 pair = 0; pair < 2 * DEPTHS; pair++) {
        u32 value[2][4];
#pragma unroll
        for (u32 one = 0; one < 2; one++) {
            const u32 *row = rows + rank_step(2 * pair + one) * window.pitch;
            u32 bits = WIDTH ? WIDTH : row[0];
            const u32 *words = row + HEAD + window.skew + group * bits + field * bits / 32;
            u32 low = words[0], high = words[1], fields = __funnelshift_r(low, high, field * bits), step = bits ? bits : 1, mask = (2u << bits) - 2;
            if (bits == 16) {
                // A byte a stage, of which four and three bits are in use: made one byte.
                low = (low | low >> 4) & 0x007f007f;
                high = (high | high >> 4) & 0x007f007f;
                fields = ((low | low >> 8) & 0xffff) | (high | high >> 8) << 16;
                step = 8;
                mask = 0xfe;
            }
            u32 start = table | table_start(bits);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 place = and_or(i == 0 ? fields << 1 : fields >> (i * step - 1), mask, start);
                value[one][i] = *reinterpret_cast<const u16 *>(tables + place);
            }
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            b[pair / 2][i][pair % 2] = value[0][i] | value[1][i] << 16;
        }
    }
}

// ---- expand ----

__device__ __forceinline__ f32 low_half(u32 both) { return widen(element{u16(both)}); }
__device__ __forceinline__ f32 high_half(u32 both) { return widen(element{u16(both >> 16)}); }

// One warp's pieces of the block's work. Codes do not depend on x: the first piece is decoded before x is there.
template <bool ALIGNED> struct Pieces {
    Window window;
    u32 end_group, segments;                // of the block
    u32 chunk, chunks;                      // adapters of a piece; how many times that in the window
    u32 at, group;                          // the piece at hand, in the window
    Decoded decoded;
    u32 token[2], segment[2];               // of a lane's two rows
    uint4 before[2];                        // what is there; zeros where it is not read, or not as one
    u32 a[DEPTHS][4];
    f32 scale[2];

    // Groups [first, end) of columns, for every adapter in the tile. Brings the first window. After the tile is read. `place`: from
    // which word on shared memory is free for codes.
    __device__ __forceinline__ void start(const TileParams &p, const Tile &tile, Space &space, u32 first, u32 end, u32 place) {
        end_group = end;
        segments = tile.segments;
        window = plan_windows(p.output, first < end ? end - first : 0, segments, place);
        open(p, tile, space, first, 0);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 row = threadIdx.x % 32 / 4 + 8 * half;
            segment[half] = tile.row_segment[row];
            token[half] = u32(tile.token[row]);
        }
    }

    // The window that starts there. Its codes are on their way.
    __device__ __forceinline__ void open(const TileParams &p, const Tile &tile, Space &space, u32 first_group, u32 first_segment) {
        u32 groups_left = first_group < end_group ? end_group - first_group : 0, segments_left = segments - first_segment;
        window.first_group = first_group;
        window.first_segment = first_segment;
        window.groups = groups_left < window.groups_at_most ? groups_left : window.groups_at_most;
        window.segments = segments_left < window.segments_at_most ? segments_left : window.segments_at_most;
        // As even as can be.
        chunks = window.groups ? (window.segments + CHUNK - 1) / CHUNK : 0;
        chunk = CHUNK == 1 || chunks <= 1 ? CHUNK : (window.segments + chunks - 1) / chunks;
        stage_codes(p.output, tile, space, window);
        at = 0;
        group = threadIdx.x / 32;
        settle();
    }

    __device__ __forceinline__ void settle() {
#pragma unroll 1
        while (group >= window.groups && at < chunks) {
            group -= window.groups;
            at++;
        }
    }

    __device__ __forceinline__ bool more() const { return at < chunks; }
    __device__ __forceinline__ u32 slot() const { return at * chunk; }
    __device__ __forceinline__ u32 slots() const { return window.segments - slot() < chunk ? window.segments - slot() : chunk; }
    __device__ __forceinline__ u64 first_column() const { return u64(window.first_group + group) * GROUP; }

    // Where a lane's eight columns of its row `half` lie in this piece.
    __device__ __forceinline__ element *destination(const TileParams &p, u32 half) const {
        return p.y + u64(token[half]) * p.y_stride + first_column() + threadIdx.x % 4 * 8;
    }

    // Whether a lane has something of its row `half` to add in this piece.
    __device__ __forceinline__ bool mine(const TileParams &p, u32 half) const {
        return segment[half] - (window.first_segment + slot()) < slots() && first_column() + threadIdx.x % 4 * 8 < p.output.d;
    }
    __device__ __forceinline__ bool whole(const TileParams &p) const {
        return ALIGNED || (p.y_aligned && first_column() + threadIdx.x % 4 * 8 + 8 <= p.output.d);
    }

    // After the tables are filled and the window is there.
    __device__ __forceinline__ void decode_piece(const Space &space) {
        if (more()) {
            u32 first = slot(), count = slots();
#pragma unroll
            for (u32 c = 0; c < CHUNK; c++) {
                if (c < count) {
                    decode(space, window, first + c, group, decoded.b[c]);
                }
            }
        }
    }

    // What is there, once y may be read.
    __device__ __forceinline__ void fetch_y(const TileParams &p) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            before[half] = make_uint4(0, 0, 0, 0);
            if (p.accumulate && more() && mine(p, half) && whole(p)) {
                before[half] = *reinterpret_cast<const uint4 *>(destination(p, half));
            }
        }
    }

    __device__ __forceinline__ void expand(const TileParams &p) {
        f32 sum[4][4] = {};
        u32 first = window.first_segment + slot(), count = slots();
#pragma unroll
        for (u32 c = 0; c < CHUNK; c++) {
            if (c < count) {
                bool own[2] = {segment[0] == first + c, segment[1] == first + c};
#pragma unroll
                for (u32 depth = 0; depth < DEPTHS; depth++) {
                    const u32 g[4] = {own[0] ? a[depth][0] : 0, own[1] ? a[depth][1] : 0, own[0] ? a[depth][2] : 0, own[1] ? a[depth][3] : 0};
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        mma_m16n8k16<element>(sum[i], g, decoded.b[c][depth][i]);
                    }
                }
            }
        }
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            if (!mine(p, half)) {
                continue;
            }
            element *to = destination(p, half);
            f32 value[8];
#pragma unroll
            for (u32 e = 0; e < 8; e++) {
                value[e] = scale[half] * sum[e % 4][2 * half + e / 4];
            }
            if (whole(p)) {
                // Zeros where y is not read.
                const u32 words[4] = {before[half].x, before[half].y, before[half].z, before[half].w};
                u32 made[4];
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    made[e] = narrow2<element>(low_half(words[e]) + value[2 * e], high_half(words[e]) + value[2 * e + 1]);
                }
                store_16(to, make_uint4(made[0], made[1], made[2], made[3]));
            } else {
                u64 column = first_column() + threadIdx.x % 4 * 8;
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
        }
    }

    // After apply_core. The first piece is decoded, and what is there of y is on its way.
    __device__ __forceinline__ void run(const TileParams &p, const Tile &tile, Space &space) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 depth = 0; depth < DEPTHS; depth++) {
            ldmatrix_x4(a[depth], shared_address(&space.g[lane % 16][depth * 16 + lane / 16 * 8]));
        }
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            scale[half] = segment[half] < ROWS ? tile.scaling[lane / 4 + 8 * half] * tile.segment_scale[segment[half]] : 0.0f;
        }
        for (bool ready = true;;) {
            for (;; ready = false) {
                if (!ready) {
                    fetch_y(p);
                    decode_piece(space);
                }
                if (!more()) {
                    break;
                }
                expand(p);
                group += WARPS;
                settle();
            }
            u32 next_segment = window.first_segment + window.segments, next_group = window.first_group;
            if (next_segment >= segments) {
                next_segment = 0;
                next_group += window.groups;
            }
            if (next_group >= end_group) {
                break;
            }
            // Everyone is done with this window.
            __syncthreads();
            open(p, tile, space, next_group, next_segment);
            cp_async_wait<0>();
            __syncthreads();
        }
    }
};
