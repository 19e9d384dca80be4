// Which keys a query sees: the masks of `src/ops/attention.rs`, apart from the block-sparse lists.
#pragma once

#include "ptx/types.cuh"

// Int is wide enough for the sum of both lengths and the window.
template <class Int> struct MaskOf {
    Int offset;   // a query's position less its number: kv_len - q_len
    Int kv_len;
    Int window;   // negative for none
    bool causal;

    __device__ __forceinline__ bool sees(Int query, Int key) const {
        return first(query) <= key && key < end(query);
    }

    // The first key that the query may see.
    __device__ __forceinline__ Int first(Int query) const {
        Int least = query + offset - window;
        return window < 0 || least < 0 ? 0 : least;
    }

    // One past the last key that the query may see.
    __device__ __forceinline__ Int end(Int query) const {
        Int last = query + offset + (causal ? 0 : window);
        return (!causal && window < 0) || last >= kv_len ? kv_len : last + 1;
    }
};

typedef MaskOf<i64> Mask;
