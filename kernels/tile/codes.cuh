// Factors of compressed adapters: dense and shared, or coded and private; and an input row's way through the input
// factor and the core. The bit order of codes is documented at `src/ops/codes.rs`.
#pragma once

#include "ptx/types.cuh"
#include "tile/factor.cuh"

constexpr u32 CODEBOOK_LEN = 52;   // entries of an adapter's codebook record
constexpr u32 EACH_COLUMN = 255;   // `bits` where every column names its own width
constexpr u32 STAGE2 = 44;         // where the second stage's centroids start in the record

// Where the first stage's centroids start in the record.
__device__ __forceinline__ u32 stage1(u32 bits) { return bits == 2 ? 0 : bits == 3 ? 4 : bits == 4 ? 12 : 28; }

// Where the values of a width start in a table of an adapter's, in bytes: 128 sums of both stages, then one stage's, then zeros. Within 512
// bytes a field's place can be added by OR.
__device__ __forceinline__ u32 table_start(u32 bits) { return bits >= 7 ? 0 : bits == 4 ? 256 : bits == 3 ? 288 : bits == 2 ? 304 : 312; }

// The field of element `e` in a packed column; it may straddle two words.
__device__ __forceinline__ u32 code_field(const u32 *column, u64 e, u32 bits) {
    u64 bit = e * bits;
    const u32 *word = column + bit / 32;
    u32 shift = u32(bit % 32);
    u64 both = word[0];
    if (shift + bits > 32) {
        both |= u64(word[1]) << 32;
    }
    return u32(both >> shift) & ((1u << bits) - 1);
}

// A column of a factor, as one adapter has it.
struct Column {
    const element *values;   // dense: its first element
    const u32 *codes;        // coded: its first word
    const f32 *codebook;     // coded: the adapter's record
    u32 bits;                // coded: of a field; 0 where the whole column is zero
    u32 stride;              // dense: elements from one to the next
};

__device__ __forceinline__ Column column_of(const FactorParams &factor, i32 adapter, u32 j) {
    Column column = {};
    if (!factor.coded) {
        u64 basis = factor.basis_of ? u64(factor.basis_of[adapter]) : 0;
        column.values = factor.values + basis * factor.d * factor.rank + j;
        column.stride = factor.rank;
        return column;
    }
    const u32 *region = factor.codes + u64(adapter) * factor.words_per_adapter;
    column.codebook = factor.codebooks + u64(adapter) * CODEBOOK_LEN;
    if (factor.bits == EACH_COLUMN) {
        u32 header = region[j];
        column.bits = header & 31;
        column.codes = region + (header >> 5);
    } else {
        column.bits = factor.bits;
        column.codes = region + u64(j) * ((factor.d + 31) / 32 * factor.bits);
    }
    return column;
}

// Element `e` of a column.
__device__ __forceinline__ f32 element_of(const Column &column, u64 e) {
    if (column.values) {
        return widen(column.values[e * column.stride]);
    }
    if (column.bits == 0) {
        return 0.0f;
    }
    u32 field = code_field(column.codes, e, column.bits);
    const f32 *first = column.codebook + stage1(column.bits);
    if (column.bits == 7) {
        return first[field & 15] + column.codebook[STAGE2 + (field >> 4)];
    }
    if (column.bits == 16) {
        return first[field & 255] + column.codebook[STAGE2 + (field >> 8)];
    }
    return first[field];
}

constexpr int ROW_SHRINK_THREADS = 256;
constexpr int PARTS = ROW_SHRINK_THREADS / 32;
constexpr u32 MAX_RANK = 1024;

// What a block needs to shrink a row.
struct Shrinking {
    f32 parts[PARTS][32];
    f32 h[MAX_RANK];
    f32 g[MAX_RANK];
};

// space.g[j] = scaling · Σ_i h[i]·core[i, j], h = x·I; without a core, g = scaling · h. A block of ROW_SHRINK_THREADS works on
// one row; it ends in step, and sums run in one order whatever the batch.
__device__ __forceinline__ void shrink(const element *x, const FactorParams &input, const f32 *core, f32 scaling, i32 adapter,
                                        Shrinking &space) {
    u32 lane = threadIdx.x % 32, part = threadIdx.x / 32;
    u32 rank = input.rank;
    for (u32 first = 0; first < rank; first += 32) {
        u32 j = first + lane;
        f32 sum = 0.0f;
        if (j < rank) {
            Column column = column_of(input, adapter, j);
            for (u64 e = part; e < input.d; e += PARTS) {
                sum += widen(x[e]) * element_of(column, e);
            }
        }
        space.parts[part][lane] = sum;
        __syncthreads();
        if (part == 0 && j < rank) {
            f32 all = 0.0f;
            for (int p = 0; p < PARTS; p++) {
                all += space.parts[p][lane];
            }
            space.h[j] = all;
        }
        __syncthreads();
    }
    const f32 *own = core ? core + u64(adapter) * rank * rank : nullptr;
    for (u32 j = threadIdx.x; j < rank; j += ROW_SHRINK_THREADS) {
        f32 sum = own ? 0.0f : space.h[j];
        if (own) {
            for (u32 i = 0; i < rank; i++) {
                sum += space.h[i] * own[u64(i) * rank + j];
            }
        }
        space.g[j] = scaling * sum;
    }
    __syncthreads();
}
