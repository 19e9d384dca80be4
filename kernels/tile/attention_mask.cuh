// Which keys a query sees: the masks of `src/ops/attention.rs`, apart from the block-sparse lists.
#pragma once

#include "ptx/types.cuh"

struct Mask {
    i64 offset;   // a query's position less its number: kv_len - q_len
    i64 kv_len;
    i64 window;   // negative for none
    bool causal;

    __device__ __forceinline__ bool sees(i64 query, i64 key) const {
        return first(query) <= key && key < end(query);
    }

    // The first key that the query may see.
    __device__ __forceinline__ i64 first(i64 query) const {
        i64 least = query + offset - window;
        return window < 0 || least < 0 ? 0 : least;
    }

    // One past the last key that the query may see.
    __device__ __forceinline__ i64 end(i64 query) const {
        i64 last = query + offset + (causal ? 0 : window);
        return (!causal && window < 0) || last >= kv_len ? kv_len : last + 1;
    }
};
