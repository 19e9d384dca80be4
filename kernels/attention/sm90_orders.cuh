// Which tiles a block of `sm90.cu` takes, and where their output goes. `Parts` (sm90_parts.cuh) is one more.
#pragma once

#include "attention/sm90_output.cuh"

// Every tile once, in the order of their numbers. `Parts` is the other choice.
struct Tiles {
    static constexpr bool IN_PARTS = false, SHARED_KEYS = false;
    const TmaParams &p;

    template <Lists LISTED> __device__ __forceinline__ void prepare(const Stage &) const {}
    __device__ __forceinline__ u32 total() const { return p.work; }
    template <Lists LISTED> __device__ __forceinline__ Block block(u32 work) const { return block_of<LISTED>(p, work); }
    __device__ __forceinline__ void put(const Stage &stage, const Block &block, u32, Rows &rows, Output &o, u32 group, char *room) const {
        if (cluster_size() > 1) {
            keep_output((f32 *)stage.k, rows, o, group);
        } else {
            finish_output(p.common, block, rows, o, room);
        }
    }
};

// Two neighbouring tiles of a head, one for each block of a cluster: both walk over the keys of both, and each brings half of a step's for
// the two, so that the second-level cache is asked for them once.
struct Neighbours {
    static constexpr bool IN_PARTS = false, SHARED_KEYS = true;
    const TmaParams &p;

    template <Lists LISTED> __device__ __forceinline__ void prepare(const Stage &) const {}
    __device__ __forceinline__ u32 total() const { return p.work; }
    template <Lists LISTED> __device__ __forceinline__ Block block(u32 work) const {
        Block block = place_of(p.common, work);
        i32 first_row = block.first_row * 2, past = first_row + 2 * BLOCK_ROWS;
        i32 last_row = (past < i32(p.common.q_len) ? past : i32(p.common.q_len)) - 1;
        i32 first = block.mask.first(first_row), end = block.mask.end(last_row);
        block.steps = {first / BLOCK_KEYS, first < end ? (end - 1) / BLOCK_KEYS : first / BLOCK_KEYS - 1};
        block.first_row = first_row + i32(cluster_rank()) * BLOCK_ROWS;
        return block;
    }
    __device__ __forceinline__ void put(const Stage &, const Block &block, u32, Rows &rows, Output &o, u32, char *room) const { finish_output(p.common, block, rows, o, room); }
};

// Two blocks of 64 rows of a head, one from its end and one from its beginning, for the two groups: of causal sequences all tiles then take
// about as long, since a group alone has the tensor cores for itself. Both walk over the keys of the late one; the other passes over those
// that it does not see.
struct Halves {
    static constexpr bool IN_PARTS = false, SHARED_KEYS = false;
    const TmaParams &p;

    template <Lists LISTED> __device__ __forceinline__ void prepare(const Stage &) const {}
    __device__ __forceinline__ u32 total() const { return p.work; }
    template <Lists LISTED> __device__ __forceinline__ Block block(u32 work) const {
        Block block = place_of(p.common, work);
        // The tile's number from the end on is that of the early block from the beginning on.
        block.first_row = i32(p.common.tiles) * 64 + block.first_row / 2;
        block.steps = {0, last_step(p.common, block.mask, block.first_row)};
        return block;
    }
    __device__ __forceinline__ void put(const Stage &, const Block &block, u32, Rows &rows, Output &o, u32, char *room) const { finish_output(p.common, block, rows, o, room); }

    static __device__ __forceinline__ i32 early_row(const AttentionParams &p, i32 late_row) { return (2 * i32(p.tiles) - 1) * 64 - late_row; }
    // Of a group's rows; -1 where they see nothing.
    static __device__ __forceinline__ i32 last_step(const AttentionParams &p, const ShortMask &mask, i32 row) {
        i32 end = mask.end(row + 63 < i32(p.q_len) ? row + 63 : i32(p.q_len) - 1);
        return end > 0 ? (end - 1) / BLOCK_KEYS : -1;
    }
};

template <class Order> constexpr bool IN_HALVES = false;
template <> constexpr bool IN_HALVES<Halves> = true;
