// Codes of adapters on their way to the tensor cores: the table of values of each, windows of codes in shared memory, and their decoding
// into fragments of mma.
//
// Lane 4q + t, as mma counts them, decodes columns 4q to 4q + 3 of a group of 32, for the ranks that mma wants of lane t: four
// neighbouring fields of each column of codes, at most two words. Fragment i takes field i.
#pragma once

#include "codebook_gemm/tile.cuh"
#include "ptx/special.cuh"

// ---- tables ----

// How an adapter's values are held in 16 bits. f16 has few exponents, and the values of an adapter may be small: a power of two goes to the
// segment's scale. An adapter whose values are not finite must not reach the sums of others: it holds zeros, and its scale is not a number.
struct Holding {
    u32 exponent;
    bool finite;

    __device__ __forceinline__ element hold(f32 value) const { return narrow<element>(finite ? value * inverse_power(exponent) : 0.0f); }
    __device__ __forceinline__ f32 scale() const { return finite ? power(exponent) : __uint_as_float(0x7fc00000); }
};

// A lane's share of an adapter's values: sums of both stages, two residual centroids apart, and an entry of one stage.
struct Record {
    f32 values[5];

    template <class Adapters> __device__ __forceinline__ void fetch(const FactorParams &factor, const Adapters &tile, u32 segment) {
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

    // All of a warp's lanes: of the values that they have together.
    __device__ __forceinline__ Holding holding() const {
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
        return {exponent_below(greatest), finite};
    }
};

// The table of each adapter in the tile: every value that a field can stand for, rounded once. `record` is that of the warp's first.
template <class Held> __device__ __forceinline__ void fill_tables(const FactorParams &factor, Tile &tile, Held &space, Record record) {
    u32 lane = threadIdx.x % 32;
#pragma unroll 1
    for (u32 segment = threadIdx.x / 32; segment < tile.segments; segment += WARPS) {
        Record next;
        next.fetch(factor, tile, segment + WARPS);
        Holding holding = record.holding();
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            space.table[segment][lane + 32 * i] = holding.hold(record.values[i]);
        }
        if (WIDTH < 7) {
            // The record has the narrow widths first; those of no bits read the zeros at the end.
            u32 place = lane < 4 ? 152 + lane : lane < 12 ? 140 + lane : lane < 28 ? 116 + lane : 128 + lane;
            space.table[segment][place] = holding.hold(record.values[4]);
        }
        if (lane == 0) {
            tile.segment_scale[segment] = holding.scale();
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
    u32 parity;                // of the bulk copies to come
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
template <class Held> __device__ __forceinline__ void stage_codes(const FactorParams &factor, Tile &tile, Held &space, Window &window) {
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

// The window that starts there. Its codes are on their way.
template <class Held>
__device__ __forceinline__ void open_window(const FactorParams &factor, Tile &tile, Held &space, Window &window, u32 first_group, u32 first_segment) {
    u32 groups_left = first_group < tile.end_group ? tile.end_group - first_group : 0, segments_left = tile.segments - first_segment;
    window.first_group = first_group;
    window.first_segment = first_segment;
    window.groups = groups_left < tile.groups_at_once ? groups_left : tile.groups_at_once;
    window.segments = segments_left < tile.segments_at_once ? segments_left : tile.segments_at_once;
    stage_codes(factor, tile, space, window);
}

// Until it is there, for all threads after the next barrier.
__device__ __forceinline__ void wait_window(Tile &tile, Window &window) {
    cp_async_wait<0>();
#ifdef BULK
    if (tile.in_bulk) {
        mbarrier_wait(&tile.codes_arrived, window.parity);
        window.parity ^= 1;
    }
#endif
}

// From which word on codes may lie: shrink fills the second buffer of V only if there is more than one to fill.
__device__ __forceinline__ u32 codes_place(u32 bases, u64 inputs) {
    return bases <= 1 && inputs <= STAGE ? CODES_AFTER_ONE : CODES_AFTER_BOTH;
}

// Of the ranks that a lane decodes, the `n`th, less that of lane 0; that of lane 0 for n = 0.
__device__ __forceinline__ u32 rank_step(u32 n) { return n / 4 * 16 + n / 2 % 2 * 8 + n % 2; }
__device__ __forceinline__ u32 first_rank() { return threadIdx.x % 4 * 2; }

// Where a lane finds the values of fields: in an adapter's table, of which `table` is the address.
struct Packed {
    u32 table;

    // Of the field at bit `place`.
    __device__ __forceinline__ u32 value(u32 fields, u32 place, u32 bits) const {
        return shared_load_16(and_or(place == 0 ? fields << 1 : fields >> (place - 1), (2u << bits) - 2, table | table_start(bits)));
    }
};

// Four columns a lane of a group of 32, as fragments of mma. `rows`: one of words for each rank, `pitch` apart; the first group's start `skew` words
// behind their heads.
template <class Values>
__device__ __forceinline__ void decode_group(const u32 *rows, u32 pitch, u32 skew, u32 group, const Values &values, u32 (&b)[DEPTHS][4][2]) {
    u32 field = threadIdx.x % 32 / 4 * 4;
    rows += first_rank() * pitch;
#pragma unroll
    for (u32 pair = 0; pair < 2 * DEPTHS; pair++) {
        u32 value[2][4];
#pragma unroll
        for (u32 one = 0; one < 2; one++) {
            const u32 *row = rows + rank_step(2 * pair + one) * pitch;
            u32 bits = WIDTH ? WIDTH : row[0];
            const u32 *words = row + HEAD + skew + group * bits + field * bits / 32;
            u32 low = words[0], high = words[1], fields = __funnelshift_r(low, high, field * bits), step = bits ? bits : 1;
            if (bits == 16) {
                // A byte a stage, of which four and three bits are in use: made one byte.
                low = (low | low >> 4) & 0x007f007f;
                high = (high | high >> 4) & 0x007f007f;
                fields = ((low | low >> 8) & 0xffff) | (high | high >> 8) << 16;
                step = 8;
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                value[one][i] = values.value(fields, i * step, bits == 16 ? 7 : bits);
            }
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            b[pair / 2][i][pair % 2] = value[0][i] | value[1][i] << 16;
        }
    }
}

// Of the window's `slot`th adapter and `group`th group.
template <class Held>
__device__ __forceinline__ void decode(const Tile &tile, const Held &space, const Window &window, u32 slot, u32 group, u32 (&b)[DEPTHS][4][2]) {
    const u32 *rows = reinterpret_cast<const u32 *>(&space) + tile.codes + slot * RANK * tile.pitch;
    decode_group(rows, tile.pitch, window.skew, group, Packed{shared_address(space.table[window.first_segment + slot])}, b);
}
