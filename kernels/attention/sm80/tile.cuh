// A tile of attention on the tensor cores of Ampere and later (mma.sync): which rows and keys a block takes, the general kernel's loop
// over them, and the output.
//
// Four warps; each holds 16 rows of the scores and of O in registers and walks over KEYS keys at a time. A row is a query and a head:
// heads that share keys may be rows of one tile (`pack` of them). K of the next step is copied while V is used, V while the scores are
// computed.
#pragma once

#include "attention/columns.cuh"
#include "attention/sm80/products.cuh"
#include "tile/attention_mask.cuh"

constexpr int TOGETHER = HEAD_DIM <= 128 ? 3 : 2;   // blocks that an SM has registers for

typedef MaskOf<i32> ShortMask;   // the host refuses longer sequences

__device__ __forceinline__ ShortMask mask_of(const AttentionParams &p, i32 q_len, i32 kv_len) {
    constexpr i64 FAR = 1 << 29;   // no sequence is longer
    return {kv_len - q_len, kv_len, i32(p.window < FAR ? p.window : FAR), p.causal != 0};
}

// The tile that a block works on.
struct Piece {
    Sequence s;   // of the head whose keys the rows see
    ShortMask mask;
    u32 batch, first_head;
    i32 first_row, rows;
};

template <int HIGH> __device__ __forceinline__ Piece piece_of(const AttentionParams &p, u32 work) {
    // In bands of heads: the last queries of causal sequences have the most to do, and come first in each band.
    Piece piece;
    u32 groups = u32(p.heads) / p.pack, all = u32(p.batch) * groups, first = work / (p.tiles * p.band) * p.band;
    u32 width = all - first < p.band ? all - first : p.band, inside = work - first * p.tiles, late = inside / width, group = first + inside % width;
    piece.batch = group / groups;
    piece.first_head = group % groups * p.pack;
    piece.first_row = i32(p.tiles - 1 - late) * ROWS<HIGH>;
    piece.s = sequence_of(p, piece.batch);
    u32 kv_head = piece.first_head / (u32(p.heads) / u32(p.kv_heads));
    piece.s.k = sum_of_terms(piece.s.k + kv_head * p.k_head);
    piece.s.v = sum_of_terms(piece.s.v + kv_head * p.v_head);
    piece.rows = i32(piece.s.q_len) * i32(p.pack);
    piece.mask = mask_of(p, i32(piece.s.q_len), i32(piece.s.kv_len));
    return piece;
}

// The same, worked out anew: in the rare steps with a mask and at the end. Registers are full in between.
template <int HIGH> __device__ __forceinline__ Piece piece_again(const AttentionParams &p) { return piece_of<HIGH>(p, u32(opaque(i32(blockIdx.x)))); }

// Scores that a row does not see become -infinity: of a warp's rows, which are those from `place` on of the `piece`.
template <int HIGH, int N>
__device__ __forceinline__ void mask_rows(const AttentionParams &p, const Piece &piece, u32 place, const Step &step, f32 (&s)[HIGH][N][4]) {
    const ShortMask &mask = piece.mask;
    u32 group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < HIGH; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            i32 query = i32(u32(piece.first_row + place + i * 16 + r * 8 + group) / p.pack);
            i32 first = mask.first(query), end = mask.end(query);
            if (step.kind == -2 && end > query + mask.offset + 1) {
                end = query + mask.offset + 1;
            }
            i32 low = first - step.first, high = (end < step.end ? end : step.end) - step.first;
            u64 bits = ~0ull;
            if (step.kind >= 0) {
                u32 words = p.block / 32;
                // A tile lies in one row of blocks.
                u32 line = u32(piece.first_row) % p.block + place + i * 16 + r * 8 + group;
                const u32 *row = block_bits(p) + (u64(step.kind) * p.block + line) * words + u32(step.first) % p.block / 32;
                bits = row[0] | u64(row[1]) << 32;
            }
#pragma unroll
            for (int n = 0; n < N; n++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    i32 key = n * 8 + i32(pair) + c;
                    bool seen = key >= low && key < high && (bits >> key & 1);
                    s[i][n][2 * r + c] = seen ? s[i][n][2 * r + c] : -infinity();
                }
            }
        }
    }
}

// The sums of a warp's rows, of four lanes each.
template <int HIGH> __device__ __forceinline__ void join_lanes(f32 (&total)[HIGH][2]) {
#pragma unroll
    for (int i = 0; i < HIGH; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            total[i][r] += shuffle_xor(total[i][r], 1);
            total[i][r] += shuffle_xor(total[i][r], 2);
        }
    }
}

// Leaves a warp's rows of O where its rows of Q were, from row `place` of the tile on, so that lanes can write 16 bytes each. `chunk`: where
// the n-th eight columns belong.
template <int HIGH, int COUNT, class Chunk>
__device__ __forceinline__ void leave_rows(const f32 (&total)[HIGH][2], const f32 (&o)[HIGH][COUNT][4], u32 place, element *tile, Chunk chunk) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < HIGH; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            f32 share = total[i][r] > 0.0f ? reciprocal_fast(total[i][r]) : 0.0f;
#pragma unroll
            for (int n = 0; n < COUNT; n++) {
                element *to = tile + Swizzled::place(place + i * 16 + r * 8 + lane / 4, chunk(n)) + lane % 4 * 2;
                *(u32 *)to = narrow2<element>(o[i][n][2 * r] * share, o[i][n][2 * r + 1] * share);
            }
        }
    }
}

// Writes the LSE of a warp's rows. `most`: in units of log 2.
template <int HIGH>
__device__ __forceinline__ void write_lse(const AttentionParams &p, const Piece &piece, u32 place, const f32 (&most)[HIGH][2],
                                          const f32 (&total)[HIGH][2]) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int at = 0; at < HIGH * 2; at++) {
        i32 line = piece.first_row + i32(place + at * 8 + lane / 4);
        if (p.lse && lane % 4 == 0 && line < piece.rows) {
            u32 query = u32(line) / p.pack, head = piece.first_head + u32(line) % p.pack;
            f32 sum = total[at / 2][at % 2], natural = 0.69314718056f * (most[at / 2][at % 2] + log2f(sum));
            p.lse[piece.s.lse + head * p.lse_head + query] = sum == 0.0f ? -infinity() : natural;
        }
    }
}

// Writes rows `place` to `end` of what was left, by one warp.
__device__ __forceinline__ void write_rows(const AttentionParams &p, const Piece &piece, u32 place, u32 end, const element *tile) {
    u32 lane = threadIdx.x % 32;
#pragma unroll 1
    for (u32 row = place + lane / SIDE; row < end && piece.first_row + i32(row) < piece.rows; row += 32 / SIDE) {
        u32 line = u32(piece.first_row) + row, query = line / p.pack, head = piece.first_head + line % p.pack;
        element *to = piece.s.o + u64(query) * p.o_token + u64(head) * p.o_head;
        bool aligned = u64(to) % 16 == 0;
#pragma unroll
        for (int c = 0; c < CHUNKS; c += SIDE) {
            u32 chunk = c + lane % SIDE;
            if (CHUNKS % SIDE == 0 || chunk < CHUNKS) {
                write_eight(to, *(const uint4 *)(tile + Swizzled::place(row, chunk)), i32(chunk * 8), p.head_dim, aligned);
            }
        }
    }
}

// The end of a warp that has whole rows.
template <int HIGH>
__device__ __forceinline__ void finish_rows(const AttentionParams &p, const f32 (&most)[HIGH][2], f32 (&total)[HIGH][2],
                                            const f32 (&o)[HIGH][TILES][4], element *tile) {
    Piece piece = piece_again<HIGH>(p);
    u32 place = u32(opaque(i32(threadIdx.x))) / 32 * HIGH * 16;
    join_lanes(total);
    __syncwarp();
    leave_rows(total, o, place, tile, [](int n) { return n; });
    write_lse(p, piece, place, most, total);
    __syncwarp();
    write_rows(p, piece, place, place + HIGH * 16, tile);
}

// A block's tile of any form. ALIGNED: every row of Q, K and V starts on a multiple of 16 bytes.
template <bool ALIGNED> __device__ __forceinline__ void attend(const AttentionParams &p, element *shared) {
    Spot q_tile = {shared, shared_address(shared)}, k_tile = q_tile + ROWS<1> * Swizzled::PITCH, v_tile = k_tile + KEYS * Swizzled::PITCH;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 q_at = (q_tile + Swizzled::place(warp * 16 + lane % 16, lane / 16)).address;
    u32 k_at = (k_tile + Swizzled::place(lane % 8 + lane / 16 * 8, lane / 8 % 2)).address;
    u32 v_at = (v_tile + Swizzled::place(lane % 16, lane / 16)).address;
    f32 factor = p.scale == 0.0f ? 1.0f : fabsf(p.scale) * 1.4426950409f;

    Piece piece = piece_of<1>(p, blockIdx.x);
    if (piece.first_row >= piece.rows) {
        return;
    }
    const element *k = piece.s.k, *v = piece.s.v;
    const i32 *pages = piece.s.pages;

    i32 last_row = piece.first_row + ROWS<1> < piece.rows ? piece.first_row + ROWS<1> - 1 : piece.rows - 1;
    i32 first_query = i32(u32(piece.first_row) / p.pack), last_query = i32(u32(last_row) / p.pack);
    Walk walk = {p, piece.mask.first(first_query), piece.mask.end(last_query)};
    // Keys that every row sees.
    i32 all_first = piece.mask.first(last_query), all_end = piece.mask.end(first_query);

    f32 most[1][2], total[1][2], o[1][TILES][4];
    most[0][0] = most[0][1] = -infinity();
    total[0][0] = total[0][1] = 0.0f;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        o[0][n][0] = o[0][n][1] = o[0][n][2] = o[0][n][3] = 0.0f;
    }

    Step step = walk.begin(piece.batch, piece.first_head, first_query);
    if (step.more()) {
        load_queries<ALIGNED, 1>(p, piece.s.q, piece.first_row, piece.rows, piece.first_head, q_tile);
        load_keys<ALIGNED>(p, pages, k, p.k_batch, p.k_token, step.first, step.end, k_tile);
        cp_async_commit();
        if (!(p.scale > 0.0f)) {
            cp_async_wait<0>();
            __syncthreads();
            turn_queries<1>(p.scale, q_tile.start);
        }
    }
    while (step.more()) {
        // K has come, and everyone is done with V.
        cp_async_wait<0>();
        __syncthreads();
        load_keys<ALIGNED>(p, pages, v, p.v_batch, p.v_token, step.first, step.end, v_tile);
        cp_async_commit();
        f32 scores[1][KEYS / 8][4];
        score<Swizzled>(q_at, k_at, scores);
        if (step.kind != -1 || step.first < all_first || step.first + KEYS > all_end || step.end < step.first + KEYS) {
            mask_rows(p, piece_again<1>(p), threadIdx.x / 32 * 16, step, scores);
        }
        // V has come, and everyone is done with K.
        cp_async_wait<0>();
        __syncthreads();
        step = walk.after(step);
        if (step.more()) {
            load_keys<ALIGNED>(p, pages, k, p.k_batch, p.k_token, step.first, step.end, k_tile);
        }
        cp_async_commit();
        softmax(factor, scores, most, total, o);
        weigh<Swizzled>(v_at, scores, o);
    }
    finish_rows(p, most, total, o, shared);
}
