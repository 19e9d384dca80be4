// A tile of attention without lists and with many queries: 32 rows a warp, where its registers hold them.
//
// Two warps share the tensor cores of a part of a multiprocessor: what one of them does between its products has to be short, or
// neither uses them (measured: docs/kernels-attention.md). So maxima are found for all rows side by side, sums shrink in few steps, and exponentials are taken 16 keys at a
// time between the products with V. With 16 rows a warp there are registers left, and copies stand between products too.
#pragma once

#include "attention/sm80.cuh"

constexpr int GROUPS = HEAD_DIM / 16;   // of products: for the scores, and for each 16 keys of O

// The copy of KEYS rows of K or V, a thread's part of it in pieces of 16 bytes.
struct RowCopy {
    static constexpr int ACROSS = (CHUNKS + SIDE - 1) / SIDE, PIECES = KEYS / STEP_ROWS * ACROSS;

    bool whole;   // else nothing is copied
    u32 to;
    const element *from;
    u64 token_stride;

    __device__ __forceinline__ void piece(int at) {
        int row = at / ACROSS * STEP_ROWS, column = at % ACROSS * SIDE * 8;
        if (at < PIECES && (CHUNKS % SIDE == 0 || column + i32(threadIdx.x) % SIDE * 8 < HEAD_DIM)) {
            cp_async_16_where(whole, to + (row * PITCH + column) * 2, from + column);
        }
        if (at < PIECES && at % ACROSS == ACROSS - 1) {
            from += STEP_ROWS * token_stride;
        }
    }
};

// The online softmax of a warp's rows.
template <int HIGH> struct Softmax {
    static constexpr int N = KEYS / 8, PAIRS = HIGH * 4;   // tiles of a step's scores, and pairs of weights of 16 keys in a lane
    // Sums shrink only once a maximum has risen by a factor of 2^8: weights of up to that are as exact, and far from any limit.
    static constexpr f32 RISE = 8.0f, LOWEST = -3.402823466e38f;

    f32 factor;
    f32 most[HIGH][2], total[HIGH][2];   // in units of log 2; finite, so that a row that has seen nothing has weights of 2^-infinity

    __device__ __forceinline__ explicit Softmax(f32 factor) : factor(factor) {
#pragma unroll
        for (int i = 0; i < HIGH; i++) {
            most[i][0] = most[i][1] = LOWEST;
            total[i][0] = total[i][1] = 0.0f;
        }
    }

    // The maxima of one step: all rows side by side, and one branch for them.
    __device__ __forceinline__ void raise(const f32 (&s)[HIGH][N][4], f32 (&o)[HIGH][TILES][4]) {
        f32 above[HIGH][2];
#pragma unroll
        for (int i = 0; i < HIGH; i++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                above[i][r] = -infinity();
#pragma unroll
                for (int n = 0; n < N; n++) {
                    above[i][r] = fmaxf(above[i][r], fmaxf(s[i][n][2 * r], s[i][n][2 * r + 1]));
                }
            }
        }
        bool rises = false;
#pragma unroll
        for (int i = 0; i < HIGH; i++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                f32 peak = fmaxf(above[i][r], shuffle_xor(above[i][r], 1));
                peak = fmaxf(peak, shuffle_xor(peak, 2));
                above[i][r] = fmaxf(most[i][r], peak * factor);
                rises |= above[i][r] > most[i][r] + RISE;
            }
        }
        if (any_lane(rises)) {
#pragma unroll
            for (int i = 0; i < HIGH; i++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    f32 shrink = exp2_fast(most[i][r] - above[i][r]);
                    most[i][r] = above[i][r];
                    total[i][r] *= shrink;
#pragma unroll
                    for (int n = 0; n < TILES; n++) {
                        o[i][n][2 * r] *= shrink;
                        o[i][n][2 * r + 1] *= shrink;
                    }
                }
            }
        }
    }

    // Pairs `from` to `end` of the weights of the `keys`-th 16 keys, rounded to the operands' type.
    __device__ __forceinline__ void weights(int keys, int from, int end, const f32 (&s)[HIGH][N][4], u32 (&weights)[HIGH][4]) {
#pragma unroll
        for (int pair = 0; pair < PAIRS; pair++) {
            if (pair >= from && pair < end) {
                int i = pair / 4, at = pair % 4, r = at % 2;
                const f32(&score)[4] = s[i][2 * keys + at / 2];
                f32 left = exp2_fast(fmaf(score[2 * r], factor, -most[i][r]));
                f32 right = exp2_fast(fmaf(score[2 * r + 1], factor, -most[i][r]));
                total[i][r] += left + right;
                weights[i][at] = narrow2<element>(left, right);
            }
        }
    }
};

// A block's tile. Every row of Q, K and V starts on a multiple of 16 bytes.
template <int HIGH> __device__ __forceinline__ void attend_wide(const AttentionParams &p, element *shared) {
    constexpr bool BETWEEN = HIGH == 1;   // copies, and exponentials one by one, stand between products
    typedef Softmax<HIGH> Rows;
    Spot q_tile = {shared, shared_address(shared)}, k_tile = q_tile + ROWS<HIGH> * PITCH, v_tile = k_tile + KEYS * PITCH;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 q_at = (q_tile + (warp * 16 * HIGH + lane % 16) * PITCH + lane / 16 * 8).address;
    u32 k_at = (k_tile + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8).address;
    u32 v_at = (v_tile + lane % 16 * PITCH + lane / 16 * 8).address;

    Piece piece = piece_of<HIGH>(p, blockIdx.x);
    if (piece.first_row >= piece.rows) {
        return;
    }
    u32 kv_head = piece.first_head / (u32(p.heads) / u32(p.kv_heads));
    const element *k = piece.s.k + kv_head * p.k_head, *v = piece.s.v + kv_head * p.v_head;

    i32 last_row = piece.first_row + ROWS<HIGH> < piece.rows ? piece.first_row + ROWS<HIGH> - 1 : piece.rows - 1;
    i32 first_query = i32(u32(piece.first_row) / p.pack), last_query = i32(u32(last_row) / p.pack);
    i32 first = piece.mask.first(first_query), end = piece.mask.end(last_query);
    // Keys that every row sees, and those up to which rows are copied piece by piece.
    i32 all_first = piece.mask.first(last_query), all_end = piece.mask.end(first_query);
    all_end = all_end < end ? all_end : end;
    // None where copies stand in front: the assembler has to know that, or spills, but with 112 elements spills if it does.
    constexpr i32 NONE = HEAD_DIM == 112 ? 0 : i32(0x80000000);
    i32 whole_end = BETWEEN && p.head_dim == HEAD_DIM ? end : NONE;
    u32 row = threadIdx.x / SIDE, column = threadIdx.x % SIDE * 8, own = (k_tile + row * PITCH + column).address;
    const element *v_from = v + u64(first + row) * p.v_token + column, *k_from = k + u64(first + KEYS + row) * p.k_token + column;

    Rows rows(p.scale == 0.0f ? 1.0f : fabsf(p.scale) * 1.4426950409f);
    f32 o[HIGH][TILES][4];
#pragma unroll
    for (int i = 0; i < HIGH; i++) {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            o[i][n][0] = o[i][n][1] = o[i][n][2] = o[i][n][3] = 0.0f;
        }
    }
    if (first < end) {
        load_queries<true, HIGH>(p, piece.s.q, piece.first_row, piece.rows, piece.first_head, q_tile);
        load_keys<true, false>(p, nullptr, k, p.k_batch, p.k_token, first, end, k_tile);
        cp_async_commit();
        if (!(p.scale > 0.0f)) {
            cp_async_wait<0>();
            __syncthreads();
            turn_queries<HIGH>(p.scale, q_tile.start);
        }
    }
    for (; first < end; first += KEYS) {
        // K has come, and everyone is done with V.
        cp_async_wait<0>();
        __syncthreads();
        RowCopy copy = {first + KEYS <= whole_end, own + KEYS * PITCH * 2, v_from, p.v_token};
        if (!copy.whole) {
            load_keys<true, false>(p, nullptr, v, p.v_batch, p.v_token, first, end, v_tile);
        }
        f32 s[HIGH][KEYS / 8][4];
        score(q_at, k_at, s, [&](int group) {
            constexpr int SHARE = (RowCopy::PIECES + GROUPS - 1) / GROUPS;
#pragma unroll
            for (int c = 0; BETWEEN && c < SHARE; c++) {
                copy.piece(group * SHARE + c);
            }
        });
        cp_async_commit();
        if constexpr (BETWEEN) {
            v_from = copy.from;
        }
        if (first < all_first || first + KEYS > all_end) {
            hide<HIGH, false>(p, {first, end, -1, 0}, s);
        }
        rows.raise(s, o);
        // V has come, and everyone is done with K.
        cp_async_wait<0>();
        __syncthreads();
        copy = {first + 2 * KEYS <= whole_end, own, k_from, p.k_token};
        if (!copy.whole && first + KEYS < end) {
            load_keys<true, false>(p, nullptr, k, p.k_batch, p.k_token, first + KEYS, end, k_tile);
        }
        u32 weights[2][HIGH][4];
        rows.weights(0, 0, Rows::PAIRS, s, weights[0]);
#pragma unroll
        for (int keys = 0; keys < KEYS / 16; keys++) {
            bool more = keys + 1 < KEYS / 16;
            weigh_keys(v_at + keys * 16 * PITCH * 2, weights[keys % 2], o, [&](int group) {
                if (BETWEEN && more) {
                    rows.weights(keys + 1, Rows::PAIRS * group / GROUPS, Rows::PAIRS * (group + 1) / GROUPS, s, weights[(keys + 1) % 2]);
                }
                if (BETWEEN) {
                    copy.piece(keys * GROUPS + group);
                }
            });
            if (!BETWEEN && more) {
                rows.weights(keys + 1, 0, Rows::PAIRS, s, weights[(keys + 1) % 2]);
            }
        }
        cp_async_commit();
        if constexpr (BETWEEN) {
            k_from = copy.from;
        }
    }
    write_rows<HIGH>(p, rows.most, rows.total, o);
}
