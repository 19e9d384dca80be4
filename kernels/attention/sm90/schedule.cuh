// Which tiles a block of `attention/sm90/pipeline.cuh` takes, and where their output goes. `Parts` (attention/sm90/block_sparse.cuh) is one more.
#pragma once

#include "attention/sm90/output.cuh"

// Every tile once, in the order of their numbers. `Parts` is the other choice.
struct Tiles {
    static constexpr bool BLOCK_SPARSE = false, SHARED_KEYS = false;
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
    // The tile that the blocks of a cluster share.
    __device__ __forceinline__ void join(const Stage &stage) {
        join_output(p.common, (const f32 *)stage.k, [this](u32 work) { return place_of(p.common, work); });
    }
};

// Two neighbouring tiles of a head, one for each block of a cluster: both walk over the keys of both, and each brings half of a step's for
// the two, so that L2 is asked for them once. `StreamK` (attention/sm90/stream_k.cuh) shares out the last ones too.
struct Multicast {
    static constexpr bool BLOCK_SPARSE = false, SHARED_KEYS = true;
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

// One tile a block of threads, whose output leaves by TMA. Nothing is counted, told or read: a cold launch waits for each piece of code that
// it comes to.
struct Alone {
    static constexpr bool BLOCK_SPARSE = false, SHARED_KEYS = false;
    const TmaParams &p;

    template <Lists LISTED> __device__ __forceinline__ void prepare(const Stage &) const {}
    __device__ __forceinline__ u32 total() const { return 1; }
    __device__ __forceinline__ void put(const Stage &, const Block &block, u32, Rows &rows, Output &o, u32, char *room) const { send_output(p, block, rows, o, room); }
};

// Of sequences where only a tile's last step has keys that some row does not see.
struct SingleTile : Alone {
    // Of causal sequences late queries have the most to do, and come first: by heads, sequences and tiles. Else tiles of a head are neighbours.
    template <Lists LISTED> __device__ __forceinline__ Block block(u32) const {
        const AttentionParams &all = p.common;
        u32 tile = all.causal ? gridDim.z - 1 - blockIdx.z : blockIdx.x;
        Block block = {all.causal ? blockIdx.y : blockIdx.z, all.causal ? blockIdx.x : blockIdx.y, i32(tile) * BLOCK_ROWS, mask_of(all, i32(all.q_len), i32(all.kv_len)), {}};
        block.steps = {0, last_step(all, block.mask, block.first_row + BLOCK_ROWS)};
        return block;
    }

    // Of the rows before `end`.
    static __device__ __forceinline__ i32 last_step(const AttentionParams &p, const ShortMask &mask, i32 end) {
        return (mask.end((end < i32(p.q_len) ? end : i32(p.q_len)) - 1) - 1) / BLOCK_KEYS;
    }
};

// Two blocks of 64 rows of a head, one from its end and one from its beginning, for the two groups: of causal sequences all tiles then take
// about as long, since a group alone has the tensor cores for itself. Both walk over the keys of the late one; the other passes over those
// that it does not see. By tiles, heads and sequences.
struct CausalPaired : Alone {
    template <Lists LISTED> __device__ __forceinline__ Block block(u32) const {
        const AttentionParams &all = p.common;
        // The tile's number from the end on is that of the early block from the beginning on.
        Block block = {blockIdx.z, blockIdx.y, (2 * i32(all.tiles) - 1 - i32(blockIdx.x)) * 64, mask_of(all, i32(all.q_len), i32(all.kv_len)), {}};
        block.steps = {0, SingleTile::last_step(all, block.mask, block.first_row + 64)};
        return block;
    }

    static __device__ __forceinline__ i32 early_row(const AttentionParams &p, i32 late_row) { return (2 * i32(p.tiles) - 1) * 64 - late_row; }
};

template <class Order> constexpr bool CAUSAL_PAIRED = false;
template <> constexpr bool CAUSAL_PAIRED<CausalPaired> = true;
// Whether only a group's first step, that of its last keys, has some that not every row sees.
template <class Order> constexpr bool MASKS_ONCE = CAUSAL_PAIRED<Order>;
template <> constexpr bool MASKS_ONCE<SingleTile> = true;
// Whether keys lie in pages.
template <class Order> constexpr bool IN_PAGES = false;
// Whether the groups always take turns at the tensor cores.
template <class Order> constexpr bool TAKES_TURNS = !CAUSAL_PAIRED<Order>;
template <class Order> constexpr bool ONE_TILE = MASKS_ONCE<Order>;
// Whether the blocks of a cluster may share the keys of a tile, and join it.
template <class Order> constexpr bool JOINED = !UNALIGNED && (!IS_VARLEN || (AHEAD && CONSUMERS == 2)) && !Order::BLOCK_SPARSE && !Order::SHARED_KEYS && !ONE_TILE<Order>;
