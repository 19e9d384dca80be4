// The output factors of all adapters as fragments of mma: decoded once, read by whatever run of tokens needs them.
#pragma once

#include "ptx/grid.cuh"
#include "ptx/mma.cuh"
#include "ptx/special.cuh"
#include "tile/codes.cuh"
#include "tile/power.cuh"
#include "codebook_gemm/sgmv_long_params.cuh"

constexpr u32 ALL_LANES = 0xffffffffu;
constexpr u32 SHRINK_WARPS = 8, BLOCK = 32 * SHRINK_WARPS;
constexpr u32 DEPTHS = RANK / 16;              // steps of mma over the rank
constexpr u32 GROUP = 32;                      // columns of y whose fragments lie together

// The n index q of fragment i of four takes column 8·(q / 2) + 2i + q % 2 of a group of 32, so that D leaves lane t of four columns 8t to
// 8t + 7 of its rows: 16 bytes of y. Lane t has ranks 4t to 4t + 3 of 16. In 16-byte words: [adapter][group][depth][pair of fragments][lane].
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

// From one rank to the next of a group's values in shared memory: 16-byte words, eight of which lie in different banks.
constexpr u32 COLUMNS_ROW = GROUP + 4;

// Four columns of the output factor for each of four ranks.
struct Values {
    f32 of[4][4];
};

// From neighbouring columns to those of the fragments that a lane is to have, where a warp has all ranks of a group, DEPTHS times 16. With
// a core, values[i] becomes Σ_j Q[i, j]·values[j] on the way; `core` is Q transposed.
__device__ __forceinline__ void arrange(bool turns, const f32 (&core)[RANK][RANK], f32 (&space)[RANK][COLUMNS_ROW], Values (&values)[DEPTHS]) {
    u32 quad = threadIdx.x % 32 / 4, ranks = threadIdx.x % 4 * 4, place = quad / 2 * 8 + quad % 2 * 2;
#pragma unroll
    for (u32 n = 0; n < DEPTHS * 4; n++) {
        const f32 (&row)[4] = values[n / 4].of[n % 4];
        f32 *to = &space[n / 4 * 16 + ranks + n % 4][place];
        *reinterpret_cast<float2 *>(to) = make_float2(row[0], row[2]);
        *reinterpret_cast<float2 *>(to + 4) = make_float2(row[1], row[3]);
    }
    __syncwarp();
#pragma unroll
    for (u32 depth = 0; depth < DEPTHS; depth++) {
        Values turned = {};
        if (turns) {
#pragma unroll 4
            for (u32 j = 0; j < RANK; j++) {
                float4 q = *reinterpret_cast<const float4 *>(&core[j][depth * 16 + ranks]), o = *reinterpret_cast<const float4 *>(&space[j][quad * 4]);
                const f32 left[4] = {q.x, q.y, q.z, q.w}, right[4] = {o.x, o.y, o.z, o.w};
#pragma unroll
                for (u32 at = 0; at < 16; at++) {
                    turned.of[at / 4][at % 4] += left[at / 4] * right[at % 4];
                }
            }
        } else {
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
                float4 o = *reinterpret_cast<const float4 *>(&space[depth * 16 + ranks + n][quad * 4]);
                turned.of[n][0] = o.x;
                turned.of[n][1] = o.y;
                turned.of[n][2] = o.z;
                turned.of[n][3] = o.w;
            }
        }
        values[depth] = turned;
    }
}

// Block `number` of those that decode a slice: some groups of one adapter, a warp each. With a core, what it makes of the factor: O·Qᵀ.
// TILES: not into fragments, but as wgmma wants it, IN_TILES of gemm/adapter_sums.cuh, and with zeros where a codebook or core is not
// finite: there rows of other adapters are multiplied too, by zeros. What it is multiplied by then is not finite.
template <bool TILES = false> __device__ __forceinline__ void decode(const SgmvLongParams &p, const SgmvLongSlice &slice, u32 number) {
    __shared__ f32 table[CODEBOOK_LEN], rows_of_core[SHRINK_WARPS];
    __shared__ __align__(16) f32 core[RANK][RANK];
    extern __shared__ __align__(128) u8 dynamic[];
    auto &space = reinterpret_cast<f32 (*)[RANK][COLUMNS_ROW]>(dynamic)[threadIdx.x / 32];
    const FactorParams &factor = slice.output;
    u32 lane = threadIdx.x % 32, groups = u32((factor.d + GROUP - 1) / GROUP), rank = factor.rank;
    u32 each = (groups + SHRINK_WARPS - 1) / SHRINK_WARPS, adapter = number / each, group = number % each * SHRINK_WARPS + threadIdx.x / 32;
    u64 column = u64(group) * GROUP + lane / 4 * 4;
    bool inside = column < factor.d;
    // Codes are only written by copies, which no launch overtakes: they are read before the wait.
    u64 fields[DEPTHS * 4];
    u32 bits[DEPTHS * 4];
#pragma unroll
    for (u32 n = 0; n < DEPTHS * 4; n++) {
        u32 j = n / 4 * 16 + lane % 4 * 4 + n % 4;
        fields[n] = bits[n] = 0;
        if (factor.coded && inside && j < rank) {
            Column of = column_of(factor, i32(adapter), j);
            u64 bit = column * of.bits;
            u32 shift = u32(bit % 32);
            bits[n] = of.bits;
            if (of.bits > 0) {
                fields[n] = of.codes[bit / 32];
            }
            if (shift + 4 * of.bits > 32) {
                fields[n] |= u64(of.codes[bit / 32 + 1]) << 32;
            }
            fields[n] >>= shift;
        }
    }
    grid_wait();
    grid_launch_next();
    // What the values are divided by: powers of two near the greatest of them, or of what the core may make of it.
    f32 scale = 1.0f, back = p.scaling[adapter];
    if (factor.coded) {
        const f32 *record = factor.codebooks + u64(adapter) * CODEBOOK_LEN;
        f32 greatest = greatest_of(record, factor.bits);
        u32 exponent = exponent_below(greatest);
        scale = inverse_power(exponent);
        back *= greatest < infinity() ? power(exponent) : greatest;
        if (threadIdx.x < CODEBOOK_LEN) {
            table[threadIdx.x] = TILES && !(greatest < infinity()) ? 0.0f : record[threadIdx.x] * scale;
        }
    }
    if (slice.core) {
        const f32 *from = slice.core + u64(adapter) * rank * rank;
        f32 own[RANK * RANK / BLOCK], greatest = 0.0f;
        // A row of Q is from h's rank i to all of g's; RANK lanes have it.
#pragma unroll
        for (u32 n = 0; n < RANK * RANK / BLOCK; n++) {
            u32 i = (n * BLOCK + threadIdx.x) / RANK, j = threadIdx.x % RANK;
            own[n] = i < rank && j < rank ? from[i * rank + j] : 0.0f;
        }
#pragma unroll
        for (u32 n = 0; n < RANK * RANK / BLOCK; n++) {
            f32 sum = fabsf(own[n]);
#pragma unroll
            for (u32 distance = RANK / 2; distance > 0; distance /= 2) {
                sum += __shfl_xor_sync(ALL_LANES, sum, distance);
            }
            greatest = max_or_nan(greatest, sum);
        }
        greatest = max_or_nan(greatest, __shfl_xor_sync(ALL_LANES, greatest, 16));
        if (lane == 0) {
            rows_of_core[threadIdx.x / 32] = greatest;
        }
        __syncthreads();
#pragma unroll
        for (u32 warp = 0; warp < SHRINK_WARPS; warp++) {
            greatest = max_or_nan(greatest, rows_of_core[warp]);
        }
        u32 exponent = exponent_below(greatest);
        back *= greatest < infinity() ? power(exponent) : greatest;
#pragma unroll
        for (u32 n = 0; n < RANK * RANK / BLOCK; n++) {
            core[threadIdx.x % RANK][(n * BLOCK + threadIdx.x) / RANK] = TILES && !(greatest < infinity()) ? 0.0f : own[n] * inverse_power(exponent);
        }
    }
    __syncthreads();
    if (group == 0 && lane == 0) {
        slice.table_scale[adapter] = back;
    }
    if (group >= groups) {
        return;
    }
    Values values[DEPTHS];
#pragma unroll
    for (u32 n = 0; n < DEPTHS * 4; n++) {
        u32 j = n / 4 * 16 + lane % 4 * 4 + n % 4, width = bits[n], first = stage1(width);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            f32 value = 0.0f;
            if (!factor.coded) {
                if (j < rank && column + i < factor.d) {
                    value = element_of(column_of(factor, i32(adapter), j), column + i);
                }
            } else if (width > 0 && column + i < factor.d) {
                u32 field = u32(fields[n] >> (i * width)) & ((1u << width) - 1), low = width < 7 ? field : field & 15;
                value = table[first + low];
                if (width >= 7) {
                    value += table[STAGE2 + (width == 7 ? field >> 4 : field >> 8 & 7)];
                }
            }
            values[n / 4].of[n % 4][i] = value;
        }
    }
    arrange(slice.core != nullptr, core, space, values);
#pragma unroll
    for (u32 depth = 0; depth < DEPTHS; depth++) {
        const f32 (&of)[4][4] = values[depth].of;
        if constexpr (TILES) {
            // Of fragment i column lane / 4, ranks 4t to 4t + 3: half a row of a tile.
            uint2 *to = reinterpret_cast<uint2 *>(slice.fragments) + (u64(adapter) * groups + group) * 128 + lane % 4 / 2 * 16 + lane / 4 * 2 + lane % 2;
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                to[i * 32] = make_uint2(narrow2<element>(of[0][i], of[1][i]), narrow2<element>(of[2][i], of[3][i]));
            }
            continue;
        }
        uint4 *to = reinterpret_cast<uint4 *>(slice.fragments) + fragment_place(u64(adapter) * groups + group, depth, 0);
#pragma unroll
        for (u32 pair = 0; pair < 2; pair++) {
            u32 i = 2 * pair;
            to[pair * 32] = make_uint4(narrow2<element>(of[0][i], of[1][i]), narrow2<element>(of[2][i], of[3][i]),
                                       narrow2<element>(of[0][i + 1], of[1][i + 1]), narrow2<element>(of[2][i + 1], of[3][i + 1]));
        }
    }
}

constexpr u32 BASIS_DEPTH = 64;   // rows of the input factor that lie together where a product multiplies by it

// 64 rows of the one input factor, turned over, as a step of K lies in shared memory behind W's rows (gemm/adapter_sums.cuh): 16 rows of 128
// bytes, swizzled.
__device__ __forceinline__ void turn_basis(const SgmvLongSlice &slice, u32 step) {
    grid_wait();
    grid_launch_next();
    const FactorParams &factor = slice.input;
    for (u32 at = threadIdx.x; at < 16 * BASIS_DEPTH; at += BLOCK) {
        u32 n = at / BASIS_DEPTH, k = at % BASIS_DEPTH;
        u64 row = u64(step) * BASIS_DEPTH + k;
        element value = row < factor.d && n < factor.rank ? factor.values[row * factor.rank + n] : element{};
        slice.basis[(u64(step) * 16 + n) * BASIS_DEPTH + (k / 8 ^ n % 8) * 8 + k % 8] = value;
    }
}
