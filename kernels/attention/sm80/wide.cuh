// A tile of attention without lists and with many queries: 32 rows a warp, Q in shared memory. K of the next step is copied while V is used,
// V while the scores are computed.
#pragma once

#include "attention/sm80/softmax.cuh"

// A block's tile. Every row of Q, K and V starts on a multiple of 16 bytes.
__device__ __forceinline__ void attend_wide(const AttentionParams &p, element *shared) {
    Spot q_tile = {shared, shared_address(shared)}, k_tile = q_tile + ROWS<2> * Swizzled::PITCH, v_tile = k_tile + KEYS * Swizzled::PITCH;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 q_at = fixed((q_tile + Swizzled::place(warp * 32 + lane % 16, lane / 16)).address);
    u32 k_at = fixed((k_tile + Swizzled::place(lane % 8 + lane / 16 * 8, lane / 8 % 2)).address);
    u32 v_at = fixed((v_tile + Swizzled::place(lane % 16, lane / 16)).address);

    Piece piece = piece_of<2>(p, blockIdx.x);
    if (piece.first_row >= piece.rows) {
        return;
    }
    Span span = span_of(p, piece, ROWS<2>);
    KeyStream k(piece.s.k + u64(span.first) * p.k_token, p.k_token, k_tile), v(piece.s.v + u64(span.first) * p.v_token, p.v_token, v_tile);
    Softmax rows(p.scale);
    f32 o[2][TILES][4];
    clear(o);
    i32 first = span.first;
    if (first < span.end) {
        load_queries<true, 2>(p, piece.s.q, piece.first_row, piece.rows, piece.first_head, q_tile);
        k.load(p, span.end - first);
        cp_async_commit();
        if (!(p.scale > 0.0f)) {
            cp_async_wait<0>();
            __syncthreads();
            turn_queries<2>(p.scale, q_tile.start);
        }
    }
    for (; first < span.end; first += KEYS) {
        // K has come, and everyone is done with V.
        cp_async_wait<0>();
        __syncthreads();
        f32 s[2][KEYS / 8][4], peak[2][2];
        score<Swizzled>(q_at, k_at, s, [&](int group) {
            // Behind the first products, which would wait for the copies to be issued.
            if (group == 0) {
                v.load(p, span.end - first);
                cp_async_commit();
            }
        });
        if (!span.whole(first)) {
            mask_rows(p, piece_again<2>(p), threadIdx.x / 32 * 32, {first, span.end, -1, 0}, s);
        }
        rows.peaks(s, peak);
        rows.raise(peak, o);
        // V has come, and everyone is done with K.
        cp_async_wait<0>();
        __syncthreads();
        if (first + KEYS < span.end) {
            k.load(p, span.end - first - KEYS);
        }
        cp_async_commit();
#pragma unroll
        for (int keys = 0; keys < KEYS / 16; keys++) {
            u32 weights[2][4];
            rows.weights(keys, s, weights);
            weigh_keys<Swizzled>(v_at + keys * 16 * Swizzled::PITCH * 2, weights, o);
        }
    }
    finish_rows(p, rows.most, rows.total, o, shared);
}
