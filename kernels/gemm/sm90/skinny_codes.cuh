// Of a product of few rows with adapters (gemm/sm90/skinny_lora.cuh): a block's rows of U, decoded in shared memory, where their codes were
// brought: an adapter's codes take no more room than its values, and so all of them can be under way at once.
#pragma once

#include "gemm/sm90/skinny_sums.cuh"

// The values of the batch's adapters, a warp each. What the widths in use do not read need not hold numbers. `meanwhile` is called once, while
// codebooks are under way. There is an adapter.
template <class Meanwhile> __device__ __forceinline__ void fill_tables(const LinearAdaptedParams &p, AdapterSpace &space, u32 count, const Meanwhile &meanwhile) {
    u32 thread = threadIdx.x - ADAPTER_FIRST, lane = thread % 32, bits = p.output.bits;
    bool each = bits == EACH_COLUMN, joint = bits >= 7;
    u32 first = each ? 0 : stage1(bits), end = each || bits == 4 ? 28 : bits == 3 ? 12 : bits == 2 ? 4 : 0;
    // The record has the narrow widths first; those of no bits read the zeros at the end.
    bool narrow_one = lane >= first && lane < end;
    u32 narrow_place = lane < 4 ? 152 + lane : lane < 12 ? 140 + lane : lane < 28 ? 116 + lane : 128 + lane;
    constexpr u32 AT_ONCE = 4;
#pragma unroll 1
    for (u32 begin = thread / 32; begin == thread / 32 || begin < count; begin += ADAPTER_WARPS * AT_ONCE) {
        f32 centre[AT_ONCE], one[AT_ONCE], residual[AT_ONCE][4];
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; n++) {
            u32 place = begin + n * ADAPTER_WARPS < count ? begin + n * ADAPTER_WARPS : begin < count ? begin : 0;
            const f32 *record = p.output.codebooks + u64(u32(space.adapter[place])) * CODEBOOK_LEN;
            centre[n] = record[28 + lane % 16];
            one[n] = record[lane];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                residual[n][i] = record[STAGE2 + lane / 16 + 2 * i];
            }
        }
        if (begin == thread / 32) {
            meanwhile();
        }
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; n++) {
            u32 place = begin + n * ADAPTER_WARPS;
            if (place >= count) {
                break;
            }
            f32 value[5], greatest = 0.0f;
#pragma unroll
            for (u32 i = 0; i < 5; i++) {
                value[i] = i < 4 ? joint ? centre[n] + residual[n][i % 4] : 0.0f : narrow_one ? one[n] : 0.0f;
                greatest = fmaxf(greatest, fabsf(value[i]));
            }
#pragma unroll
            for (u32 distance = 16; distance > 0; distance /= 2) {
                greatest = fmaxf(greatest, __shfl_xor_sync(WHOLE_WARP, greatest, distance));
            }
            u32 exponent = exponent_below(greatest);
#pragma unroll
            for (u32 i = 0; i < 5; i++) {
                space.table[place][i < 4 ? lane + 32 * i : narrow_place] = narrow<element>(value[i] * inverse_power(exponent));
            }
            if (lane == 0) {
                space.table_scale[place] = power(exponent);
            }
        }
    }
}

// Four neighbouring fields of a column of codes, a byte or less each, from the two words that hold them.
__device__ __forceinline__ u32 four_fields(u32 low, u32 high, u32 shift, u32 bits) {
    if (bits != 16) {
        return __funnelshift_r(low, high, shift);
    }
    // A byte a stage, of which four and three bits are in use: made one byte.
    low = (low | low >> 4) & 0x007f007f;
    high = (high | high >> 4) & 0x007f007f;
    return ((low | low >> 8) & 0xffff) | (high | high >> 8) << 16;
}

// Units of rows of U, an adapter's 16 ranks each, are dealt out to warps; where K is split, to those of all blocks of the cluster, which have the
// same rows.
constexpr u32 UNIT_BLOCKS = SKINNY_SPLIT ? SKINNY_CLUSTER : 1, UNIT_STRIDE = ADAPTER_WARPS * UNIT_BLOCKS;

__device__ __forceinline__ u32 first_unit() { return (threadIdx.x - ADAPTER_FIRST) / 32 * UNIT_BLOCKS + (UNIT_BLOCKS > 1 ? cluster_rank() : 0); }

// Of one thread: the units of all other blocks will be sent to this one.
__device__ __forceinline__ void expect_rows(AdapterSpace &space, u32 count) {
    u32 units = count * RANK_STEPS, own = (units + UNIT_BLOCKS - 1 - cluster_rank()) / UNIT_BLOCKS;
    mbarrier_arrive_expect(&space.sent, (units - own) * sizeof(space.u[0]));
}

// Of a warp that has decoded a unit: to the others that have outputs.
__device__ __forceinline__ void send_rows(AdapterSpace &space, u32 unit) {
    __syncwarp();
    float4 *pieces = reinterpret_cast<float4 *>(space.u[unit]);
#pragma unroll
    for (u32 to = 0; to < (FIRST_HAS_OUTPUTS ? 1 : UNIT_BLOCKS); to++) {
        if (to != cluster_rank()) {
#pragma unroll
            for (u32 i = 0; i < sizeof(space.u[0]) / 512; i++) {
                float4 *piece = pieces + i * 32 + threadIdx.x % 32;
                cluster_store(cluster_address(shared_address(piece), to), *piece, cluster_address(shared_address(&space.sent), to));
            }
        }
    }
}

// Words that a column of codes has room for where its 16 bits a row of U will be: those of the widest, in order.
constexpr u32 COLUMN_WORDS = SKINNY_ROWS / 2;

// Where a word of a column of 16 lies. Eight columns two apart, four words of each, are in different banks.
__device__ __forceinline__ u32 word_place(u32 column, u32 word) { return column * COLUMN_WORDS + (word + column / 2 * 4) % COLUMN_WORDS; }

// Brings the codes of a tile's rows, from `row` on, all at once: of 16 columns at a time, a warp's own, to where their rows of U will be.
__device__ __forceinline__ void fetch_codes(const LinearAdaptedParams &p, AdapterSpace &space, u32 count, u64 row) {
    const FactorParams &factor = p.output;
    u32 lane = threadIdx.x % 32, own = lane / 2;
    u32 groups = u32((factor.d + 31) / 32), rows = row >= factor.d ? 0 : factor.d - row < p.tile_rows ? u32(factor.d - row) : p.tile_rows;
    bool each = factor.bits == EACH_COLUMN, whole = !each && (groups * factor.bits | factor.words_per_adapter) % 4 == 0 && u64(factor.codes) % 16 == 0;
    // Several at once, where decoding leaves registers for them.
#pragma unroll SKINNY_ROWS == 128 ? 1 : 4
    for (u32 unit = first_unit(); unit < count * RANK_STEPS; unit += UNIT_STRIDE) {
        u32 j = unit % RANK_STEPS * 16 + own;
        bool there = j < factor.rank;
        const u32 *region = factor.codes + u64(u32(space.adapter[unit / RANK_STEPS])) * factor.words_per_adapter;
        u32 header = each ? region[there ? j : 0] : 0, width = !there ? 0 : each ? header & 31 : factor.bits;
        const u32 *column = region + (each ? header >> 5 : u64(j) * groups * width);
        u64 bit = row * width;
        u32 first = u32(bit / 32), begin = u32(bit % 32), words = (begin + rows * width + 31) / 32, skew = first % 4;
        u32 *to = reinterpret_cast<u32 *>(space.u[unit]);
        if (whole && skew + words <= COLUMN_WORDS) {
            begin += skew * 32;
#pragma unroll 1
            for (u32 at = lane % 2 * 4; at < skew + words && there; at += 8) {
                cp_async_16(shared_address(to + word_place(own, at)), column + first - skew + at);
            }
        } else {
#pragma unroll 1
            for (u32 at = lane % 2; at < words && there; at += 2) {
                cp_async_4(shared_address(to + word_place(own, at)), column + first + at);
            }
        }
        if (lane % 2 == 0) {
            space.column[unit * 16 + own] = begin << 8 | width;
        }
    }
    cp_async_commit();
}

// A tile's rows of U, where their codes lie. A warp has read all codes of 16 ranks of an adapter before it writes; of each 16 rows a lane
// takes 4, and 2 ranks. EACH: every column names its own width. Of a rank that is not there g is zero: any values that are numbers will do.
template <bool EACH> __device__ __forceinline__ void decode_rows(const LinearAdaptedParams &p, AdapterSpace &space, u32 count) {
    constexpr u32 PIECES = SKINNY_ROWS / 16;
    u32 lane = threadIdx.x % 32, quad = lane / 8, across = lane % 8 * 2;
#pragma unroll 1
    for (u32 unit = first_unit(); unit < count * RANK_STEPS; unit += UNIT_STRIDE) {
        element *rows = space.u[unit];
        const u32 *codes = reinterpret_cast<const u32 *>(rows);
        u32 low[PIECES][2], high[PIECES][2], start[2], bits[2];
#pragma unroll
        for (u32 one = 0; one < 2; one++) {
            u32 column = space.column[unit * 16 + across + one];
            bits[one] = EACH ? column & 255 : p.output.bits;
            start[one] = (column >> 8) + quad * 4 * bits[one];
#pragma unroll
            for (u32 n = 0; n < PIECES; n++) {
                u32 word = (start[one] + n * 16 * bits[one]) / 32;
                low[n][one] = codes[word_place(across + one, word)];
                high[n][one] = codes[word_place(across + one, word + 1)];
            }
        }
        __syncwarp();
        u32 values = shared_address(space.table[unit / RANK_STEPS]);
#pragma unroll
        for (u32 n = 0; n < PIECES; n++) {
            u32 half[2][4];
#pragma unroll
            for (u32 one = 0; one < 2; one++) {
                u32 width = bits[one], step = width == 16 ? 8 : width, mask = (2u << (width == 16 ? 7 : width)) - 2;
                u32 fields = four_fields(low[n][one], high[n][one], (start[one] + n * 16 * width) % 32, width);
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    // Lanes begin at different rows, so that they store to different banks.
                    half[one][i] = shared_load_16(values + table_start(width) + (fields >> (i + quad) % 4 * step << 1 & mask));
                }
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 at = u_place(n * 16 + quad * 4 + (i + quad) % 4, across / 8) + across % 8;
                *reinterpret_cast<u32 *>(rows + at) = half[0][i] | half[1][i] << 16;
            }
        }
        if constexpr (UNIT_BLOCKS > 1) {
            send_rows(space, unit);
        }
    }
}
