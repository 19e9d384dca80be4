// A tile of attention on the tensor cores of Ampere and later (mma.sync), after FlashAttention-2 (Dao, 2023, arXiv 2307.08691).
//
// Four warps; each holds 16·HIGH rows of the scores and of O in registers and walks over KEYS keys at a time. A row is a query
// and a head: heads that share keys may be rows of one tile (`pack` of them). K of the next step is copied while V is used, V
// while the scores are computed. Rows of shared memory are padded by 16 bytes: eight rows of ldmatrix then lie in different
// banks, whatever the head, and every address is a constant away from one register.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/mma.cuh"
#include "ptx/special.cuh"
#include "tile/attention_mask.cuh"
#include "attention/sequence.cuh"
#include "attention/walk.cuh"

constexpr int WARPS = 4;
constexpr int WARP_THREADS = WARPS * 32;
constexpr int KEYS = STEP_KEYS;
template <int HIGH> constexpr int ROWS = WARPS * 16 * HIGH;
template <int HIGH> constexpr int TILE_BYTES = (ROWS<HIGH> + 2 * KEYS) * (HEAD_DIM + 8) * 2;
constexpr int PITCH = HEAD_DIM + 8;
constexpr int CHUNKS = HEAD_DIM / 8;                                   // of 16 bytes in a row
constexpr int SIDE = CHUNKS % 8 == 0 || CHUNKS > 4 ? 8 : CHUNKS;       // threads side by side on a row
constexpr int TOGETHER = HEAD_DIM <= 128 ? 3 : 2;                      // blocks that a multiprocessor has registers for
constexpr int TILES = HEAD_DIM / 8;                                    // of 8 columns of O

// WIDE, from the host: times 16 rows that a warp has registers for in the wide kernel.
static_assert(HEAD_DIM % 16 == 0 && WARP_THREADS % SIDE == 0, "whole steps of the matrix product");
static_assert(TILE_BYTES<WIDE> == SHARED_BYTES, "what the host sets aside");

struct alignas(16) Words {
    u32 words[4];
};

// A place in shared memory, for instructions that want its address and for ordinary stores.
struct Spot {
    element *start;
    u32 address;

    __device__ __forceinline__ Spot operator+(u32 elements) const { return {start + elements, address + elements * 2}; }
};

// Eight elements from `from`, of which the last 8 - `count` become zero.
template <bool ALIGNED> __device__ __forceinline__ void load_chunk(Spot to, const element *from, i32 count) {
    if constexpr (ALIGNED) {
        cp_async_16(to.address, from, count <= 0 ? 0 : count >= 8 ? 16 : 2 * count);
    } else {
        Words chunk;
#pragma unroll
        for (int w = 0; w < 4; w++) {
            u32 low = 2 * w < count ? from[2 * w].bits : 0, high = 2 * w + 1 < count ? from[2 * w + 1].bits : 0;
            chunk.words[w] = low | high << 16;
        }
        *(Words *)to.start = chunk;
    }
}

constexpr int STEP_ROWS = WARP_THREADS / SIDE;   // rows that the threads copy at a time

// One row of a tile: what lies `inside` the tensor, and zeros past the head.
template <bool ALIGNED>
__device__ __forceinline__ void load_row(const AttentionParams &p, const element *from, const element *safe, bool inside, Spot to) {
    i32 chunk = threadIdx.x % SIDE;
#pragma unroll
    for (int c = 0; c < CHUNKS; c += SIDE, chunk += SIDE) {
        if (CHUNKS % SIDE == 0 || chunk < CHUNKS) {
            i32 count = inside ? p.head_dim - chunk * 8 : 0;
            load_chunk<ALIGNED>(to + chunk * 8, count > 0 ? from + chunk * 8 : safe, count);
        }
    }
}

// KEYS rows of K or V from key `first`; zeros from `end` on.
template <bool ALIGNED, bool LISTED>
__device__ __forceinline__ void load_keys(const AttentionParams &p, const i32 *pages, const element *base, u64 page_stride, u64 token_stride,
                                          i32 first, i32 end, Spot tile) {
    i32 row = threadIdx.x / SIDE;
    if (LISTED && p.form == PAGED) {
#pragma unroll 1
        for (i32 r = row; r < KEYS; r += STEP_ROWS) {
            bool inside = first + r < end;
            u32 key = inside ? first + r : 0, page = u32(p.page);
            const element *from = base + u64(pages[key / page]) * page_stride + u64(key % page) * token_stride;
            load_row<ALIGNED>(p, from, base, inside, tile + r * PITCH);
        }
        return;
    }
    const element *from = base + u64(first + row) * token_stride;
    if (ALIGNED && first + KEYS <= end && p.head_dim == HEAD_DIM) {
        // Nothing to look at: as few instructions as there can be.
        i32 side = threadIdx.x % SIDE * 8;
#pragma unroll
        for (i32 r = 0; r < KEYS; r += STEP_ROWS, from += STEP_ROWS * token_stride) {
            if (KEYS % STEP_ROWS == 0 || r + row < KEYS) {
#pragma unroll
                for (int c = 0; c < CHUNKS; c += SIDE) {
                    if (CHUNKS % SIDE == 0 || c * 8 + side < HEAD_DIM) {
                        cp_async_16((tile + (r + row) * PITCH + side + c * 8).address, from + side + c * 8);
                    }
                }
            }
        }
        return;
    }
#pragma unroll 1
    for (i32 r = 0; r < KEYS; r += STEP_ROWS) {
        if (KEYS % STEP_ROWS == 0 || r + row < KEYS) {
            load_row<ALIGNED>(p, from + u64(r) * token_stride, base, first + r + row < end, tile + (r + row) * PITCH);
        }
    }
}

// The rows of Q of this tile.
template <bool ALIGNED, int HIGH>
__device__ __forceinline__ void load_queries(const AttentionParams &p, const element *q, i32 first_row, i32 rows, u32 first_head, Spot tile) {
#pragma unroll 1
    for (i32 row = threadIdx.x / SIDE; row < ROWS<HIGH>; row += STEP_ROWS) {
        i32 line = first_row + row;
        u32 query = u32(line) / p.pack, head = first_head + u32(line) % p.pack;
        load_row<ALIGNED>(p, q + u64(query) * p.q_token + u64(head) * p.q_head, q, line < rows, tile + row * PITCH);
    }
}

// What stands after each group of products, of 16 columns of a head: nothing.
struct Nothing {
    __device__ __forceinline__ void operator()(int) const {}
};

// Scores of a warp's rows: S = Q·Kᵀ.
template <int HIGH, int N, class Between = Nothing>
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
            ldmatrix_x4(q[i], q_at + (i * 16 * PITCH + e) * 2);
        }
#pragma unroll
        for (int n = 0; n < N * 8; n += 16) {
            u32 k[4];
            ldmatrix_x4(k, k_at + (n * PITCH + e) * 2);
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

// O += P·V for 16 keys.
template <int HIGH, class Between = Nothing>
__device__ __forceinline__ void weigh_keys(u32 v_at, const u32 (&weights)[HIGH][4], f32 (&o)[HIGH][TILES][4], Between between = {}) {
#pragma unroll
    for (int e = 0; e < HEAD_DIM; e += 16) {
        u32 v[4];
        ldmatrix_x4_transposed(v, v_at + e * 2);
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
template <int HIGH, int N> __device__ __forceinline__ void weigh(u32 v_at, const f32 (&s)[HIGH][N][4], f32 (&o)[HIGH][TILES][4]) {
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
weigh_keys(v_at + j * PITCH * 2, weights, o);
    }
}

typedef MaskOf<i32> ShortMask;   // the host refuses longer sequences

__device__ __forceinline__ ShortMask mask_of(const AttentionParams &p, i32 q_len, i32 kv_len) {
    constexpr i64 FAR = 1 << 29;   // no sequence is longer
    return {kv_len - q_len, kv_len, i32(p.window < FAR ? p.window : FAR), p.causal != 0};
}

// The tile that a block works on.
struct Piece {
    Sequence s;
    ShortMask mask;
    u32 batch, first_head;
    i32 first_row, rows;
};

template <int HIGH> __device__ __forceinline__ Piece piece_of(const AttentionParams &p, u32 work) {
    Piece piece;
    u32 groups = u32(p.heads) / p.pack;
    piece.batch = work / p.tiles / groups;
    piece.first_head = work / p.tiles % groups * p.pack;
    // The last queries of a causal sequence have the most to do: they start first.
    piece.first_row = i32(p.tiles - 1 - work % p.tiles) * ROWS<HIGH>;
    piece.s = sequence_of(p, piece.batch);
    piece.rows = i32(piece.s.q_len) * i32(p.pack);
    piece.mask = mask_of(p, i32(piece.s.q_len), i32(piece.s.kv_len));
    return piece;
}

// The same, worked out anew: in the rare steps with a mask and at the end. Registers are full in between.
template <int HIGH> __device__ __forceinline__ Piece piece_again(const AttentionParams &p) { return piece_of<HIGH>(p, u32(opaque(i32(blockIdx.x)))); }

// Scores that a row does not see become -infinity.
template <int HIGH, bool LISTED>
__device__ __forceinline__ void hide(const AttentionParams &p, const Step &step, f32 (&s)[HIGH][KEYS / 8][4]) {
    Piece piece = piece_again<HIGH>(p);
    const ShortMask &mask = piece.mask;
    u32 warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < HIGH; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            i32 query = i32(u32(piece.first_row + (warp * HIGH + i) * 16 + r * 8 + group) / p.pack);
            i32 first = mask.first(query), end = mask.end(query);
            if (LISTED && step.kind == -2 && end > query + mask.offset + 1) {
                end = query + mask.offset + 1;
            }
            i32 low = first - step.first, high = (end < step.end ? end : step.end) - step.first;
            u64 bits = ~0ull;
            if (LISTED && step.kind >= 0) {
                u32 words = p.block / 32;
                const u32 *row = block_bits(p) + (u64(step.kind) * p.block + u32(query) % p.block) * words + u32(step.first) % p.block / 32;
                bits = row[0] | u64(row[1]) << 32;
            }
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
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

// One step of the online softmax: scores become weights, what was summed so far shrinks. Maxima are in units of log 2.
template <int HIGH, int N>
__device__ __forceinline__ void soften(f32 factor, f32 (&s)[HIGH][N][4], f32 (&most)[HIGH][2], f32 (&total)[HIGH][2], f32 (&o)[HIGH][TILES][4]) {
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
            f32 shrink = exp2_fast(most[i][r] - base);
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
            total[i][r] = total[i][r] * shrink + sum;
            // Maxima soon stay as they are; a product with 1 changes nothing.
            if (HIGH == 1 || any_lane(shrink != 1.0f)) {
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    o[i][n][2 * r] *= shrink;
                    o[i][n][2 * r + 1] *= shrink;
                }
            }
        }
    }
}

// A negative scale turns Q over, so that the factor of the softmax is positive; a scale of 0 clears Q.
template <int HIGH> __device__ __forceinline__ void turn_queries(f32 scale, element *tile) {
    for (i32 at = threadIdx.x; at < ROWS<HIGH> * HEAD_DIM; at += WARP_THREADS) {
        u16 &bits = tile[at / HEAD_DIM * PITCH + at % HEAD_DIM].bits;
        bits = scale < 0.0f ? bits ^ 0x8000 : 0;
    }
}

// Writes a warp's rows of O and of the LSE.
template <int HIGH> __device__ __forceinline__ void write_rows(const AttentionParams &p, const f32 (&most)[HIGH][2], const f32 (&total)[HIGH][2],
                                           const f32 (&o)[HIGH][TILES][4]) {
    Piece piece = piece_again<HIGH>(p);
    u32 warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < HIGH; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            f32 sum = total[i][r];
            sum += shuffle_xor(sum, 1);
            sum += shuffle_xor(sum, 2);
            i32 line = piece.first_row + i32((warp * HIGH + i) * 16 + r * 8 + group);
            if (line >= piece.rows) {
                continue;
            }
            u32 query = u32(line) / p.pack, head = piece.first_head + u32(line) % p.pack;
            f32 share = sum > 0.0f ? 1.0f / sum : 0.0f;
            element *to = piece.s.o + u64(query) * p.o_token + u64(head) * p.o_head;
            bool whole = (u64(to) & 3) == 0;
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                i32 column = n * 8 + i32(pair);
                u32 both = narrow2<element>(o[i][n][2 * r] * share, o[i][n][2 * r + 1] * share);
                if (whole && column + 1 < p.head_dim) {
                    *(u32 *)(to + column) = both;
                } else {
                    if (column < p.head_dim) {
                        to[column].bits = u16(both);
                    }
                    if (column + 1 < p.head_dim) {
                        to[column + 1].bits = u16(both >> 16);
                    }
                }
            }
            if (p.lse && pair == 0) {
                f32 natural = 0.69314718056f * (most[i][r] + log2f(sum));
                p.lse[piece.s.lse + head * p.lse_head + query] = sum > 0.0f ? natural : -infinity();
            }
        }
    }
}

// A block's tile. LISTED: block-sparse and paged too.
template <bool ALIGNED, bool LISTED, int HIGH> __device__ __forceinline__ void attend(const AttentionParams &p, element *shared) {
    Spot q_tile = {shared, shared_address(shared)}, k_tile = q_tile + ROWS<HIGH> * PITCH, v_tile = k_tile + KEYS * PITCH;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 q_at = (q_tile + (warp * 16 * HIGH + lane % 16) * PITCH + lane / 16 * 8).address;
    u32 k_at = (k_tile + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8).address;
    u32 v_at = (v_tile + lane % 16 * PITCH + lane / 16 * 8).address;
    f32 factor = p.scale == 0.0f ? 1.0f : fabsf(p.scale) * 1.4426950409f;

    Piece piece = piece_of<HIGH>(p, blockIdx.x);
    if (piece.first_row >= piece.rows) {
        return;
    }
    u32 kv_head = piece.first_head / (u32(p.heads) / u32(p.kv_heads));
    const element *k = piece.s.k + kv_head * p.k_head, *v = piece.s.v + kv_head * p.v_head;
    const i32 *pages = piece.s.pages;

    i32 last_row = piece.first_row + ROWS<HIGH> < piece.rows ? piece.first_row + ROWS<HIGH> - 1 : piece.rows - 1;
    i32 first_query = i32(u32(piece.first_row) / p.pack), last_query = i32(u32(last_row) / p.pack);
    Walk<LISTED> walk = {p, piece.mask.first(first_query), piece.mask.end(last_query)};
    // Keys that every row sees.
    i32 all_first = piece.mask.first(last_query), all_end = piece.mask.end(first_query);

    f32 most[HIGH][2], total[HIGH][2], o[HIGH][TILES][4];
#pragma unroll
    for (int i = 0; i < HIGH; i++) {
        most[i][0] = most[i][1] = -infinity();
        total[i][0] = total[i][1] = 0.0f;
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            o[i][n][0] = o[i][n][1] = o[i][n][2] = o[i][n][3] = 0.0f;
        }
    }

    Step step = walk.begin(piece.batch, piece.first_head, first_query);
    if (step.more()) {
        load_queries<ALIGNED, HIGH>(p, piece.s.q, piece.first_row, piece.rows, piece.first_head, q_tile);
        load_keys<ALIGNED, LISTED>(p, pages, k, p.k_batch, p.k_token, step.first, step.end, k_tile);
        cp_async_commit();
        if (!(p.scale > 0.0f)) {
            cp_async_wait<0>();
            __syncthreads();
            turn_queries<HIGH>(p.scale, q_tile.start);
        }
    }
    while (step.more()) {
        // K has come, and everyone is done with V.
        cp_async_wait<0>();
        __syncthreads();
        load_keys<ALIGNED, LISTED>(p, pages, v, p.v_batch, p.v_token, step.first, step.end, v_tile);
        cp_async_commit();
        f32 scores[HIGH][KEYS / 8][4];
        score(q_at, k_at, scores);
        if ((LISTED && step.kind != -1) || step.first < all_first || step.first + KEYS > all_end || step.end < step.first + KEYS) {
            hide<HIGH, LISTED>(p, step, scores);
        }
        // V has come, and everyone is done with K.
        cp_async_wait<0>();
        __syncthreads();
        step = walk.after(step);
        if (step.more()) {
            load_keys<ALIGNED, LISTED>(p, pages, k, p.k_batch, p.k_token, step.first, step.end, k_tile);
        }
        cp_async_commit();
        soften(factor, scores, most, total, o);
        weigh(v_at, scores, o);
    }
    write_rows<HIGH>(p, most, total, o);
}
