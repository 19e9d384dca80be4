// The last step of the codebook GEMM on the tensor cores: y (+)= s·g·Uᵀ. A warp has one or two groups of 32 columns of y, and all
// adapters of the tile, or some where there are more warps than groups. All adapters add to the same sums of mma: of g, a row is zero
// for every adapter but its own. A piece of work is one adapter and one group.
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

// A lane's share of an adapter's values: sums of both stages, two residual centroids apart, and an entry of one stage.
struct Record {
    f32 values[5];

    __device__ __forceinline__ void fetch(const FactorParams &factor, const Tile &tile, u32 segment) {
        u32 lane = threadIdx.x % 32, bits = WIDTH ? WIDTH : factor.bits;
        bool each = bits == EACH_COLUMN, joint = bits >= 7;
        // What the widths in use read of the record; the rest need not hold numbers.
        u32 first = each ? 0 : stage1(bits), end = each || bits == 4 ? 28 : bits == 3 ? 12 : bits == 2 ? 4 : 0;
#pragma unroll
        for (u32 i = 0; i < 5; i++) {
            values[i] = 0.0f;
        }
        if (segment >= tile.segments) {
            return;
        }
        const f32 *record = factor.codebooks + u64(tile.segment_adapter[segment]) * CODEBOOK_LEN;
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
    }
};

// The table of each adapter in the tile: every value that a field can stand for, rounded once. f16 has few exponents, and the values
// of an adapter may be small: a power of two goes to the segment's scale. An adapter whose values are not finite must not reach the
// sums of others: its table is zero, and its scale not a number. `record` is that of the warp's first.
__device__ __forceinline__ void fill_tables(const FactorParams &factor, Tile &tile, Space &space, Record record) {
    u32 lane = threadIdx.x % 32;
#pragma unroll 1
    for (u32 segment = threadIdx.x / 32; segment < tile.segments; segment += WARPS) {
        Record next;
        next.fetch(factor, tile, segment + WARPS);
        f32 greatest = 0.0f;
        bool finite = true;
#pragma unroll
        for (u32 i = 0; i < 5; i++) {
            greatest = fmaxf(greatest, fabsf(record.values[i]));
            finite = finite && fabsf(record.values[i]) < infinity();
        }
        finite = __all_sync(ALL_LANES, finite);
#pragma unroll
        for (u32 distance = 16; distance > 0; distance /= 2) {
            greatest = fmaxf(greatest, __shfl_xor_sync(ALL_LANES, greatest, distance));
        }
        u32 exponent = exponent_below(greatest);
        f32 scale = inverse_power(exponent);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            space.table[segment][lane + 32 * i] = narrow<element>(finite ? record.values[i] * scale : 0.0f);
        }
        if (WIDTH < 7) {
            // The record has the narrow widths first; those of no bits read the zeros at the end.
            u32 place = lane < 4 ? 152 + lane : lane < 12 ? 140 + lane : lane < 28 ? 116 + lane : 128 + lane;
            space.table[segment][place] = narrow<element>(finite ? record.values[4] * scale : 0.0f);
        }
        if (lane == 0) {
            tile.segment_scale[segment] = finite ? power(exponent) : __uint_as_float(0x7fc00000);
        }
        record = next;
    }
}

// ---- codes ----

constexpr u32 HEAD = WIDTH ? 0 : 4;       // words before a row of codes; the first tells its width
constexpr u32 WIDEST = 16;                // words of 32 fields

// What of the block's codes lies in shared memory at once: for each of its adapters and each rank, a row of words.
struct Window {
    u32 first_segment, segments;
    u32 first_group, groups;   // of 32 columns
    u32 skew;                  // words of a row before the first that was asked for
};

// Rows start on 16 bytes, and of four that are two ranks apart, eight words lie in different banks.
__device__ __forceinline__ u32 row_pitch(u32 words) { return (HEAD + words + 15) / 16 * 16 + 4; }

// How much of a block's `groups` groups has room from word `place` on. Rather all adapters than all groups, up to a few: sums are
// finished a window of groups at a time. One thread's, while the tile is read.
__device__ __forceinline__ void plan_windows(const FactorParams &factor, u32 groups, u32 groups_at_most, u32 place, Tile &tile) {
    u32 words = WIDTH ? WIDTH : factor.bits == EACH_COLUMN ? WIDEST : factor.bits, room = (CODES_END - place) / RANK;
    u32 least = tile.segments < 4 / DEPTHS ? tile.segments : 4 / DEPTHS, column = u32((factor.d + 31) / 32) * words;
    groups = groups < groups_at_most ? groups : groups_at_most;
    // With a width a column, columns start anywhere.
    tile.in_bulk = WIDTH && (column | factor.words_per_adapter) % 4 == 0 && u64(factor.codes) % 16 == 0;
#pragma unroll 1
    while (groups > 1 && row_pitch(groups * words) * least > room) {
        groups = (groups + 1) / 2;
    }
    tile.codes = place;
    tile.pitch = row_pitch(groups * words);
    tile.segments_at_once = room / tile.pitch;
    tile.groups_at_once = groups;
}

// Brings the codes of a window, as one group of cp.async; or where BULK is defined and rows allow it, by one bulk copy a row (an
// ordinary copy would wait for the load-store units, a row at a time).
__device__ __forceinline__ void stage_codes(const FactorParams &factor, Tile &tile, Space &space, Window &window) {
    bool each = WIDTH == 0 && factor.bits == EACH_COLUMN;
    u32 uniform = WIDTH ? WIDTH : factor.bits, column = u32((factor.d + 31) / 32) * uniform;
    bool vectors = WIDTH ? tile.in_bulk : !each && (column | factor.words_per_adapter) % 4 == 0 && u64(factor.codes) % 16 == 0;
    u32 start = window.first_group * uniform, words = window.groups * (each ? WIDEST : uniform);
    window.skew = vectors ? start % 4 : 0;
    // Of a row: to the end of the last 16 bytes, which belong to the same column.
    u32 pieces = vectors ? (window.skew + words + 3) / 4 : words;
    u32 shift = pieces <= 4 ? 2 : pieces <= 8 ? 3 : pieces <= 16 ? 4 : 5, lanes = 1u << shift;
    u32 *rows = reinterpret_cast<u32 *>(&space) + tile.codes, count = window.groups > 0 ? window.segments : 0;
#ifdef BULK
    if (tile.in_bulk) {
        // One thread a row. What was here before has been read by ordinary loads.
        fence_proxy_async();
        if (threadIdx.x == 0) {
            mbarrier_arrive_expect(&tile.codes_arrived, count * factor.rank * pieces * 16);
        }
#pragma unroll 1
        for (u32 row = threadIdx.x % 32 * WARPS + threadIdx.x / 32; row < count * RANK; row += THREADS) {
            u32 j = row % RANK;
            if (j < factor.rank) {
                const u32 *region = factor.codes + u64(tile.segment_adapter[window.first_segment + row / RANK]) * factor.words_per_adapter;
                bulk_load(rows + row * tile.pitch, region + j * column + start - window.skew, pieces * 16, &tile.codes_arrived);
            }
        }
        cp_async_commit();
        return;
    }
#endif
#pragma unroll 2
    for (u32 row = threadIdx.x >> shift; row < count * RANK; row += THREADS >> shift) {
        u32 j = row % RANK;
        u32 *to = rows + row * tile.pitch;
        if (j >= factor.rank) {
            // Of a rank that is not there g is zero: any values that are numbers will do.
            if (HEAD) {
                to[0] = 0;
            }
            continue;
        }
        const u32 *region = factor.codes + u64(tile.segment_adapter[window.first_segment + row / RANK]) * factor.words_per_adapter;
        const u32 *from = region + j * column + start - window.skew;
        u32 left = pieces;
        if (HEAD) {
            u32 bits = uniform;
            if (each) {
                bits = region[j] & 31;
                from = region + (region[j] >> 5) + window.first_group * bits;
                left = window.groups * bits;
            }
            to[0] = bits;
        }
#pragma unroll 1
        for (u32 piece = threadIdx.x % lanes; piece < left; piece += lanes) {
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
__device__ __forceinline__ u32 codes_place(u32 bases, u64 inputs) {
    return bases <= 1 && inputs <= STAGE ? CODES_AFTER_ONE : CODES_AFTER_BOTH;
}

// Of the ranks that a lane decodes, the `n`th, less that of lane 0; that of lane 0 for n = 0.
__device__ __forceinline__ u32 rank_step(u32 n) { return n / 4 * 16 + n / 2 % 2 * 8 + n % 2; }
__device__ __forceinline__ u32 first_rank() { return threadIdx.x % 4 * 2; }

// Of the window's `slot`th adapter and `group`th group.
__device__ __forceinline__ void decode(const Tile &tile, const Space &space, const Window &window, u32 slot, u32 group, u32 (&b)[DEPTHS][4][2]) {
    u32 field = threadIdx.x % 32 / 4 * 4;
    const u32 *rows = reinterpret_cast<const u32 *>(&space) + tile.codes + (slot * RANK + first_rank()) * tile.pitch;
    const u8 *tables = reinterpret_cast<const u8 *>(space.table);
    u32 table = (window.first_segment + slot) * u32(sizeof(space.table[0]));
#pragma unroll
    for (u32 pair = 0; pair < 2 * DEPTHS; pair++) {
        u32 value[2][4];
#pragma unroll
        for (u32 one = 0; one < 2; one++) {
            const u32 *row = rows + rank_step(2 * pair + one) * tile.pitch;
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

// One warp's share of the block's work. Codes do not depend on x: the first pieces may be decoded before x is there. HELD: groups of
// columns whose sums a warp has at once.
template <bool ALIGNED, u32 HELD> struct Pieces {
    static constexpr u32 AHEAD = HELD == 1 ? 4 / DEPTHS : DEPTHS == 1 ? 2 : 1;

    Window window;
    u32 group, held;             // the warp's first group in the window, and how many; the second is WARPS further on
    u32 rows;                    // bit i: the adapter of a lane's row i is the warp's in this window of groups
    u32 first, next, total;      // its first slot in the window; pieces, of which `next` is to be multiplied
    u32 segment[2];              // of a lane's two rows
    u32 parity;                  // of the bulk copies to come
    u32 decoded[AHEAD][DEPTHS][4][2]; // AHEAD pieces from `next` on as mma's B: fragment i of the four for each 16 ranks
    f32 sum[HELD][4][4];
    u32 a[DEPTHS][4];

    // The block's columns from group `begin` on, for every adapter in the tile. Brings the first window. After the tile is read.
    __device__ __forceinline__ void start(const TileParams &p, Tile &tile, Space &space, u32 begin) {
        parity = 0;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            segment[half] = tile.row_segment[threadIdx.x % 32 / 4 + 8 * half];
        }
        open(p, tile, space, begin, 0);
    }

    // The window that starts there. Its codes are on their way.
    __device__ __forceinline__ void open(const TileParams &p, Tile &tile, Space &space, u32 first_group, u32 first_segment) {
        u32 segments = tile.segments, groups_left = first_group < tile.end_group ? tile.end_group - first_group : 0;
        window.first_group = first_group;
        window.first_segment = first_segment;
        window.groups = groups_left < tile.groups_at_once ? groups_left : tile.groups_at_once;
        window.segments = segments - first_segment < tile.segments_at_once ? segments - first_segment : tile.segments_at_once;
        stage_codes(p.output, tile, space, window);
        // Where there are fewer groups than warps, some warps share a group and split the adapters: rows of one adapter are one warp's.
        u32 warp = threadIdx.x / 32, shift = window.groups <= 1 ? 0 : window.groups <= 2 ? 1 : window.groups <= 4 ? 2 : 3;
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
    __device__ __forceinline__ void wait(Tile &tile) {
        cp_async_wait<0>();
#ifdef BULK
        if (tile.in_bulk) {
            mbarrier_wait(&tile.codes_arrived, parity);
            parity ^= 1;
        }
#endif
    }

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
            const u32 words[4] = {before.x, before.y, before.z, before.w};
            u32 made[4];
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                made[e] = narrow2<element>(low_half(words[e]) + value[2 * e], high_half(words[e]) + value[2 * e + 1]);
            }
            store_16(to, make_uint4(made[0], made[1], made[2], made[3]));
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

    // After apply_core. `free`: which buffer of V is. `ready`: the first pieces are decoded. Calls `before_y` before it writes y the
    // first time; by its end y has been fetched.
    template <class BeforeY>
    __device__ __forceinline__ void run(const TileParams &p, Tile &tile, Space &space, u32 free, bool ready, BeforeY before_y) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 depth = 0; depth < DEPTHS; depth++) {
            ldmatrix_x4(a[depth], shared_address(&space.g[lane % 16][depth * 16 + lane / 16 * 8]));
        }
#pragma unroll 1
        for (bool begun = false, writing = false;;) {
            if (!begun) {
#pragma unroll
                for (u32 i = 0; i < HELD * 16; i++) {
                    sum[i / 16][i / 4 % 4][i % 4] = 0.0f;
                }
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
