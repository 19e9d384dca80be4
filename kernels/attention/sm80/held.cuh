// A tile of attention without lists and with many queries, of heads so short that a warp's 32 rows of Q stay in registers. K and V of a step
// come together, in one of two stages: one barrier a step.
#pragma once

#include "attention/sm80/softmax.cuh"

// Scores of a warp's rows, of Q in registers.
template <int N> __device__ __forceinline__ void score_held(const u32 (&q)[2][HEAD_DIM / 16][4], u32 k_at, f32 (&s)[2][N][4]) {
    clear(s);
#pragma unroll
    for (int e = 0; e < HEAD_DIM; e += 16) {
#pragma unroll
        for (int n = 0; n < N * 8; n += 16) {
            u32 k[4];
            ldmatrix_x4(k, Swizzled::moved(k_at, e) + n * Swizzled::PITCH * 2);
            u32 low[2] = {k[0], k[1]}, high[2] = {k[2], k[3]};
#pragma unroll
            for (int i = 0; i < 2; i++) {
                mma_m16n8k16<element>(s[i][n / 8], q[i][e / 16], low);
                mma_m16n8k16<element>(s[i][n / 8 + 1], q[i][e / 16], high);
            }
        }
    }
}

// A block's tile. Every row of Q, K and V starts on a multiple of 16 bytes.
__device__ __forceinline__ void attend_held(const AttentionParams &p, element *shared) {
    constexpr u32 STAGE = 2 * KEYS * Swizzled::PITCH;
    static_assert(ROWS<2> * Swizzled::PITCH == STAGE, "Q comes by way of the second stage");
    Spot stages = {shared, shared_address(shared)}, q_tile = stages + STAGE;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 q_at = (q_tile + Swizzled::place(warp * 32 + lane % 16, lane / 16)).address;
    u32 k_at = fixed((stages + Swizzled::place(lane % 8 + lane / 16 * 8, lane / 8 % 2)).address);
    u32 v_at = fixed((stages + Swizzled::place(KEYS + lane % 16, lane / 16)).address);

    Piece piece = piece_of<2>(p, blockIdx.x);
    if (piece.first_row >= piece.rows) {
        return;
    }
    Span span = span_of(p, piece, ROWS<2>);
    KeyStream k(piece.s.k + u64(span.first) * p.k_token, p.k_token, stages), v(piece.s.v + u64(span.first) * p.v_token, p.v_token, stages);
    u32 to = k.to;
    auto load_step = [&](i32 first, u32 turn) {
        if (first < span.end) {
            k.to = to + turn * 2, v.to = k.to + KEYS * Swizzled::PITCH * 2;
            k.load(p, span.end - first);
            v.load(p, span.end - first);
        }
        cp_async_commit();
    };
    Softmax rows(p.scale);
    f32 o[2][TILES][4];
    clear(o);
    load_queries<true, 2>(p, piece.s.q, piece.first_row, piece.rows, piece.first_head, q_tile);
    cp_async_commit();
    load_step(span.first, 0);
    cp_async_wait<1>();
    __syncthreads();
    if (!(p.scale > 0.0f)) {
        turn_queries<2>(p.scale, q_tile.start);
        __syncthreads();
    }
    u32 q[2][HEAD_DIM / 16][4], turn = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int e = 0; e < HEAD_DIM; e += 16) {
            ldmatrix_x4(q[i][e / 16], Swizzled::moved(q_at, e) + i * 16 * Swizzled::PITCH * 2);
        }
    }
#pragma unroll 1
    for (i32 first = span.first; first < span.end; first += KEYS, turn ^= STAGE) {
        // This step's keys have come, and everyone is done with the other stage.
        cp_async_wait<0>();
        __syncthreads();
        load_step(first + KEYS, turn ^ STAGE);
        f32 s[2][KEYS / 8][4], peak[2][2];
        score_held(q, k_at + turn * 2, s);
        if (!span.whole(first)) {
            mask_rows(p, piece_again<2>(p), threadIdx.x / 32 * 32, {first, span.end, -1, 0}, s);
        }
        rows.peaks(s, peak);
        rows.raise(peak, o);
#pragma unroll
        for (int keys = 0; keys < KEYS / 16; keys++) {
            u32 weights[2][4];
            rows.weights(keys, s, weights);
            weigh_keys<Swizzled>(v_at + (turn + keys * 16 * Swizzled::PITCH) * 2, weights, o);
        }
    }
    __syncthreads();
    finish_rows(p, rows.most, rows.total, o, shared);
}
