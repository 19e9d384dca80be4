// The online softmax of a warp's 32 rows, in kernels where little may stand between products.
//
// Two warps share the tensor cores of a part of an SM: what one of them does between its products has to be short, or
// neither uses them (measured: lab/attention-sm80.md). So maxima are found for all rows side by side, sums are rescaled in few steps, and
// exponentials are taken 16 keys at a time between the products with V.
#pragma once

#include "attention/sm80/tile.cuh"

// Whether all registers are taken. For the small chips of Ampere and Ada the assembler schedules otherwise, and spills without the loop.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ % 100 == 0
constexpr bool FULL = HEAD_DIM == 128;
#else
constexpr bool FULL = false;
#endif

struct Softmax {
    // Sums are rescaled only once a maximum has risen by a factor of 2^8: weights of up to that are as exact, and far from any limit.
    static constexpr f32 RISE = 8.0f, LOWEST = -3.402823466e38f;

    f32 factor;
    f32 most[2][2], total[2][2];   // in units of log 2; finite, so that a row that has seen nothing has weights of 2^-infinity

    __device__ __forceinline__ explicit Softmax(f32 scale) : factor(scale == 0.0f ? 1.0f : fabsf(scale) * 1.4426950409f) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            most[i][0] = most[i][1] = LOWEST;
            total[i][0] = total[i][1] = 0.0f;
        }
    }

    // The greatest score of each row.
    template <int N> static __device__ __forceinline__ void peaks(const f32 (&s)[2][N][4], f32 (&peak)[2][2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                peak[i][r] = -infinity();
#pragma unroll
                for (int n = 0; n < N; n++) {
                    peak[i][r] = fmaxf(peak[i][r], fmaxf(s[i][n][2 * r], s[i][n][2 * r + 1]));
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                peak[i][r] = fmaxf(peak[i][r], shuffle_xor(peak[i][r], 1));
                peak[i][r] = fmaxf(peak[i][r], shuffle_xor(peak[i][r], 2));
            }
        }
    }

    // Takes note of the greatest scores of one step: one branch for all rows, seldom taken.
    template <int COUNT> __device__ __forceinline__ void raise(const f32 (&peak)[2][2], f32 (&o)[2][COUNT][4]) {
        f32 above[2][2];
        bool rises = false;
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                above[i][r] = fmaxf(most[i][r], peak[i][r] * factor);
                rises |= above[i][r] > most[i][r] + RISE;
            }
        }
        // A loop, so that the assembler has to branch: else it issues all of this in every step, and none of it holds. Where registers are
        // full it branches by itself, and moves sums about for a loop.
        while (any_lane(rises)) {
            rises = false;
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    f32 rescale = exp2_fast(most[i][r] - above[i][r]);
                    most[i][r] = above[i][r];
                    total[i][r] *= rescale;
#pragma unroll
                    for (int n = 0; n < COUNT; n++) {
                        o[i][n][2 * r] *= rescale;
                        o[i][n][2 * r + 1] *= rescale;
                    }
                }
            }
            if (FULL) {
                break;
            }
        }
    }

    // The weights of the `keys`-th 16 keys, rounded to the operands' type.
    template <int N> __device__ __forceinline__ void weights(int keys, const f32 (&s)[2][N][4], u32 (&weights)[2][4]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int at = 0; at < 4; at++) {
                int r = at % 2;
                const f32(&score)[4] = s[i][2 * keys + at / 2];
                f32 left = exp2_fast(fmaf(score[2 * r], factor, -most[i][r]));
                f32 right = exp2_fast(fmaf(score[2 * r + 1], factor, -most[i][r]));
                total[i][r] += left + right;
                weights[i][at] = narrow2<element>(left, right);
            }
        }
    }
};

template <int COUNT> __device__ __forceinline__ void clear(f32 (&o)[2][COUNT][4]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            o[i][n][0] = o[i][n][1] = o[i][n][2] = o[i][n][3] = 0.0f;
        }
    }
}

// Keys that some row of a tile sees, and those that every row does.
struct Span {
    i32 first, end, all_first, all_end;

    __device__ __forceinline__ bool whole(i32 key) const { return key >= all_first && key + KEYS <= all_end; }
};

__device__ __forceinline__ Span span_of(const AttentionParams &p, const Piece &piece, i32 count) {
    i32 last_row = (piece.first_row + count < piece.rows ? piece.first_row + count : piece.rows) - 1;
    i32 first_query = i32(u32(piece.first_row) / p.pack), last_query = i32(u32(last_row) / p.pack);
    i32 end = piece.mask.end(last_query), all_end = piece.mask.end(first_query);
    return {piece.mask.first(first_query), end, piece.mask.first(last_query), all_end < end ? all_end : end};
}
