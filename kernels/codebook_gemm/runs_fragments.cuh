// The output factors of all adapters as fragments of mma: decoded once, read by whatever run of tokens needs them.
#pragma once

#include "ptx/grid.cuh"
#include "ptx/mma.cuh"
#include "tile/codes.cuh"
#include "codebook_gemm/runs_sm80_params.cuh"

constexpr u32 ALL_LANES = 0xffffffffu;
constexpr u32 PROJECT_WARPS = 8, BLOCK = 32 * PROJECT_WARPS;
constexpr u32 DEPTHS = RANK / 16;              // steps of mma over the rank
constexpr u32 GROUP = 32;                      // columns of y whose fragments lie together

// The power of two below `value`, within what has an exact inverse.
__device__ __forceinline__ u32 exponent_below(f32 value) {
    u32 exponent = __float_as_uint(value) >> 23 & 255;
    return exponent < 1 ? 1 : exponent > 252 ? 252 : exponent;
}
__device__ __forceinline__ f32 power(u32 exponent) { return __uint_as_float(exponent << 23); }
__device__ __forceinline__ f32 inverse_power(u32 exponent) { return __uint_as_float((254 - exponent) << 23); }

// Lane 4q + t, as mma counts them, has columns 4q to 4q + 3 of a group of 32 (fragment i takes the i-th), and ranks 4t to 4t + 3 of 16. So
// D leaves it columns 8t to 8t + 7 of its rows: 16 bytes of y. In 16-byte words: [adapter][group][depth][pair of fragments][lane].
__device__ __forceinline__ u64 fragment_place(u64 group, u32 depth, u32 pair) { return ((group * DEPTHS + depth) * 2 + pair) * 32 + threadIdx.x % 32; }

// The largest of what the codebook stands for, or not a number; all of the warp get it. What no width in use reads need not hold numbers.
__device__ __forceinline__ f32 greatest_of(const f32 *record, u32 bits) {
    u32 lane = threadIdx.x % 32;
    bool each = bits == EACH_COLUMN, joint = bits >= 7;
    u32 first = each ? 0 : stage1(bits), end = each || bits == 4 ? 28 : bits == 3 ? 12 : bits == 2 ? 4 : 0;
    f32 one = lane >= first && lane < end ? fabsf(record[lane]) : 0.0f;
    f32 centre = joint && lane < 16 ? fabsf(record[28 + lane]) : 0.0f, rest = joint && lane < 8 ? fabsf(record[STAGE2 + lane]) : 0.0f;
    bool finite = __all_sync(ALL_LANES, one < infinity() && centre < infinity() && rest < infinity());
#pragma unroll
    for (u32 distance = 16; distance > 0; distance /= 2) {
        one = fmaxf(one, __shfl_xor_sync(ALL_LANES, one, distance));
        centre = fmaxf(centre, __shfl_xor_sync(ALL_LANES, centre, distance));
        rest = fmaxf(rest, __shfl_xor_sync(ALL_LANES, rest, distance));
    }
    return finite ? fmaxf(one, centre + rest) : __uint_as_float(0x7fc00000);
}

// Block `number` of those that decode a slice: some groups of one adapter, a warp each.
__device__ __forceinline__ void decode(const RunsSlice &slice, u32 number) {
    __shared__ f32 table[CODEBOOK_LEN];
    const FactorParams &factor = slice.output;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, items = u32((factor.d + GROUP - 1) / GROUP) * DEPTHS;
    u32 each = (items + PROJECT_WARPS - 1) / PROJECT_WARPS, adapter = number / each, item = number % each * PROJECT_WARPS + warp;
    u32 depth = item % DEPTHS, rank = depth * 16 + lane % 4 * 4;
    u64 column = u64(item / DEPTHS) * GROUP + lane / 4 * 4;
    bool inside = item < items && column < factor.d;
    // Codes are only written by copies, which no launch overtakes: they are read before the wait.
    u64 fields[4];
    u32 bits[4];
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        fields[r] = bits[r] = 0;
        if (factor.coded && inside && rank + r < factor.rank) {
            Column of = column_of(factor, i32(adapter), rank + r);
            u64 bit = column * of.bits;
            u32 shift = u32(bit % 32);
            bits[r] = of.bits;
            if (of.bits > 0) {
                fields[r] = of.codes[bit / 32];
            }
            if (shift + 4 * of.bits > 32) {
                fields[r] |= u64(of.codes[bit / 32 + 1]) << 32;
            }
            fields[r] >>= shift;
        }
    }
    grid_wait();
    grid_launch_next();
    f32 scale = 1.0f, back = 1.0f;
    if (factor.coded) {
        const f32 *record = factor.codebooks + u64(adapter) * CODEBOOK_LEN;
        f32 greatest = greatest_of(record, factor.bits);
        // NaN has the greatest of exponents.
        u32 exponent = exponent_below(greatest);
        scale = inverse_power(exponent);
        back = greatest < infinity() ? power(exponent) : greatest;
        if (threadIdx.x < CODEBOOK_LEN) {
            table[threadIdx.x] = record[threadIdx.x] * scale;
        }
        __syncthreads();
    }
    if (item == 0 && lane == 0) {
        slice.table_scale[adapter] = back;
    }
    if (item >= items) {
        return;
    }
    f32 values[4][4];
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            values[r][i] = 0.0f;
            if (!factor.coded) {
                if (inside && rank + r < factor.rank && column + i < factor.d) {
                    values[r][i] = element_of(column_of(factor, i32(adapter), rank + r), column + i);
                }
            } else if (bits[r] > 0 && column + i < factor.d) {
                u32 field = u32(fields[r] >> (i * bits[r])) & ((1u << bits[r]) - 1), first = stage1(bits[r]);
                values[r][i] = bits[r] < 7 ? table[first + field] : bits[r] == 7 ? table[first + (field & 15)] + table[STAGE2 + (field >> 4)]
                                                                                 : table[first + (field & 15)] + table[STAGE2 + (field >> 8 & 7)];
            }
        }
    }
    uint4 *to = reinterpret_cast<uint4 *>(slice.fragments) + fragment_place(u64(adapter) * (items / DEPTHS) + item / DEPTHS, depth, 0);
#pragma unroll
    for (u32 pair = 0; pair < 2; pair++) {
        u32 words[4];
#pragma unroll
        for (u32 n = 0; n < 4; n++) {
            u32 i = 2 * pair + n / 2, r = n % 2 * 2;
            words[n] = narrow2<element>(values[r][i], values[r + 1][i]);
        }
        to[pair * 32] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}
