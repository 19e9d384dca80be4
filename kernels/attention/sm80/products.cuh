// What a warp of attention multiplies and sums: scores, weights and O of 16·HIGH rows in registers (mma.sync), after FlashAttention-2
// (Dao, 2023, arXiv 2307.08691).
#pragma once

#include "attention/sm80/copies.cuh"
#include "ptx/mma.cuh"
#include "ptx/special.cuh"

constexpr int TILES = HEAD_DIM / 8;   // of 8 columns of O

// What stands after each group of products, of 16 columns of a head: nothing.
struct Nothing {
    __device__ __forceinline__ void operator()(int) const {}
};

// Scores of a warp's rows: S = Q·Kᵀ.
template <class Layout = Padded, int HIGH, int N, class Between = Nothing>
__device__ __forceinline__ void score(u32 q_at, u32 k_at, f32 (&s)[HIGH][N][4], Between between = {}) {
#pragma unroll
    for (int i = 0; i < HIGH; i++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            s[i][n][0] = s[i][n][1] = s[i][n][2] = s[i][n][3] = 0.0f;
        }
    }
#pragma unroll
    for (int e = 0; e < HEAD_DIM; e += 16) {
        u32 q[HIGH][4];
#pragma unroll
        for (int i = 0; i < HIGH; i++) {
            ldmatrix_x4(q[i], Layout::moved(q_at, e) + i * 16 * Layout::PITCH * 2);
        }
#pragma unroll
        for (int n = 0; n < N * 8; n += 16) {
            u32 k[4];
            ldmatrix_x4(k, Layout::moved(k_at, e) + n * Layout::PITCH * 2);
            u32 low[2] = {k[0], k[1]}, high[2] = {k[2], k[3]};
#pragma unroll
            for (int i = 0; i < HIGH; i++) {
                mma_m16n8k16<element>(s[i][n / 8], q[i], low);
                mma_m16n8k16<element>(s[i][n / 8 + 1], q[i], high);
            }
        }
        between(e / 16);
    }
}

// O += P·V for 16 keys and every APART-th 16 columns.
template <class Layout = Padded, int APART = 1, int HIGH, int COUNT, class Between = Nothing>
__device__ __forceinline__ void weigh_keys(u32 v_at, const u32 (&weights)[HIGH][4], f32 (&o)[HIGH][COUNT][4], Between between = {}) {
#pragma unroll
    for (int e = 0; e < COUNT * 8; e += 16) {
        u32 v[4];
        ldmatrix_x4_transposed(v, Layout::moved(v_at, e * APART));
        u32 low[2] = {v[0], v[1]}, high[2] = {v[2], v[3]};
#pragma unroll
        for (int i = 0; i < HIGH; i++) {
            mma_m16n8k16<element>(o[i][e / 8], weights[i], low);
            mma_m16n8k16<element>(o[i][e / 8 + 1], weights[i], high);
        }
        between(e / 16);
    }
}

// O += P·V, P rounded to the operands' type.
template <class Layout = Padded, int HIGH, int N>
__device__ __forceinline__ void weigh(u32 v_at, const f32 (&s)[HIGH][N][4], f32 (&o)[HIGH][TILES][4]) {
#pragma unroll
    for (int j = 0; j < N * 8; j += 16) {
        u32 weights[HIGH][4];
#pragma unroll
        for (int i = 0; i < HIGH; i++) {
            const f32(&left)[4] = s[i][j / 8], (&right)[4] = s[i][j / 8 + 1];
            weights[i][0] = narrow2<element>(left[0], left[1]);
            weights[i][1] = narrow2<element>(left[2], left[3]);
            weights[i][2] = narrow2<element>(right[0], right[1]);
            weights[i][3] = narrow2<element>(right[2], right[3]);
        }
        weigh_keys<Layout>(v_at + j * Layout::PITCH * 2, weights, o);
    }
}

// One step of the online softmax: scores become weights, what was summed so far shrinks. Maxima are in units of log 2.
template <int HIGH, int N>
__device__ __forceinline__ void softmax(f32 factor, f32 (&s)[HIGH][N][4], f32 (&most)[HIGH][2], f32 (&total)[HIGH][2], f32 (&o)[HIGH][TILES][4]) {
#pragma unroll
    for (int i = 0; i < HIGH; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            f32 peak = -infinity();
#pragma unroll
            for (int n = 0; n < N; n++) {
                peak = fmaxf(peak, fmaxf(s[i][n][2 * r], s[i][n][2 * r + 1]));
            }
            peak = fmaxf(peak, shuffle_xor(peak, 1));
            peak = fmaxf(peak, shuffle_xor(peak, 2));
            f32 above = fmaxf(most[i][r], peak * factor);
            // A row that has seen nothing yet: its weights are 2^-infinity.
            f32 base = above == -infinity() ? 0.0f : above;
            f32 rescale = exp2_fast(most[i][r] - base);
            most[i][r] = above;
            f32 sum = 0.0f;
#pragma unroll
            for (int n = 0; n < N; n++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    f32 weight = exp2_fast(fmaf(s[i][n][2 * r + c], factor, -base));
                    s[i][n][2 * r + c] = weight;
                    sum += weight;
                }
            }
            total[i][r] = total[i][r] * rescale + sum;
            // Maxima soon stay as they are; a product with 1 changes nothing.
            if (HIGH == 1 || any_lane(rescale != 1.0f)) {
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    o[i][n][2 * r] *= rescale;
                    o[i][n][2 * r + 1] *= rescale;
                }
            }
        }
    }
}
