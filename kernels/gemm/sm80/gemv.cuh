// X·Wᵀ for up to 16 rows of X where a launch, and not memory, takes the time: small blocks, each of eight outputs and all of K, whose part of W lies in
// registers before the launch before has ended. X's rows may be normed first (RMSNorm), by each block for itself; outputs may be gated.
//
// Tokens are the rows of the tensor cores' first operand and W's rows the columns of their second one. Both have their elements of K in the same order, not
// the instruction's: a thread's 16 bytes are its share of two instructions. Warps share out K in turn; their sums are added up in a fixed order: results
// are bitwise the same from run to run, and a row's do not depend on the other rows.
//
// The host defines GEMV_CHUNKS (chunks of 32 elements of K a warp), GEMV_GATED, GEMV_NORMED, and GEMV_ALIGNED (rows of X, W and the norm are whole lines
// of 16 bytes; of others nothing is held in registers, as eight elements take eight loads).
#pragma once

#include "ptx/grid.cuh"
#include "ptx/mma.cuh"
#include "ptx/special.cuh"
#include "tile/activation.cuh"
#include "gemm/sm80/gemv_params.cuh"

constexpr u32 GEMV_THREADS = 256, GEMV_WARPS = GEMV_THREADS / 32, GEMV_OUTPUTS = 8, GEMV_TOKENS = 16, GEMV_CHUNK = 32;
constexpr u32 GEMV_WEIGHTS = GEMV_GATED ? 2 : 1;
// Elements of K that all warps together take at once.
constexpr u32 GEMV_STEP = GEMV_WARPS * GEMV_CHUNK;
constexpr u32 GEMV_UNROLL = GEMV_ALIGNED ? GEMV_CHUNKS : 1;

// Eight elements from element `k` of a row of `depth` on, zeros behind its end.
__device__ __forceinline__ uint4 eight_from(const element *row, u32 k, u32 depth, bool there) {
    if (GEMV_ALIGNED) {
        return there && k < depth ? *(const uint4 *)(row + k) : uint4{0, 0, 0, 0};
    }
    u32 words[4] = {};
#pragma unroll
    for (u32 e = 0; e < 8; e++) {
        u32 bits = there && k + e < depth ? row[k + e].bits : 0;
        words[e / 2] |= bits << e % 2 * 16;
    }
    return {words[0], words[1], words[2], words[3]};
}

// Two elements of a word.
__device__ __forceinline__ f32 low_half(u32 word) { return widen(element{u16(word)}); }
__device__ __forceinline__ f32 high_half(u32 word) { return widen(element{u16(word >> 16)}); }

// A row of X normed into shared memory by a warp, and rounded, as a norm of its own would be. `weight` is the norm's, in shared memory.
__device__ __forceinline__ void norm_row(const GemvParams &p, const element *row, const element *weight, element *to) {
    u32 lane = threadIdx.x % 32;
    uint4 held[GEMV_UNROLL];
    f32 squares = 0.0f;
    auto line = [&](u32 i) { return eight_from(row, (i * 32 + lane) * 8, p.depth, true); };
    if (GEMV_ALIGNED) {
#pragma unroll
        for (u32 i = 0; i < GEMV_UNROLL; i++) {
            held[i] = line(i);
        }
    }
#pragma unroll GEMV_UNROLL
    for (u32 i = 0; i < GEMV_CHUNKS; i++) {
        uint4 x = GEMV_ALIGNED ? held[i % GEMV_UNROLL] : line(i);
        u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (u32 w = 0; w < 4; w++) {
            f32 low = low_half(words[w]), high = high_half(words[w]);
            squares += low * low + high * high;
        }
    }
#pragma unroll
    for (u32 half = 16; half > 0; half /= 2) {
        squares += shuffle_xor(squares, half);
    }
    f32 factor = 1.0f / sqrtf(squares / f32(p.depth) + p.eps);
#pragma unroll GEMV_UNROLL
    for (u32 i = 0; i < GEMV_CHUNKS; i++) {
        u32 k = (i * 32 + lane) * 8;
        if (k < p.whole) {
            uint4 scale = *(const uint4 *)(weight + k), x = GEMV_ALIGNED ? held[i % GEMV_UNROLL] : line(i);
            u32 words[4] = {x.x, x.y, x.z, x.w}, scales[4] = {scale.x, scale.y, scale.z, scale.w};
#pragma unroll
            for (u32 w = 0; w < 4; w++) {
                words[w] = narrow2<element>(low_half(words[w]) * factor * low_half(scales[w]), high_half(words[w]) * factor * high_half(scales[w]));
            }
            *(uint4 *)(to + k) = {words[0], words[1], words[2], words[3]};
        }
    }
}

__device__ __forceinline__ void gemv_few(const GemvParams &p, char *shared) {
    __shared__ f32 sums[GEMV_WARPS][GEMV_WEIGHTS][GEMV_TOKENS * GEMV_OUTPUTS];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, high = lane / 4, quad = lane % 4;
    u32 first = blockIdx.x * GEMV_OUTPUTS;
    // The output that a thread finishes.
    u32 token = threadIdx.x / GEMV_OUTPUTS, output = first + threadIdx.x % GEMV_OUTPUTS;
    bool ends = token < p.rows && output < p.columns;
    grid_launch_next();
    if (!p.early) {
        grid_wait();
    }
    auto weights = [&](u32 weight, u32 c) {
        const element *row = p.w + (u64(weight) * p.columns + first + high) * p.w_stride;
        return eight_from(row, c * GEMV_STEP + warp * GEMV_CHUNK + quad * 8, p.depth, first + high < p.columns);
    };
    uint4 held[GEMV_WEIGHTS][GEMV_UNROLL];
    if (GEMV_ALIGNED) {
#pragma unroll
        for (u32 weight = 0; weight < GEMV_WEIGHTS; weight++) {
#pragma unroll
            for (u32 c = 0; c < GEMV_UNROLL; c++) {
                held[weight][c] = weights(weight, c);
            }
        }
    }
    f32 bias = ends && p.bias ? widen(p.bias[output]) : 0.0f;
    // In shared memory: the norm's weight, then the rows of X, whole chunks of each.
    element *scales = (element *)shared, *normed = scales + p.whole;
    if (GEMV_NORMED) {
        for (u32 k = threadIdx.x * 8; k < p.whole; k += GEMV_THREADS * 8) {
            *(uint4 *)(scales + k) = eight_from(p.norm, k, p.depth, true);
        }
        __syncthreads();
    }
    if (p.early) {
        grid_wait();
    }
    f32 residual = ends && p.residual ? widen(p.residual[u64(token) * p.columns + output]) : 0.0f;
    // Rows that there are not are another's, whose sums nobody asks for.
    u32 upper = high < p.rows ? high : p.rows - 1, lower = high + 8 < p.rows ? high + 8 : p.rows - 1;
    if (GEMV_NORMED) {
        for (u32 row = warp; row < p.rows; row += GEMV_WARPS) {
            norm_row(p, p.x + row * p.x_stride, scales, normed + row * p.stride);
        }
        __syncthreads();
    }
    auto eight_of = [&](u32 row, u32 k, bool there) {
        if (GEMV_NORMED) {
            return there && k < p.whole ? *(const uint4 *)(normed + row * p.stride + k) : uint4{0, 0, 0, 0};
        }
        return eight_from(p.x + row * p.x_stride, k, p.depth, there);
    };
    // Two sums each, so that an instruction waits for the one before the last.
    f32 sum[GEMV_WEIGHTS][2][4] = {};
#pragma unroll GEMV_UNROLL
    for (u32 c = 0; c < GEMV_CHUNKS; c++) {
        u32 k = c * GEMV_STEP + warp * GEMV_CHUNK + quad * 8;
        uint4 a = eight_of(upper, k, true), b = eight_of(lower, k, p.rows > 8);
        u32 left[4] = {a.x, b.x, a.y, b.y}, right[4] = {a.z, b.z, a.w, b.w};
#pragma unroll
        for (u32 weight = 0; weight < GEMV_WEIGHTS; weight++) {
            uint4 w = GEMV_ALIGNED ? held[weight][c % GEMV_UNROLL] : weights(weight, c);
            u32 of_left[2] = {w.x, w.y}, of_right[2] = {w.z, w.w};
            mma_m16n8k16<element>(sum[weight][0], left, of_left);
            mma_m16n8k16<element>(sum[weight][1], right, of_right);
        }
    }
#pragma unroll
    for (u32 weight = 0; weight < GEMV_WEIGHTS; weight++) {
#pragma unroll
        for (u32 part = 0; part < 2; part++) {
            u32 row = part * 8 + high;
            if (row < p.rows) {
                float2 both = {sum[weight][0][part * 2] + sum[weight][1][part * 2], sum[weight][0][part * 2 + 1] + sum[weight][1][part * 2 + 1]};
                *(float2 *)&sums[warp][weight][row * GEMV_OUTPUTS + quad * 2] = both;
            }
        }
    }
    __syncthreads();
    if (ends) {
        f32 all[GEMV_WEIGHTS] = {};
#pragma unroll
        for (u32 weight = 0; weight < GEMV_WEIGHTS; weight++) {
#pragma unroll
            for (u32 from = 0; from < GEMV_WARPS; from++) {
                all[weight] += sums[from][weight][threadIdx.x];
            }
        }
        f32 value = activate(p.activation, all[0] + bias);
        if (GEMV_GATED) {
            value *= all[GEMV_WEIGHTS - 1];
        }
        p.y[u64(token) * p.columns + output] = narrow<element>(value + residual);
    }
}
