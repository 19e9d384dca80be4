// A tile of X·Wᵀ on the tensor cores of Ampere and later: operands come by cp.async through a ring of stages in swizzled
// shared memory, warps multiply with mma.sync, sums go through shared memory to whole lines of Y.
//
// The host defines the tile: TILE_ROWS × TILE_COLUMNS outputs, TILE_DEPTH elements of K a stage, STAGES stages, and
// WARPS_DOWN × WARPS_ACROSS × WARPS_ALONG warps, of which those along K add up their sums in a fixed order.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/mma.cuh"
#include "tile/activation.cuh"
#include "gemm/outputs.cuh"
#include "gemm/y_element.cuh"

constexpr int MMA_THREADS = 32 * WARPS_DOWN * WARPS_ACROSS * WARPS_ALONG;
constexpr int WARP_ROWS = TILE_ROWS / WARPS_DOWN, WARP_COLUMNS = TILE_COLUMNS / WARPS_ACROSS;
constexpr int X_BYTES = TILE_ROWS * TILE_DEPTH * 2, STAGE_BYTES = (TILE_ROWS + TILE_COLUMNS) * TILE_DEPTH * 2;
// Elements from a row of sums to the next; eight more, so that a warp's pairs fall into different banks.
constexpr int SUM_STRIDE = TILE_COLUMNS + 8;
// Steps of 16 that a warp takes through a stage.
constexpr int PARTS_OF_STAGE = TILE_DEPTH / 16 / WARPS_ALONG;

static_assert(WARP_ROWS % 16 == 0 && WARP_COLUMNS % 16 == 0 && TILE_DEPTH % (16 * WARPS_ALONG) == 0, "whole instructions");
static_assert(PARTS_OF_STAGE % 2 == 0, "two sets of fragments take turns, and every stage starts with the first");
static_assert(TILE_DEPTH >= 32, "a row of a tile is 64 bytes or more");

// Where element `k` (a multiple of what is moved at once) of row `row` lies in a tile, in bytes. 16-byte pieces are exchanged
// among neighbours, so that eight rows at one k fall into different banks.
__device__ __forceinline__ u32 swizzled(u32 row, u32 k) {
    u32 turn = TILE_DEPTH == 32 ? row / 2 % 4 : row % 8;
    return row * (TILE_DEPTH * 2) + ((k / 8) ^ turn) * 16 + k % 8 * 2;
}

// WIDTH bytes to shared memory, or zeros.
template <int WIDTH> __device__ __forceinline__ void load_piece(char *to, const element *from, bool inside) {
    if constexpr (WIDTH == 16) {
        cp_async_16(shared_address(to), from, inside ? 16 : 0);
    } else if constexpr (WIDTH == 4) {
        cp_async_4(shared_address(to), from, inside ? 4 : 0);
    } else {
        // There is no asynchronous copy of two bytes.
        *(u16 *)to = inside ? from->bits : u16(0);
    }
}

// Brings ROWS rows from `first` on, TILE_DEPTH elements at a time, with zeros for what lies outside [count, depth]. PAIRED:
// eight rows of `from` and the same eight of `gate` in turn, so that one thread gets the sums of both. RAGGED: a row's last piece may be
// shorter than the others.
template <int WIDTH, int ROWS, bool PAIRED, bool RAGGED> struct Loader {
    static constexpr int PIECE = WIDTH / 2, EACH = TILE_DEPTH / PIECE, PASSES = ROWS * EACH / MMA_THREADS;
    // Rows that a pass of all threads takes. Where they are whole turns, a thread's next piece lies as many rows further on.
    static constexpr int ROWS_A_PASS = MMA_THREADS / EACH, STEP = PAIRED ? ROWS_A_PASS / 2 : ROWS_A_PASS;
    static constexpr bool REGULAR = MMA_THREADS % EACH == 0 && (!PAIRED || ROWS_A_PASS % 16 == 0);
    static constexpr int UNROLL = WIDTH == 16 ? PASSES : 4;
    static_assert(ROWS * EACH % MMA_THREADS == 0, "every thread loads as much");

    const element *from, *gate;
    u64 stride, depth;
    // Rows that there are, from the tile's first on.
    u32 left;

    __device__ __forceinline__ Loader(const element *from, const element *gate, u64 stride, u64 first, u64 count, u64 depth)
        : from(from + first * stride), gate(gate + first * stride), stride(stride), depth(depth), left(u32(count - first < ROWS ? count - first : ROWS)) {
        if constexpr (REGULAR) {
            this->from = place(threadIdx.x);
        }
    }

    // Which row a piece is of, and where it starts at k = 0.
    __device__ __forceinline__ u32 source(u32 piece) const {
        u32 row = piece / EACH;
        return PAIRED ? row / 16 * 8 + row % 8 : row;
    }

    __device__ __forceinline__ const element *place(u32 piece) const {
        const element *base = PAIRED && piece / EACH % 16 >= 8 ? gate : from;
        return base + source(piece) * stride + piece % EACH * PIECE;
    }

    __device__ __forceinline__ void load(char *to, u64 start) const {
#pragma unroll UNROLL
        for (int pass = 0; pass < PASSES; pass++) {
            u32 piece = pass * MMA_THREADS + threadIdx.x, row = piece / EACH, k = piece % EACH * PIECE;
            // What is outside is not read, wherever it lies.
            bool inside = source(piece) < left && start + k < depth;
            const element *at = REGULAR ? from + u64(pass * STEP) * stride : place(piece);
            if constexpr (RAGGED) {
                u64 rest = inside ? (depth - start - k) * 2 : 0;
                cp_async_16(shared_address(to + swizzled(row, k)), at + start, rest < 16 ? u32(rest) : 16);
            } else {
                load_piece<WIDTH>(to + swizzled(row, k), at + start, inside);
            }
        }
    }
};

// What a warp multiplies in one step: 16 elements of K of its rows and columns.
struct Fragments {
    u32 x[WARP_ROWS / 16][4], w[WARP_COLUMNS / 8][2];

    __device__ __forceinline__ void load(u32 stage, u32 warp_row, u32 warp_column, u32 k) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < WARP_ROWS / 16; i++) {
            ldmatrix_x4(x[i], stage + swizzled(warp_row + i * 16 + lane % 16, k + lane / 16 * 8));
        }
#pragma unroll
        for (int j = 0; j < WARP_COLUMNS / 8; j += 2) {
            u32 two[4];
            ldmatrix_x4(two, stage + X_BYTES + swizzled(warp_column + j * 8 + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 8));
            w[j][0] = two[0];
            w[j][1] = two[1];
            w[j + 1][0] = two[2];
            w[j + 1][1] = two[3];
        }
    }

    __device__ __forceinline__ void multiply(f32 (&sum)[WARP_ROWS / 16][WARP_COLUMNS / 8][4]) const {
#pragma unroll
        for (int i = 0; i < WARP_ROWS / 16; i++) {
#pragma unroll
            for (int j = 0; j < WARP_COLUMNS / 8; j++) {
                mma_m16n8k16<element>(sum[i][j], x[i], w[j]);
            }
        }
    }
};

// Eight outputs of a row from their sums.
template <bool GATED> __device__ __forceinline__ void store_outputs(const GemmParams &p, u64 row, u64 column, const f32 *up, const f32 *gate) {
    u32x4 line[sizeof(y_element) / 2] = {}, bias = {}, residual = {}, before = {};
    u64 at = row * p.y_stride + column;
    if (p.vector) {
        if (p.bias) {
            bias = *(const u32x4 *)(p.bias + column);
        }
        if (p.residual) {
            residual = *(const u32x4 *)(p.residual + at);
        }
        if (p.adds) {
            before = *(const u32x4 *)(p.y + at);
        }
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
        if (column + e >= p.columns) {
            break;
        }
        f32 value = up[e];
        if (p.bias) {
            u32 both = bias.word[e / 2];
            value += p.vector ? (e % 2 ? high_half(both) : low_half(both)) : widen(p.bias[column + e]);
        }
        if (p.adds) {
            u32 both = before.word[e / 2];
            value += p.vector ? (e % 2 ? high_half(both) : low_half(both)) : widen(p.y[at + e]);
        }
        value = GATED ? activate(p.activation, gate[e]) * value : activate(p.activation, value);
        if (p.residual) {
            u32 both = residual.word[e / 2];
            value += p.vector ? (e % 2 ? high_half(both) : low_half(both)) : widen(p.residual[at + e]);
        }
        if (!p.vector) {
            ((y_element *)p.y)[at + e] = narrow<y_element>(value);
        } else if constexpr (WIDE_Y) {
            line[e / 4].word[e % 4] = __float_as_uint(value);
        } else {
            line[0].word[e / 2] |= u32(narrow<element>(value).bits) << e % 2 * 16;
        }
    }
    if (p.vector) {
#pragma unroll
        for (u32 i = 0; i < sizeof(y_element) / 2; i++) {
            ((u32x4 *)((y_element *)p.y + at))[i] = line[i];
        }
    }
}

// Y = act(X·Wᵀ + bias) + residual, or act(X·Gᵀ) ⊙ (X·Wᵀ + bias) where GATED. Every row of X and W starts on a multiple
// of WIDTH bytes and K is whole in it: 16, 4 or 2; but for RAGGED (and 16), where K ends anywhere.
template <int WIDTH, bool GATED, bool RAGGED = false> __device__ __forceinline__ void mma_gemm(const GemmParams &p, char *shared) {
    constexpr u64 OUTPUTS = GATED ? TILE_COLUMNS / 2 : TILE_COLUMNS;
    static_assert(!RAGGED || WIDTH == 16, "shorter pieces have no rest");
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 warp_along = warp / (WARPS_DOWN * WARPS_ACROSS);
    u32 warp_row = warp / WARPS_ACROSS % WARPS_DOWN * WARP_ROWS, warp_column = warp % WARPS_ACROSS * WARP_COLUMNS;
    u64 down = (p.rows + TILE_ROWS - 1) / TILE_ROWS, across = (p.columns + OUTPUTS - 1) / OUTPUTS;
    u32 steps = u32((p.depth + TILE_DEPTH - 1) / TILE_DEPTH);
    u32 base = shared_address(shared);
    for (u64 index = blockIdx.x; index < down * across; index += gridDim.x) {
        u64 row, column;
        tile_place<8>(index, down, across, row, column);
        row *= TILE_ROWS;
        column *= OUTPUTS;
        Loader<WIDTH, TILE_ROWS, false, RAGGED> x(p.x, p.x, p.x_stride, row, p.rows, p.depth);
        Loader<WIDTH, TILE_COLUMNS, GATED, RAGGED> w(p.w, p.gate, p.w_stride, column, p.columns, p.depth);
        auto load = [&](u32 step) {
            char *stage = shared + step % STAGES * STAGE_BYTES;
            x.load(stage, u64(step) * TILE_DEPTH);
            w.load(stage + X_BYTES, u64(step) * TILE_DEPTH);
        };
        f32 sum[WARP_ROWS / 16][WARP_COLUMNS / 8][4] = {};
#pragma unroll 1
        for (u32 step = 0; step < STAGES - 1; step++) {
            if (step < steps) {
                load(step);
            }
            cp_async_commit();
        }
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        // While one step's fragments are multiplied, the next step's are on their way.
        Fragments fragments[2];
        fragments[0].load(base, warp_row, warp_column, warp_along * 16);
#pragma unroll 1
        for (u32 step = 0; step < steps; step++) {
            u32 stage = base + step % STAGES * STAGE_BYTES, next = base + (step + 1) % STAGES * STAGE_BYTES;
#pragma unroll
            for (int part = 0; part < PARTS_OF_STAGE; part++) {
                if (part == PARTS_OF_STAGE - 1) {
                    // The next stage is there for all, and all have read this one, which the next load but one overwrites.
                    cp_async_wait<STAGES - 2>();
                    __syncthreads();
                }
                u32 k = ((part + 1) % PARTS_OF_STAGE * WARPS_ALONG + warp_along) * 16;
                fragments[(part + 1) % 2].load(part == PARTS_OF_STAGE - 1 ? next : stage, warp_row, warp_column, k);
                if (part == 0) {
                    if (step + STAGES - 1 < steps) {
                        load(step + STAGES - 1);
                    }
                    cp_async_commit();
                }
                fragments[part % 2].multiply(sum);
            }
        }
        cp_async_wait<0>();
        f32 *sums = (f32 *)shared;
#pragma unroll
        for (u32 turn = 0; turn < WARPS_ALONG; turn++) {
            __syncthreads();
            if (turn != warp_along) {
                continue;
            }
#pragma unroll
            for (int i = 0; i < WARP_ROWS / 16; i++) {
#pragma unroll
                for (int j = 0; j < WARP_COLUMNS / 8; j++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        u32 at = (warp_row + i * 16 + lane / 4 + e / 2 * 8) * SUM_STRIDE + warp_column + j * 8 + lane % 4 * 2 + e % 2;
                        sums[at] = turn == 0 ? sum[i][j][e] : sums[at] + sum[i][j][e];
                    }
                }
            }
        }
        __syncthreads();
#pragma unroll 1
        for (u32 piece = threadIdx.x; piece < TILE_ROWS * OUTPUTS / 8; piece += MMA_THREADS) {
            u32 r = piece / (OUTPUTS / 8), c = piece % (OUTPUTS / 8) * 8;
            if (row + r < p.rows && column + c < p.columns) {
                const f32 *from = sums + r * SUM_STRIDE + (GATED ? c * 2 : c);
                store_outputs<GATED>(p, row + r, column + c, from, from + 8);
            }
        }
        // The next tile's loads overwrite the sums.
        __syncthreads();
    }
}
