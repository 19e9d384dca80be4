// The last step of the codebook GEMM on the tensor cores: y (+)= s·g·Uᵀ. A piece of work is one warp's: the tokens of one adapter in
// the tile, and 32 columns of y.
//
// Lane 4q + t, as mma counts them, decodes columns 4q to 4q + 3 of the 32, for the ranks that mma wants of lane t: four
// neighbouring fields of each column of codes, at most two words. Fragment i takes field i, so that D leaves each lane with
// columns 8t to 8t + 7 of its two rows: 16 bytes of y.
#pragma once

#include "codebook_gemm/tile.cuh"

// The table of each adapter in the tile: every value that a field can stand for, rounded once. f16 has few exponents, and the values
// of an adapter may be small: a power of two goes to the segment's scale.
__device__ __forceinline__ void fill_tables(const TileParams &p, Tile &tile, Space &space) {
    u32 lane = threadIdx.x % 32, bits = p.output.bits;
    // What the widths in use read of the record; the rest need not hold numbers.
    u32 first = bits == EACH_COLUMN ? 0 : stage1(bits);
    u32 end = bits == 2 ? 4 : bits == 3 ? 12 : bits == 4 ? 28 : CODEBOOK_LEN;
    for (u32 segment = threadIdx.x / 32; segment < tile.segments; segment += WARPS) {
        const f32 *record = p.output.codebooks + u64(tile.segment_adapter[segment]) * CODEBOOK_LEN;
        f32 greatest = 0.0f;
        for (u32 e = first + lane; e < end; e += 32) {
            greatest = fmaxf(greatest, fabsf(record[e]));
        }
#pragma unroll
        for (u32 distance = 16; distance > 0; distance /= 2) {
            greatest = fmaxf(greatest, __shfl_xor_sync(ALL_LANES, greatest, distance));
        }
        u32 exponent = exponent_below(greatest);
        f32 scale = inverse_power(exponent);
#pragma unroll
        for (u32 e = lane; e < TABLE; e += 32) {
            u32 sum = e < JOINT ? 0 : (e - JOINT) % 128;
            f32 value = e < JOINT ? record[e] : record[JOINT + sum % 16] + record[STAGE2 + sum / 16];
            space.table[segment][e] = narrow<element>(value * scale);
        }
        if (lane == 0) {
            tile.segment_scale[segment] = power(exponent);
        }
    }
}

// The fields of one piece of work that a lane decodes, as loaded: for each of its ranks the word in which its four fields start,
// and the next. WIDTH is the bits of a field, or 0 where they are known at run time only, and each rank has its own.
struct Fields {
    u32 low[4 * DEPTHS], high[4 * DEPTHS];
    u32 widths[WIDTH ? 1 : DEPTHS];   // a byte each

    __device__ __forceinline__ u32 bits(u32 n) const { return WIDTH ? WIDTH : widths[n / 4] >> n % 4 * 8 & 31; }
};

// Of the ranks that a lane decodes, the `n`th, less that of lane 0; that of lane 0 for n = 0.
__device__ __forceinline__ u32 rank_step(u32 n) { return n / 4 * 16 + n / 2 % 2 * 8 + n % 2; }
__device__ __forceinline__ u32 first_rank() { return threadIdx.x % 4 * 2; }

__device__ __forceinline__ void fetch_fields(const FactorParams &factor, i32 adapter, u32 group, Fields &fields) {
    u32 lane = threadIdx.x % 32, groups = u32((factor.d + 31) / 32);
    const u32 *region = factor.codes + u64(adapter) * factor.words_per_adapter;
    bool each = WIDTH == 0 && factor.bits == EACH_COLUMN;
    u32 uniform = WIDTH ? WIDTH : factor.bits, column = groups * uniform;
    u32 word = lane / 4 * 4 * uniform / 32, next = word + 1 < uniform ? 1 : 0;
    const u32 *start = region + first_rank() * column + group * uniform + word;
#pragma unroll
    for (u32 n = 0; n < 4 * DEPTHS; n++) {
        u32 j = first_rank() + rank_step(n);
        fields.low[n] = fields.high[n] = 0;
        if (!WIDTH && n % 4 == 0) {
            fields.widths[n / 4] = 0;
        }
        if (j >= factor.rank) {
            continue;
        }
        const u32 *words = start + rank_step(n) * column;
        if (each) {
            u32 header = region[j];
            uniform = header & 31;
            word = lane / 4 * 4 * uniform / 32;
            // The last four fields end with the group: what follows it may lie past the end of the codes.
            next = word + 1 < uniform ? 1 : 0;
            words = region + (header >> 5) + group * uniform + word;
        }
        if (!WIDTH) {
            fields.widths[n / 4] |= uniform << n % 4 * 8;
        }
        if (uniform > 0) {
            fields.low[n] = words[0];
            fields.high[n] = words[next];
        }
    }
}

// U as mma's B: fragment i of the four for each 16 ranks.
struct Decoded {
    u32 b[DEPTHS][4][2];
};

__device__ __forceinline__ void decode(const Fields &fields, const element (&table)[TABLE], Decoded &decoded) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 pair = 0; pair < 2 * DEPTHS; pair++) {
        u32 value[2][4];
#pragma unroll
        for (u32 one = 0; one < 2; one++) {
            u32 n = 2 * pair + one, bits = fields.bits(n);
            u32 low = fields.low[n], high = fields.high[n];
            if (bits == 16) {
                // A byte a stage, of which four and three bits are in use.
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    u32 field = (i < 2 ? low : high) >> i % 2 * 16;
                    value[one][i] = table[JOINT + (field & 15) + (field >> 4 & 112)].bits;
                }
            } else {
                u32 window = __funnelshift_r(low, high, lane / 4 * 4 * bits);
                u32 mask = (1u << bits) - 1;
                const element *start = table + stage1(bits);
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    value[one][i] = bits == 0 ? 0 : start[window & mask].bits;
                    window >>= bits;
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            decoded.b[pair / 2][i][pair % 2] = value[0][i] | value[1][i] << 16;
        }
    }
}

// A piece of work: which rows, which columns.
struct Piece {
    u32 segment, group;
};

__device__ __forceinline__ bool in_segment(const Tile &tile, u32 segment, u32 row) {
    return row >= tile.segment_first[segment] && row < tile.segment_first[segment + 1];
}

// Where a lane's eight columns of its two rows go: null where the row is of another segment, or all columns past the end.
struct Destination {
    element *y[2];
    uint4 before[2];   // what is there; zeros where it is not read, or not as one
    f32 scale;         // of the segment
};

__device__ __forceinline__ void locate_y(const TileParams &p, const Tile &tile, Piece piece, Destination &to) {
    u32 lane = threadIdx.x % 32;
    u64 column = u64(piece.group) * GROUP + lane % 4 * 8;
    to.scale = tile.segment_scale[piece.segment];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 row = lane / 4 + 8 * half;
        bool inside = in_segment(tile, piece.segment, row) && column < p.output.d;
        to.y[half] = inside ? p.y + u64(tile.token[row]) * p.y_stride + column : nullptr;
    }
}

template <bool ALIGNED> __device__ __forceinline__ void fetch_before(const TileParams &p, Piece piece, Destination &to) {
    u64 column = u64(piece.group) * GROUP + threadIdx.x % 4 * 8;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        to.before[half] = make_uint4(0, 0, 0, 0);
        if (p.accumulate && to.y[half] && (ALIGNED || (p.y_aligned && column + 8 <= p.output.d))) {
            to.before[half] = *reinterpret_cast<const uint4 *>(to.y[half]);
        }
    }
}

__device__ __forceinline__ f32 low_half(u32 both) { return widen(element{u16(both)}); }
__device__ __forceinline__ f32 high_half(u32 both) { return widen(element{u16(both >> 16)}); }

template <bool ALIGNED>
__device__ __forceinline__ void expand(const TileParams &p, const Tile &tile, const Space &space, Piece piece, const Decoded &decoded, const Destination &to) {
    u32 lane = threadIdx.x % 32;
    f32 sum[4][4] = {};
#pragma unroll
    for (u32 depth = 0; depth < DEPTHS; depth++) {
        u32 a[4];
        ldmatrix_x4(a, shared_address(&space.g[lane % 16][depth * 16 + lane / 16 * 8]));
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            mma_m16n8k16<element>(sum[i], a, decoded.b[depth][i]);
        }
    }
    u64 column = u64(piece.group) * GROUP + lane % 4 * 8;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        element *y = to.y[half];
        if (!y) {
            continue;
        }
        f32 scale = tile.scaling[lane / 4 + 8 * half] * to.scale;
        f32 value[8];
#pragma unroll
        for (u32 e = 0; e < 8; e++) {
            value[e] = scale * sum[e % 4][2 * half + e / 4];
        }
        if (ALIGNED || (p.y_aligned && column + 8 <= p.output.d)) {
            // Zeros where y is not read.
            const u32 words[4] = {to.before[half].x, to.before[half].y, to.before[half].z, to.before[half].w};
            u32 made[4];
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                made[e] = narrow2<element>(low_half(words[e]) + value[2 * e], high_half(words[e]) + value[2 * e + 1]);
            }
            store_16(y, make_uint4(made[0], made[1], made[2], made[3]));
        } else {
#pragma unroll 1
            for (u32 e = 0; e < 8 && column + e < p.output.d; e++) {
                // Chosen, not indexed: an index known at run time alone would put the values into memory.
                f32 one = value[0];
#pragma unroll
                for (u32 other = 1; other < 8; other++) {
                    one = e == other ? value[other] : one;
                }
                y[e] = narrow<element>(p.accumulate ? widen(y[e]) + one : one);
            }
        }
    }
}

// Pieces on their way while one is expanded: as registers allow.
constexpr u32 AHEAD = RANK == 64 ? 1 : 2;

// One warp's pieces of the block's work. Codes do not depend on x: the first piece is decoded before x is there, and more are
// on their way.
template <bool ALIGNED> struct Pieces {
    u32 groups, first_group, next, total;
    Fields fields[AHEAD];
    Decoded decoded;
    Destination to;

    __device__ __forceinline__ Piece piece(u32 index) const { return {index / groups, first_group + index % groups}; }

    // Groups [first, end) of columns, for every adapter in the tile. After the tile is read.
    __device__ __forceinline__ void start(const TileParams &p, const Tile &tile, u32 first, u32 end) {
        groups = first < end ? end - first : 1;
        first_group = first;
        total = first < end ? groups * tile.segments : 0;
        next = threadIdx.x / 32;
#pragma unroll
        for (u32 turn = 0; turn < AHEAD; turn++) {
            fetch(p, tile, next + turn * WARPS, fields[turn]);
        }
    }

    __device__ __forceinline__ void fetch(const TileParams &p, const Tile &tile, u32 index, Fields &to) const {
        if (index < total) {
            Piece wanted = piece(index);
            fetch_fields(p.output, tile.segment_adapter[wanted.segment], wanted.group, to);
        }
    }

    // After the tables are filled. TURN alternates, from 0.
    template <u32 TURN> __device__ __forceinline__ void decode_next(const TileParams &p, const Tile &tile, const Space &space) {
        if (next < total) {
            decode(fields[TURN % AHEAD], space.table[piece(next).segment], decoded);
            fetch(p, tile, next + AHEAD * WARPS, fields[TURN % AHEAD]);
        }
    }

    // Where the piece at hand goes.
    __device__ __forceinline__ void locate(const TileParams &p, const Tile &tile) {
        if (next < total) {
            locate_y(p, tile, piece(next), to);
        }
    }

    // What is there, once y may be read.
    __device__ __forceinline__ void fetch_y(const TileParams &p) {
        if (next < total) {
            fetch_before<ALIGNED>(p, piece(next), to);
        }
    }

    // The piece that was decoded, and makes the next one ready.
    template <u32 TURN> __device__ __forceinline__ void step(const TileParams &p, const Tile &tile, const Space &space) {
        Piece now = piece(next);
        expand<ALIGNED>(p, tile, space, now, decoded, to);
        next += WARPS;
        locate(p, tile);
        fetch_y(p);
        decode_next<TURN>(p, tile, space);
    }

    __device__ __forceinline__ void run(const TileParams &p, const Tile &tile, const Space &space) {
        while (next < total) {
            step<1>(p, tile, space);
            if (next < total) {
                step<0>(p, tile, space);
            }
        }
    }
};
