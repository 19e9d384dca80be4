// A tile of attention without lists, of heads so long that a warp has no registers for 32 rows of O: two warps share 32 rows. Each takes the
// scores of half of a step's keys, and every second 16 columns of O; weights change hands in shared memory. So each fragment of K and V
// serves 32 rows: with 16 rows a warp, shared memory is what is waited for.
#pragma once

#include "attention/sm80/softmax.cuh"
#include "ptx/cluster.cuh"

// What the warps leave for each other: their weights, as each lane has them, and a number of each row.
constexpr int HANDED_BYTES = WARPS * (16 * KEYS * 2 + 32 * 4);

// Groups of products come one after the other, at least as many as there are pieces: some of these after every fourth group, since the
// compiler puts three idle instructions in front of each bunch of copies.
__device__ __forceinline__ void copy_between(KeyStream &keys, bool whole, int group) {
    constexpr int SHARE = (KeyStream::PIECES + HEAD_DIM / 16 - 1) / (HEAD_DIM / 16) * 4;
#pragma unroll
    for (int at = group * SHARE / 4; at < group * SHARE / 4 + SHARE; at++) {
        if (group % 4 == 0 && at < KeyStream::PIECES) {
            keys.piece(whole, at);
        }
    }
}

// A block's tile. Every row of Q, K and V starts on a multiple of 16 bytes.
__device__ __forceinline__ void attend_halves(const AttentionParams &p, element *shared) {
    constexpr int HALF = KEYS / 2, COUNT = TILES / 2, STEPS = HALF / 16, GROUPS = HEAD_DIM / 16;
    static_assert(HEAD_DIM <= 128 || HEAD_DIM % 32 == 0, "both warps have whole steps");
    Spot q_tile = {shared, shared_address(shared)}, k_tile = q_tile + ROWS<1> * Swizzled::PITCH, v_tile = k_tile + KEYS * Swizzled::PITCH;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = warp % 2, place = warp / 2 * 32;
    u32 q_at = fixed((q_tile + Swizzled::place(place + lane % 16, lane / 16)).address);
    u32 k_at = fixed((k_tile + Swizzled::place(half * HALF + lane % 8 + lane / 16 * 8, lane / 8 % 2)).address);
    u32 v_at = fixed((v_tile + Swizzled::place(lane % 16, half * 2 + lane / 16)).address);
    // Lanes leave their weights 16 bytes at a time, and every fourth lane the numbers of its four rows.
    uint4 *weights_at = (uint4 *)(v_tile + KEYS * Swizzled::PITCH).start + lane;
    float4 *rows_at = (float4 *)(v_tile + (KEYS * Swizzled::PITCH + WARPS * STEPS * 512)).start + lane / 4;
    uint4 *own_weights = weights_at + warp * STEPS * 64, *other_weights = weights_at + (warp ^ 1) * STEPS * 64;
    float4 *own_rows = rows_at + warp * 8, *other_rows = rows_at + (warp ^ 1) * 8;
    auto meet = [&] { named_barrier_sync(1 + warp / 2, 64); };

    Piece piece = piece_of<1>(p, blockIdx.x);
    if (piece.first_row >= piece.rows) {
        return;
    }
    Span span = span_of(p, piece, ROWS<1>);
    KeyStream k(piece.s.k + u64(span.first) * p.k_token, p.k_token, k_tile), v(piece.s.v + u64(span.first) * p.v_token, p.v_token, v_tile);
    // Up to here copies stand between products.
    i32 first = span.first, whole_end = p.head_dim == HEAD_DIM ? span.end : i32(0x80000000);
    Softmax rows(p.scale);
    f32 o[2][COUNT][4];
    clear(o);
    if (first < span.end) {
        load_queries<true, 1>(p, piece.s.q, piece.first_row, piece.rows, piece.first_head, q_tile);
        k.load(p, span.end - first);
        cp_async_commit();
        if (!(p.scale > 0.0f)) {
            cp_async_wait<0>();
            __syncthreads();
            turn_queries<1>(p.scale, q_tile.start);
        }
    }
#pragma unroll 1
    for (; first < span.end; first += KEYS) {
        // K has come, and everyone is done with V.
        cp_async_wait<0>();
        __syncthreads();
        bool whole = first + KEYS <= whole_end;
        if (!whole) {
            KeyStream(v).load(p, span.end - first);
        }
        f32 s[2][HALF / 8][4], peak[2][2];
        score<Swizzled>(q_at, k_at, s, [&](int group) { copy_between(v, whole, group); });
        cp_async_commit();
        if (!span.whole(first)) {
            mask_rows(p, piece_again<1>(p), place, {first + i32(half) * HALF, span.end, -1, 0}, s);
        }
        rows.peaks(s, peak);
        if (lane % 4 == 0) {
            *own_rows = {peak[0][0], peak[0][1], peak[1][0], peak[1][1]};
        }
        // V has come, everyone is done with K, and the other half's maxima are there.
        cp_async_wait<0>();
        __syncthreads();
        whole = first + 2 * KEYS <= whole_end;
        if (!whole && first + KEYS < span.end) {
            KeyStream(k).load(p, span.end - first - KEYS);
        }
        float4 other = *other_rows;
        peak[0][0] = fmaxf(peak[0][0], other.x), peak[0][1] = fmaxf(peak[0][1], other.y);
        peak[1][0] = fmaxf(peak[1][0], other.z), peak[1][1] = fmaxf(peak[1][1], other.w);
        rows.raise(peak, o);
        u32 weights[STEPS][2][4];
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            rows.weights(step, s, weights[step]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u32(&own)[4] = weights[step][i];
                own_weights[(step * 2 + i) * 32] = {own[0], own[1], own[2], own[3]};
            }
        }
#pragma unroll
        for (int step = 0; step < 2 * STEPS; step++) {
            u32 keys = (step < STEPS ? half : half ^ 1) * HALF + step % STEPS * 16;
            if (step == STEPS) {
                meet();
#pragma unroll
                for (int at = 0; at < STEPS * 2; at++) {
                    uint4 other = other_weights[at * 32];
                    u32(&to)[4] = weights[at / 2][at % 2];
                    to[0] = other.x, to[1] = other.y, to[2] = other.z, to[3] = other.w;
                }
            }
            weigh_keys<Swizzled, 2>(v_at + keys * Swizzled::PITCH * 2, weights[step % STEPS], o,
                                    [&](int group) { copy_between(k, whole, step * GROUPS / 2 + group); });
        }
        cp_async_commit();
    }
    join_lanes(rows.total);
    if (lane % 4 == 0) {
        *own_rows = {rows.total[0][0], rows.total[0][1], rows.total[1][0], rows.total[1][1]};
    }
    meet();
    float4 other = *other_rows;
    rows.total[0][0] += other.x, rows.total[0][1] += other.y, rows.total[1][0] += other.z, rows.total[1][1] += other.w;
    leave_rows(rows.total, o, place, shared, [half](int n) { return n / 2 * 4 + half * 2 + n % 2; });
    piece = piece_again<1>(p);
    if (half == 0) {
        write_lse(p, piece, place, rows.most, rows.total);
    }
    meet();
    write_rows(p, piece, place + half * 16, place + half * 16 + 16, shared);
}
