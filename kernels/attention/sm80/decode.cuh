// Few queries over a long cache: the keys are split over blocks, and the parts joined in the same launch.
//
// Each block takes an equal stretch of the line of all steps. Inside a block each warp has keys of its own, copied into a ring
// of its own, so that no barrier stands between a copy and its use. A stretch that ends inside a sequence leaves its part
// in device memory; the block that comes last to a sequence joins the parts in the order of the keys (flash decoding, Dao et
// al., 2023), so that the answer is bitwise the same from run to run.
#pragma once

#include "attention/partial.cuh"
#include "attention/decode_line.cuh"
#include "attention/decode_params.cuh"

constexpr int DECODE_ROWS = 16;                              // of a tile: heads that share keys, times queries
constexpr int DECODE_STEP = DECODE_WARPS * DECODE_KEYS;        // keys of a step of a block
constexpr int DECODE_THREADS = DECODE_WARPS * 32;
constexpr int STAGE = 2 * DECODE_KEYS * PITCH;               // elements of a warp's stage: K, then V
constexpr int ROW_TILES = DECODE_STAGES + 1;                 // items that the copies may be in, and the products
constexpr int PART = DECODE_ROWS * (HEAD_DIM + 2);           // numbers of a part: O, then maximum and sum of each row

static_assert((DECODE_WARPS * DECODE_STAGES * STAGE + ROW_TILES * DECODE_ROWS * PITCH) * 2 == DECODE_SHARED_BYTES, "what the host sets aside");
static_assert(STAGE * 2 >= DECODE_ROWS * PITCH * 4 && DECODE_KEYS % 16 == 0, "a stage holds a warp's rows of O, and whole products");

__device__ __forceinline__ Line line_of(const AttentionParams &p) { return {u32(p.kv_heads), DECODE_STEP, 4}; }

// Where the keys of an item lie.
struct Source {
    const element *k, *v;
    const i32 *pages;
    Span span;
};

__device__ __forceinline__ Source source_of(const AttentionParams &p, const Item &item) {
    Sequence s = sequence_of(p, item.batch);
    return {s.k + item.group * p.k_head, s.v + item.group * p.v_head, s.pages, span_of(p, s)};
}

// A whole row, that starts on a multiple of 16 bytes and has no end to look for.
__device__ __forceinline__ void copy_row(Spot to, const element *from) {
    i32 side = threadIdx.x % SIDE * 8;
#pragma unroll
    for (int c = 0; c < CHUNKS; c += SIDE) {
        if (CHUNKS % SIDE == 0 || c * 8 + side < HEAD_DIM) {
            cp_async_16_stream((to + side + c * 8).address, from + side + c * 8);
        }
    }
}

// A warp's keys of a step, K and V; zeros past the last key. Nothing where the warp has no key.
template <bool ALIGNED> __device__ __forceinline__ void load_stage(const AttentionParams &p, const Source &source, u32 step, Spot stage) {
    constexpr int AT_ONCE = 32 / SIDE;
    i32 row = threadIdx.x % 32 / SIDE, first = source.span.first + i32(step * DECODE_STEP + threadIdx.x / 32 * DECODE_KEYS);
    if (first >= source.span.end) {
        return;
    }
    constexpr int UNROLL = ALIGNED ? DECODE_KEYS / AT_ONCE : 1;
    bool whole = ALIGNED && first + DECODE_KEYS <= source.span.end && p.head_dim == HEAD_DIM;
#pragma unroll UNROLL
    for (int r = 0; r < DECODE_KEYS; r += AT_ONCE) {
        i32 key = first + r + row;
        bool inside = key < source.span.end;
        u64 page = 0;
        u32 token = inside ? key : 0;
        if (p.form == PAGED) {
            u32 length = u32(p.page), place = token / length;
            page = u64(source.pages[place]);
            token -= place * length;
        }
        const element *k = source.k + token * p.k_token, *v = source.v + token * p.v_token;
        if (p.form == PAGED) {
            k += page * p.k_batch;
            v += page * p.v_batch;
        }
        Spot to = stage + (r + row) * PITCH;
        if (whole) {
            copy_row(to, k);
            copy_row(to + DECODE_KEYS * PITCH, v);
        } else {
            load_row<ALIGNED>(p, k, source.k, inside, to);
            load_row<ALIGNED>(p, v, source.v, inside, to + DECODE_KEYS * PITCH);
        }
    }
}

// The rows of Q of an item, a part by each warp. What lies past the last row of the tile stays as it is: no row depends on another.
template <bool ALIGNED> __device__ __forceinline__ void load_rows(const AttentionParams &p, const Sequence &s, u32 group, i32 first_row, Spot tile) {
    i32 rows = i32(s.q_len) * i32(p.pack);
#pragma unroll 1
    for (i32 row = threadIdx.x / SIDE; row < DECODE_ROWS && first_row + row < rows; row += DECODE_THREADS / SIDE) {
        u32 line = u32(first_row + row), query = line / p.pack, head = group * p.pack + line % p.pack;
        load_row<ALIGNED>(p, s.q + u64(query) * p.q_token + u64(head) * p.q_head, s.q, true, tile + row * PITCH);
    }
}

// A negative scale turns Q over, so that the factor of the softmax is positive; a scale of 0 clears Q.
__device__ __forceinline__ void turn_rows(f32 scale, element *tile) {
    for (i32 at = threadIdx.x; at < DECODE_ROWS * PITCH; at += DECODE_THREADS) {
        tile[at].bits = scale < 0.0f ? tile[at].bits ^ 0x8000 : 0;
    }
}

// Scores that a row does not see become -infinity.
__device__ __forceinline__ void mask_keys(const ShortMask &mask, i32 first_row, u32 pack, i32 first, f32 (&s)[1][DECODE_KEYS / 8][4]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        i32 query = i32(u32(first_row + r * 8 + i32(threadIdx.x % 32 / 4)) / pack);
        i32 low = mask.first(query) - first, high = mask.end(query) - first;
#pragma unroll
        for (int n = 0; n < DECODE_KEYS / 8; n++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                i32 key = n * 8 + i32(threadIdx.x % 4 * 2) + c;
                s[0][n][2 * r + c] = key >= low && key < high ? s[0][n][2 * r + c] : -infinity();
            }
        }
    }
}

// A block's own place in device memory for the part of an item: one that starts before the block's stretch, or with it, and one
// that starts in it.
__device__ __forceinline__ f32 *part_of(const DecodeParams &p, u32 line, u32 lines, u32 block, u32 each, const Item &item) {
    u32 second = item.start > block * each ? 1 : 0;
    return p.parts + (u64(block * lines + line) * 2 + second) * PART;
}

// The parts of one row and four columns, joined in the order of the keys.
__device__ __forceinline__ Partial join_parts(const DecodeParams &p, u32 line, u32 lines, u32 each, const Item &item, i32 row, i32 column) {
    u32 block = item.start / each, last = (item.start + item.steps - 1) / each;
    Partial sum = no_keys();
    while (block <= last) {
        // Several at a time, so that their loads are under way together.
        constexpr u32 TOGETHER_PARTS = 4;
        Partial some[TOGETHER_PARTS];
#pragma unroll
        for (u32 i = 0; i < TOGETHER_PARTS; i++) {
            some[i] = no_keys();
            if (block + i <= last) {
                const f32 *part = part_of(p, line, lines, block + i, each, item), *row_sums = part + DECODE_ROWS * HEAD_DIM + row * 2;
                some[i] = {row_sums[0], row_sums[1], *(const float4 *)(part + row * HEAD_DIM + column)};
            }
        }
#pragma unroll
        for (u32 i = 0; i < TOGETHER_PARTS; i++) {
            sum.join(some[i]);
        }
        block += TOGETHER_PARTS;
    }
    return sum;
}
