// Of a product of few rows with adapters (stream_adapters.cuh): a block's rows of U, decoded into shared memory.
//
// Loads stand without branches between them, from a place that is there where theirs is not, so that all are under way at once.
#pragma once

#include "tile/stream_sums.cuh"

// The values of the batch's adapters, a warp each. What the widths in use do not read need not hold numbers.
__device__ __forceinline__ void fill_tables(const LinearAdaptedParams &p, AdapterSpace &space, u32 count) {
    u32 thread = threadIdx.x - ADAPTER_FIRST, lane = thread % 32, bits = p.output.bits;
    bool each = bits == EACH_COLUMN, joint = bits >= 7;
    u32 first = each ? 0 : stage1(bits), end = each || bits == 4 ? 28 : bits == 3 ? 12 : bits == 2 ? 4 : 0;
    // The record has the narrow widths first; those of no bits read the zeros at the end.
    bool narrow_one = lane >= first && lane < end;
    u32 narrow_place = lane < 4 ? 152 + lane : lane < 12 ? 140 + lane : lane < 28 ? 116 + lane : 128 + lane;
    constexpr u32 AT_ONCE = 4;
#pragma unroll 1
    for (u32 begin = thread / 32; begin < count; begin += ADAPTER_WARPS * AT_ONCE) {
        f32 centre[AT_ONCE], one[AT_ONCE], residual[AT_ONCE][4];
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; n++) {
            u32 place = begin + n * ADAPTER_WARPS < count ? begin + n * ADAPTER_WARPS : begin;
            const f32 *record = p.output.codebooks + u64(u32(space.adapter[place])) * CODEBOOK_LEN;
            centre[n] = record[28 + lane % 16];
            one[n] = record[lane];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                residual[n][i] = record[STAGE2 + lane / 16 + 2 * i];
            }
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

// Four neighbouring fields of a column of codes, a byte or less each.
struct Fields {
    u32 packed, bits;

    __device__ __forceinline__ void fetch(const FactorParams &factor, i32 adapter, u32 j, u64 element) {
        packed = bits = 0;
        if (j >= factor.rank || element >= factor.d) {
            return;
        }
        const u32 *region = factor.codes + u64(u32(adapter)) * factor.words_per_adapter, *column;
        if (factor.bits == EACH_COLUMN) {
            u32 header = region[j];
            bits = header & 31;
            column = region + (header >> 5);
        } else {
            bits = factor.bits;
            column = region + u64(j) * ((factor.d + 31) / 32 * bits);
        }
        if (bits == 0) {
            return;
        }
        u64 bit = element * bits;
        const u32 *word = column + bit / 32;
        u32 shift = u32(bit % 32), low = word[0], high = shift + 4 * bits > 32 ? word[1] : 0;
        packed = __funnelshift_r(low, high, shift);
        if (bits == 16) {
            // A byte a stage, of which four and three bits are in use: made one byte.
            low = (low | low >> 4) & 0x007f007f;
            high = (high | high >> 4) & 0x007f007f;
            packed = ((low | low >> 8) & 0xffff) | (high | high >> 8) << 16;
        }
    }

    __device__ __forceinline__ f32 value(const f32 *record, u32 i) const {
        bool joint = bits >= 7;
        u32 step = bits == 16 ? 8 : bits, field = packed >> i * step & ((1u << (bits == 16 ? 7 : bits)) - 1);
        f32 first = record[stage1(bits) + (joint ? field & 15 : field)], second = joint ? record[STAGE2 + (field >> 4)] : 0.0f;
        return bits ? first + second : 0.0f;
    }
};

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

// A tile's rows of U, from `row` on. A warp takes 16 rows and 16 ranks of an adapter at a time, a lane 4 rows and 2 ranks of those. EACH:
// every column names its own width. Of a rank that is not there g is zero: any values that are numbers will do.
template <bool EACH> __device__ __forceinline__ void decode_rows(const LinearAdaptedParams &p, AdapterSpace &space, u32 count, u64 row) {
    constexpr u32 AT_ONCE = EACH ? 2 : 8, NOWHERE = ~0u;
    const FactorParams &factor = p.output;
    u32 thread = threadIdx.x - ADAPTER_FIRST, lane = thread % 32, quad = lane / 8, groups = u32((factor.d + 31) / 32);
    // Pieces of an adapter, and from one of a warp's to its next.
    u32 each = (p.tile_rows + 15) / 16 * RANK_STEPS, place = thread / 32 / each, inside = thread / 32 % each;
    u32 places = ADAPTER_WARPS / each, further = ADAPTER_WARPS % each;
#pragma unroll 1
    while (place < count) {
        u32 low[AT_ONCE][2], high[AT_ONCE][2], bits[AT_ONCE][2], shift[AT_ONCE][2], table[AT_ONCE], down[AT_ONCE], across[AT_ONCE];
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; n++) {
            u32 own = place < count ? place : count - 1, j = inside % RANK_STEPS * 16 + lane % 8 * 2;
            down[n] = inside / RANK_STEPS * 16 + quad * 4;
            table[n] = own;
            across[n] = place < count ? j : NOWHERE;
            u64 first = row + down[n];
            const u32 *region = factor.codes + u64(u32(space.adapter[own])) * factor.words_per_adapter;
#pragma unroll
            for (u32 one = 0; one < 2; one++) {
                bool holds = j + one < factor.rank && first < factor.d;
                u32 header = EACH ? region[holds ? j + one : 0] : 0, width = EACH ? holds ? header & 31 : 0 : factor.bits;
                u64 start = EACH ? width ? header >> 5 : 0 : holds ? u64(j + one) * groups * width : 0, bit = holds ? first * width : 0;
                bits[n][one] = width;
                shift[n][one] = u32(bit % 32);
                const u32 *word = region + start + bit / 32;
                low[n][one] = word[0];
                // Behind the last word there may be nothing.
                high[n][one] = word[holds && shift[n][one] + 4 * width > 32 ? 1 : 0];
            }
            inside += further;
            place += places + (inside >= each);
            inside -= inside >= each ? each : 0;
        }
        u32 two[AT_ONCE][4];
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; n++) {
            u32 values = shared_address(space.table[table[n]]), half[2][4];
#pragma unroll
            for (u32 one = 0; one < 2; one++) {
                u32 width = EACH ? bits[n][one] : factor.bits, step = width == 16 ? 8 : width, mask = (2u << (width == 16 ? 7 : width)) - 2;
                u32 fields = four_fields(low[n][one], high[n][one], shift[n][one], width);
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    // Lanes begin at different rows, so that they store to different banks.
                    half[one][i] = shared_load_16(values + table_start(width) + (fields >> (i + quad) % 4 * step << 1 & mask));
                }
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                two[n][i] = half[0][i] | half[1][i] << 16;
            }
        }
#pragma unroll
        for (u32 n = 0; n < AT_ONCE; n++) {
            if (across[n] != NOWHERE) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    u32 at = u_place(down[n] + (i + quad) % 4, across[n] / 8) + across[n] % 8;
                    *reinterpret_cast<u32 *>(&space.u[table[n]][at]) = two[n][i];
                }
            }
        }
    }
}
