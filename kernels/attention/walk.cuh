// The steps of a tile over the keys that its rows see, STEP_KEYS at a time: one run of them, or those of the listed blocks.
#pragma once

#include "attention/sequence.cuh"

constexpr int STEP_KEYS = 64;

// `value`, which the compiler no longer knows: what depends on it is computed where it stands, not kept in registers.
__device__ __forceinline__ i32 opaque(i32 value) {
    asm volatile("" : "+r"(value));
    return value;
}

// The lists of the block mask.
__device__ __forceinline__ const i32 *block_columns(const AttentionParams &p) { return p.index + opaque(i32(p.patterns * (p.q_blocks + 1))); }
__device__ __forceinline__ const i32 *block_kinds(const AttentionParams &p) { return block_columns(p) + p.capacity; }
__device__ __forceinline__ const u32 *block_bits(const AttentionParams &p) { return (const u32 *)(block_kinds(p) + p.capacity); }

// Keys `first` to `end`, at most STEP_KEYS. `kind` is that of the block: -1 is full, -2 causal, else the number of its bits.
struct Step {
    i32 first, end, kind;
    i32 place;   // in the list

    __device__ __forceinline__ bool more() const { return first < end; }
};

struct Walk {
    const AttentionParams &p;
    i32 seen_first, seen_end;   // what any row sees
    i32 list_end = 0;

    // The step that starts at `first` in listed block `place`, or the next that some row sees.
    __device__ __forceinline__ Step settle(i32 place, i32 first) const {
        if (p.form == BLOCKS) {
            return settle_listed(place, first);
        }
        return {first, first + STEP_KEYS < seen_end ? first + STEP_KEYS : seen_end, -1, 0};
    }

    __device__ __forceinline__ Step settle_listed(i32 place, i32 first) const {
        for (; place < list_end; place++) {
            i32 block = i32(p.block), begin = block_columns(p)[place] * block, end = begin + block < seen_end ? begin + block : seen_end;
            first = first > begin ? first : begin;
            // Steps inside a block start at its multiples of STEP_KEYS, as its bits do.
            if (first + STEP_KEYS <= seen_first) {
                first += (seen_first - first) / STEP_KEYS * STEP_KEYS;
            }
            if (first < end) {
                return {first, first + STEP_KEYS < end ? first + STEP_KEYS : end, block_kinds(p)[place], place};
            }
            first = 0;
        }
        return {0, 0, -1, place};
    }

    __device__ __forceinline__ Step begin(u32 batch, u32 head, i32 query) {
        if (p.form != BLOCKS) {
            return settle(0, seen_first);
        }
        u32 pattern = p.patterns == 1 ? 0 : p.patterns == u32(p.heads) ? head : batch * u32(p.heads) + head;
        const i32 *row = p.index + u64(pattern) * (p.q_blocks + 1) + u32(query) / p.block;
        list_end = row[1];
        return settle(row[0], 0);
    }

    __device__ __forceinline__ Step after(const Step &step) const { return settle(step.place, step.first + STEP_KEYS); }
};
