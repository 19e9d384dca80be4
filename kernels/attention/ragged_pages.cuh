// Where the queries and keys of a piece of work lie, of all forms: those of sequence.cuh, and queries in numbers of their own over keys in pages.
#pragma once

#include "attention/sequence.cuh"

// Whether a unit is compiled for ragged pages: what the other forms compile to does not pay for them.
#ifdef RAGGED_PAGES
constexpr bool RAGGED = true;
#else
constexpr bool RAGGED = false;
#endif

// Words: cu_q[batch + 1], kv_len[batch], table[batch, pages]. Sequences from p.batch on are spare queries, of p.q_len each, without keys.
__device__ __forceinline__ Sequence ragged_sequence(const AttentionParams &p, u64 batch) {
    const i32 *cu_q = p.index, *kv_len = p.index + p.batch + 1;
    bool spare = batch >= p.batch;
    u64 first = spare ? u64(cu_q[p.batch]) + (batch - p.batch) * p.q_len : u64(cu_q[batch]), end = spare ? first + p.q_len : u64(cu_q[batch + 1]);
    first = first < p.lse_head ? first : p.lse_head;   // all queries, with spare ones
    end = end < p.lse_head ? end : p.lse_head;
    Sequence s = {p.q + first * p.q_token, p.k, p.v, p.o + first * p.o_token, nullptr, i64(end - first), 0, first};
    if (!spare) {
        s.kv_len = kv_len[batch];
        s.pages = kv_len + p.batch + batch * p.pages;
    }
    return s;
}

__device__ __forceinline__ Sequence any_sequence(const AttentionParams &p, u64 batch) {
    return RAGGED ? ragged_sequence(p, batch) : sequence_of(p, batch);
}

// Elements of K (or V) from the sequence's first to the first of token `key`.
__device__ __forceinline__ u64 any_token_offset(const AttentionParams &p, const Sequence &s, i64 key, u64 page_stride, u64 token_stride) {
    if (!RAGGED) {
        return token_offset(p, s, key, page_stride, token_stride);
    }
    return u64(s.pages[u64(key) / p.page]) * page_stride + u64(key) % p.page * token_stride;
}

// Sequences, with those of spare queries.
__device__ __forceinline__ u64 all_sequences(const AttentionParams &p) {
    return RAGGED ? p.batch + (p.lse_head + p.q_len - 1) / p.q_len : p.batch;
}

// The first key of the first of steps of `keys` each. In ragged pages steps begin at multiples of them, wherever the tile's first key is: what a
// query sums does not depend on its tile.
template <class Int> __device__ __forceinline__ Int first_of_steps(Int first, Int keys) {
    return RAGGED ? first / keys * keys : first;
}
