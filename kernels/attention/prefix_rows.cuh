// Rows of attention over a shared prefix: which query and head each is, and where the parts of its keys are left.
#pragma once

#include "ptx/grid.cuh"
#include "tile/codes.cuh"
#include "attention/prefix_params.cuh"

// A row of a head of keys: sequences, queries and the heads that share keys fill a tile together.
struct PrefixRow {
    u64 batch, query, head;

    __device__ __forceinline__ u64 offset(u64 by_batch, u64 by_token, u64 by_head) const { return batch * by_batch + query * by_token + head * by_head; }
};

__device__ __forceinline__ PrefixRow prefix_row(const PrefixParams &p, u64 kv_head, u64 row) {
    u64 line = row / p.group;
    return {line / p.q_len, line % p.q_len, kv_head * p.group + row % p.group};
}

// Its number in the LSE.
__device__ __forceinline__ u64 row_number(const PrefixParams &p, const PrefixRow &row) { return (row.batch * p.heads + row.head) * p.q_len + row.query; }

// Rows of all heads; rows of one head of keys.
__device__ __forceinline__ u64 all_rows(const PrefixParams &p) { return p.batch * p.heads * p.q_len; }
__device__ __forceinline__ u64 head_rows(const PrefixParams &p) { return p.batch * p.q_len * p.group; }

// Where a split leaves a row: O over its keys, divided by the sum of their weights, and the LSE.
__device__ __forceinline__ f32 *part_values(const PrefixParams &p, u64 split, u64 number) { return p.parts + (split * all_rows(p) + number) * p.head_dim; }
__device__ __forceinline__ f32 &part_lse(const PrefixParams &p, u64 split, u64 number) { return p.part_lse[split * all_rows(p) + number]; }
