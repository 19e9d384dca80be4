// Which keys the steps of 64 rows have, where the warpgroups of `attention/sm90/intra_split.cu` share them.
#pragma once

#include "attention/sm90/tile.cuh"

// Those that rows see, one step behind the other.
struct EveryKey {
    static constexpr Lists LISTED = EVERY;
    Steps all;

    __device__ __forceinline__ EveryKey(const AttentionParams &, const Block &, i32 seen_first, i32 seen_end) {
        all = {seen_first / BLOCK_KEYS, seen_first < seen_end ? (seen_end - 1) / BLOCK_KEYS : seen_first / BLOCK_KEYS - 1};
    }

    __device__ __forceinline__ Keys of(i32 step) const { return {step * BLOCK_KEYS, -1}; }
};

// Those of the listed blocks of a row. Each lane holds one of 32 places of the lists. Where the row's begin has to be read too: so those are read
// first where they would lie if all rows were as long, and as a rule one number does not wait for another.
struct ListedKeys {
    static constexpr Lists LISTED = BLOCKS_OF_128;
    const AttentionParams &p;
    i32 begin, column, kind;
    Steps all;

    __device__ __forceinline__ ListedKeys(const AttentionParams &p, const Block &block, i32 seen_first, i32 seen_end) : p(p) {
        f32 rows = f32(p.patterns * p.q_blocks), row = f32(pattern_of(p, block) * p.q_blocks + u32(block.first_row) / LISTED_BLOCK);
        read(i32(row / rows * f32(p.capacity)) - 8);
        all = listed_steps(p, block, seen_first, seen_end);
    }

    __device__ __forceinline__ void read(i32 from) {
        u32 place = u32(from) + threadIdx.x % 32;
        begin = from;
        if (place < p.capacity) {
            column = block_columns(p)[place];
            kind = block_kinds(p)[place];
        }
    }

    // All lanes of a warp ask for the same step.
    __device__ __forceinline__ Keys of(i32 step) {
        u32 lane = u32(step - begin);
        if (lane >= 32) {
            lane = 16;
            read(step - i32(lane));
        }
        return {i32(shuffle_from(u32(column), lane)) * BLOCK_KEYS, i32(shuffle_from(u32(kind), lane))};
    }
};
