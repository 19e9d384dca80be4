// Tiles of attention in shared memory, and the copies of Q, K and V there, by cp.async where rows start on multiples of 16 bytes.
#pragma once

#include "ptx/copy.cuh"
#include "attention/sequence.cuh"
#include "attention/walk.cuh"

constexpr int WARPS = 4;
constexpr int WARP_THREADS = WARPS * 32;
constexpr int KEYS = STEP_KEYS;
template <int HIGH> constexpr int ROWS = WARPS * 16 * HIGH;   // of a block whose warps hold HIGH times 16
constexpr int CHUNKS = HEAD_DIM / 8;                               // of 16 bytes in a row
constexpr int SIDE = CHUNKS % 8 == 0 || CHUNKS > 4 ? 8 : CHUNKS;   // threads side by side on a row
constexpr int STEP_ROWS = WARP_THREADS / SIDE;                     // rows that the threads copy at a time

static_assert(HEAD_DIM % 16 == 0 && WARP_THREADS % SIDE == 0 && KEYS % STEP_ROWS == 0, "whole steps of the matrix product");

// A tile's rows in shared memory, padded by 16 bytes, so that eight rows of ldmatrix lie in different banks: every address is a constant away
// from one register. A place is in elements, of a piece of 16 bytes; an address of ldmatrix moves by `e` columns, a multiple of 16.
struct Padded {
    static constexpr int PITCH = HEAD_DIM + 8;

    static __device__ __forceinline__ u32 place(u32 row, u32 chunk) { return row * PITCH + chunk * 8; }
    static __device__ __forceinline__ u32 moved(u32 address, int e) { return address + e * 2; }
};

// The same in whole 128 bytes, in which pieces of 16 bytes change places with the row: cp.async writes them at once, where it takes 2.6 times
// as long to padded rows. A tile starts on a multiple of 128 bytes.
struct Swizzled {
    static constexpr int PITCH = (HEAD_DIM + 63) / 64 * 64;

    static __device__ __forceinline__ u32 place(u32 row, u32 chunk) { return row * PITCH + (chunk ^ row % 8) * 8; }
    static __device__ __forceinline__ u32 moved(u32 address, int e) { return (address ^ e % 64 * 2) + e / 64 * 128; }
};

constexpr int PITCH = Padded::PITCH;

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

// Row `row` of a tile: what lies `inside` the tensor, and zeros past the head.
template <bool ALIGNED, class Layout = Padded>
__device__ __forceinline__ void load_row(const AttentionParams &p, const element *from, const element *safe, bool inside, Spot tile, i32 row = 0) {
    i32 chunk = threadIdx.x % SIDE;
#pragma unroll
    for (int c = 0; c < CHUNKS; c += SIDE, chunk += SIDE) {
        if (CHUNKS % SIDE == 0 || chunk < CHUNKS) {
            i32 count = inside ? p.head_dim - chunk * 8 : 0;
            load_chunk<ALIGNED>(tile + Layout::place(row, chunk), count > 0 ? from + chunk * 8 : safe, count);
        }
    }
}

// `pointer`, of which the compiler no longer knows the terms: it would hold each of them in registers.
__device__ __forceinline__ const element *sum_of_terms(const element *pointer) {
    asm("" : "+l"(pointer));
    return pointer;
}

// An address that stays in a register, where the compiler would work it out again in every step.
__device__ __forceinline__ u32 fixed(u32 address) { return u32(opaque(i32(address))); }

// The copies of a thread, of one step's K or V after the other, where rows start on multiples of 16 bytes and lie a stride apart: where it
// stands in the tensor, and in shared memory. Both stay in registers: to work them out takes longer than the copies.
struct KeyStream {
    static constexpr int ACROSS = (CHUNKS + SIDE - 1) / SIDE, PIECES = KEYS / STEP_ROWS * ACROSS;   // of 16 bytes, side by side and in all

    const element *from;
    u32 to;
    u64 token_stride;

    __device__ __forceinline__ KeyStream(const element *first_key, u64 token_stride, Spot tile) : token_stride(token_stride) {
        u32 row = threadIdx.x / SIDE, chunk = threadIdx.x % SIDE;
        from = sum_of_terms(first_key + row * token_stride + chunk * 8);
        to = fixed((tile + Swizzled::place(row, chunk)).address);
    }

    // Piece `at` of KEYS whole rows, if they are to be copied: to stand between other instructions. All pieces are passed in their order.
    __device__ __forceinline__ void piece(bool on, int at) {
        int column = at % ACROSS * SIDE * 8;
        if (CHUNKS % SIDE == 0 || column + i32(threadIdx.x) % SIDE * 8 < HEAD_DIM) {
            cp_async_16_where(on, to + (at / ACROSS * STEP_ROWS * Swizzled::PITCH + column) * 2, from + column);
        }
        if (at % ACROSS == ACROSS - 1) {
            from += STEP_ROWS * token_stride;
        }
    }

    // KEYS rows, of which there are `count`: the others become zeros.
    __device__ __forceinline__ void load(const AttentionParams &p, i32 count) {
        if (count >= KEYS && p.head_dim == HEAD_DIM) {
#pragma unroll
            for (int at = 0; at < PIECES; at++) {
                piece(true, at);
            }
            return;
        }
        i32 row = threadIdx.x / SIDE, column = threadIdx.x % SIDE * 8;
#pragma unroll 1
        for (i32 r = 0; r < KEYS; r += STEP_ROWS, from += STEP_ROWS * token_stride) {
#pragma unroll
            for (int c = 0; c < CHUNKS * 8; c += SIDE * 8) {
                i32 there = r + row < count ? p.head_dim - column - c : 0;
                if (CHUNKS % SIDE == 0 || column + c < HEAD_DIM) {
                    cp_async_16(to + (r * Swizzled::PITCH + c) * 2, there > 0 ? from + c : p.q, there <= 0 ? 0 : there >= 8 ? 16 : 2 * there);
                }
            }
        }
    }
};

// KEYS rows of K or V from key `first`, wherever they lie; zeros from `end` on. `pages`: of a sequence in pages, else null.
template <bool ALIGNED>
__device__ __forceinline__ void load_keys(const AttentionParams &p, const i32 *pages, const element *base, u64 page_stride, u64 token_stride,
                                          i32 first, i32 end, Spot tile) {
    i32 row = threadIdx.x / SIDE;
    if (pages) {
#pragma unroll 1
        for (i32 r = row; r < KEYS; r += STEP_ROWS) {
            bool inside = first + r < end;
            u32 key = inside ? first + r : 0, page = u32(p.page);
            const element *from = base + u64(pages[key / page]) * page_stride + u64(key % page) * token_stride;
            load_row<ALIGNED, Swizzled>(p, from, base, inside, tile, r);
        }
        return;
    }
    const element *from = base + u64(first) * token_stride;
    if (ALIGNED) {
        KeyStream(from, token_stride, tile).load(p, end - first);
        return;
    }
#pragma unroll 1
    for (i32 r = row; r < KEYS; r += STEP_ROWS) {
        load_row<ALIGNED, Swizzled>(p, from + u64(r) * token_stride, base, first + r < end, tile, r);
    }
}

// The rows of Q of this tile.
template <bool ALIGNED, int HIGH>
__device__ __forceinline__ void load_queries(const AttentionParams &p, const element *q, i32 first_row, i32 rows, u32 first_head, Spot tile) {
#pragma unroll 1
    for (i32 row = threadIdx.x / SIDE; row < ROWS<HIGH>; row += STEP_ROWS) {
        i32 line = first_row + row;
        u32 query = u32(line) / p.pack, head = first_head + u32(line) % p.pack;
        load_row<ALIGNED, Swizzled>(p, q + u64(query) * p.q_token + u64(head) * p.q_head, q, line < rows, tile, row);
    }
}

// A negative scale turns Q over, so that the factor of the softmax is positive; a scale of 0 clears Q.
template <int HIGH> __device__ __forceinline__ void turn_queries(f32 scale, element *tile) {
    for (i32 at = threadIdx.x; at < ROWS<HIGH> * Swizzled::PITCH; at += WARP_THREADS) {
        tile[at].bits = scale < 0.0f ? tile[at].bits ^ 0x8000 : 0;
    }
}
