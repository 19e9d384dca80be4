// A tile of X·Wᵀ on the ordinary cores: 64 × 64 outputs a block of 256 threads, 4 × 4 each, every size.
#pragma once

#include "ptx/types.cuh"

constexpr int TILE = 64;    // rows, and columns, of a block's tile
constexpr int DEPTH = 16;   // elements of K a step
constexpr int THREADS = 256;
constexpr int EACH = 4;     // rows, and columns, of a thread

static_assert(TILE * TILE == THREADS * EACH * EACH, "every output has one thread");
static_assert(TILE * DEPTH == THREADS * EACH, "every thread loads EACH elements of each operand a step");

// Where a block's tile lies, and what it is a tile of.
struct Tile {
    u64 row, column;          // of its first output
    u64 rows, columns, depth; // of the whole product
    u64 x_stride, w_stride;   // elements from row to row
};

// Row `i` and column `j` of this thread inside the tile.
__device__ __forceinline__ u32 tile_row(u32 i) { return threadIdx.x / 16 * EACH + i; }
__device__ __forceinline__ u32 tile_column(u32 j) { return threadIdx.x % 16 * EACH + j; }

// sum[c] = the tile of X·w[c]ᵀ, for COUNT weights that share X. Ends with every thread past its last read of shared memory.
template <int COUNT>
__device__ __forceinline__ void multiply(const Tile &tile, const element *x, const element *const (&w)[COUNT],
                                         f32 (&sum)[COUNT][EACH][EACH]) {
    // Padding spreads a column over the banks.
    __shared__ f32 x_tile[DEPTH][TILE + 4];
    __shared__ f32 w_tile[COUNT][DEPTH][TILE + 4];
#pragma unroll
    for (int c = 0; c < COUNT; c++) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                sum[c][i][j] = 0.0f;
            }
        }
    }
    u32 line = threadIdx.x / 4, first = threadIdx.x % 4 * EACH;
    bool x_inside = tile.row + line < tile.rows, w_inside = tile.column + line < tile.columns;
    for (u64 start = 0; start < tile.depth; start += DEPTH) {
#pragma unroll
        for (u32 e = 0; e < EACH; e++) {
            u64 k = start + first + e;
            bool inside = k < tile.depth;
            x_tile[first + e][line] = inside && x_inside ? widen(x[(tile.row + line) * tile.x_stride + k]) : 0.0f;
#pragma unroll
            for (int c = 0; c < COUNT; c++) {
                w_tile[c][first + e][line] = inside && w_inside ? widen(w[c][(tile.column + line) * tile.w_stride + k]) : 0.0f;
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            f32 left[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                left[i] = x_tile[k][tile_row(i)];
            }
#pragma unroll
            for (int c = 0; c < COUNT; c++) {
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    f32 right = w_tile[c][k][tile_column(j)];
#pragma unroll
                    for (int i = 0; i < EACH; i++) {
                        sum[c][i][j] += left[i] * right;
                    }
                }
            }
        }
        __syncthreads();
    }
}
