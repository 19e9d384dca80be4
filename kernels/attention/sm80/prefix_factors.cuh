// Factors of a prefix in shared memory, as the tensor cores read them, and K and V rebuilt from them there.
//
// A warp decodes two columns side by side, a lane a row: the fields of neighbouring rows lie in the same words. What a field stands
// for is looked up in a table of the factor's values, each rounded once.
#pragma once

#include "attention/prefix_rows.cuh"
#include "attention/sm80/tile.cuh"

// Of a coded factor: the values by field, of each width after the other, zeros last.
constexpr u32 TABLE = 160;

__device__ __forceinline__ u32 table_place(u32 bits) { return bits >= 7 ? 0 : bits == 4 ? 128 : bits == 3 ? 144 : bits == 2 ? 152 : 156; }

// A factor of rows in shared memory, `pitch` elements apart: whole steps of the matrix product, and 16 bytes.
struct FactorTile {
    element *table;
    u32 *heads;     // of each column: its first word, times 32, and the bits of a field
    u32 pitch, steps;
};

__device__ __forceinline__ u32 rank_steps(const FactorParams &factor) { return (factor.rank + 15) / 16; }

// Elements of shared memory of one that has `heads` columns, rounded up: 16 bytes at least.
__device__ __forceinline__ u32 index_elements(const FactorParams &factor) { return factor.coded ? TABLE + rank_steps(factor) * 32 : 0; }

template <int THREADS> __device__ __forceinline__ FactorTile open_factor(const FactorParams &factor, element *at) {
    u32 steps = rank_steps(factor);
    FactorTile tile = {at, (u32 *)(at + TABLE), steps * 16 + 8, steps};
    if (!factor.coded) {
        return tile;
    }
    for (u32 place = threadIdx.x; place < TABLE; place += THREADS) {
        const f32 *book = factor.codebooks;
        f32 value = place < 128   ? book[28 + place % 16] + book[STAGE2 + place / 16]
                    : place < 144 ? book[12 + place - 128]
                    : place < 152 ? book[4 + place - 144]
                    : place < 156 ? book[place - 152]
                                  : 0.0f;
        tile.table[place] = narrow<element>(value);
    }
    for (u32 column = threadIdx.x; column < steps * 16; column += THREADS) {
        u32 uniform = column * u32((factor.d + 31) / 32 * factor.bits) << 5 | factor.bits;
        tile.heads[column] = column >= factor.rank ? 0 : factor.bits == EACH_COLUMN ? factor.codes[column] : uniform;
    }
    return tile;
}

// The bits of an element of a column with that head.
__device__ __forceinline__ u32 decoded(const FactorParams &factor, const FactorTile &tile, u32 head, u32 e) {
    u32 bits = head & 31, at = e * bits, shift = at % 32;
    const u32 *word = factor.codes + (head >> 5) + at / 32;
    u64 both = (bits ? word[0] : 0) | u64(shift + bits > 32 ? word[1] : 0) << 32;
    u32 field = u32(both >> shift) & ((1u << bits) - 1);
    field = bits == 16 ? (field & 15) | (field >> 4 & 0x70) : field;
    return tile.table[table_place(bits) + field].bits;
}

// ROWS rows of a factor from row `first`; zeros from `count` on, and past the last column. Dense ones are under way as cp.async.
template <int THREADS, int ROWS>
__device__ __forceinline__ void load_factor(const FactorParams &factor, const FactorTile &tile, u32 first, i32 count, Spot to) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (factor.coded) {
#pragma unroll 2
        for (u32 pair = warp; pair < tile.steps * 8; pair += THREADS / 32) {
            u32 left = tile.heads[2 * pair], right = tile.heads[2 * pair + 1];
#pragma unroll
            for (int row = 0; row < ROWS; row += 32) {
                bool inside = row + i32(lane) < count;
                u32 e = first + row + lane;
                u32 both = inside ? decoded(factor, tile, left, e) | decoded(factor, tile, right, e) << 16 : 0;
                *(u32 *)(to.start + (row + lane) * tile.pitch + 2 * pair) = both;
            }
        }
        return;
    }
    // Whole pieces of 16 bytes where rows are made of them, else element by element.
    bool whole = factor.rank % 8 == 0 && u64(factor.values) % 16 == 0;
    for (u32 at = threadIdx.x; at < ROWS * tile.steps * 2; at += THREADS) {
        u32 row = at / (tile.steps * 2), column = at % (tile.steps * 2) * 8;
        i32 columns = i32(row) < count ? i32(factor.rank) - i32(column) : 0;
        const element *from = columns > 0 ? factor.values + u64(first + row) * factor.rank + column : factor.values;
        Spot place = to + (row * tile.pitch + column);
        if (whole) {
            load_chunk<true>(place, from, columns);
        } else {
            load_chunk<false>(place, from, columns);
        }
    }
}

// 16 rows and COLUMNS columns of left · rightᵀ, both in shared memory, `left_at` and `right_at` as ldmatrix wants this lane's; rounded,
// into a tile of rows PITCH apart.
template <int COLUMNS> __device__ __forceinline__ void rebuild(u32 steps, u32 pitch, u32 left_at, u32 right_at, element *to) {
    f32 sums[COLUMNS / 8][4];
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) {
        sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.0f;
    }
#pragma unroll 1
    for (u32 step = 0; step < steps; step++, left_at += 32, right_at += 32) {
        u32 own[4];
        ldmatrix_x4(own, left_at);
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 16) {
            u32 other[4];
            ldmatrix_x4(other, right_at + n * pitch * 2);
            u32 low[2] = {other[0], other[1]}, high[2] = {other[2], other[3]};
            mma_m16n8k16<element>(sums[n / 8], own, low);
            mma_m16n8k16<element>(sums[n / 8 + 1], own, high);
        }
    }
    u32 group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) {
        *(u32 *)(to + group * PITCH + n * 8 + pair) = narrow2<element>(sums[n][0], sums[n][1]);
        *(u32 *)(to + (group + 8) * PITCH + n * 8 + pair) = narrow2<element>(sums[n][2], sums[n][3]);
    }
}
