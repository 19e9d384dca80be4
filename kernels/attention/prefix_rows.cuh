// Rows of attention over a shared prefix: which query and head each is, and how the parts of its keys are joined.
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

constexpr int JOIN_THREADS = 128;

// The parts of each row, and what o and lse hold where they are to be joined: a block a row.
extern "C" __global__ void __launch_bounds__(JOIN_THREADS) prefix_attention_join(const PrefixParams p) {
    grid_wait();
    for (u64 number = blockIdx.x; number < all_rows(p); number += gridDim.x) {
        PrefixRow row = {number / p.q_len / p.heads, number % p.q_len, number / p.q_len % p.heads};
        element *o = p.o + row.offset(p.o_batch, p.o_token, p.o_head);
        f32 own = p.join ? p.lse[number] : -infinity(), most = own;
        for (u32 split = 0; split < p.splits; split++) {
            most = fmaxf(most, part_lse(p, split, number));
        }
        f32 base = most == -infinity() ? 0.0f : most, own_weight = expf(own - base), total = own_weight;
        for (u32 split = 0; split < p.splits; split++) {
            total += expf(part_lse(p, split, number) - base);
        }
        f32 share = total == 0.0f ? 0.0f : 1.0f / total;
        for (i32 column = threadIdx.x; column < p.head_dim; column += JOIN_THREADS) {
            // What has seen nothing holds nothing, whatever lies there.
            f32 sum = own == -infinity() ? 0.0f : own_weight * widen(o[column]);
            for (u32 split = 0; split < p.splits; split++) {
                sum += expf(part_lse(p, split, number) - base) * part_values(p, split, number)[column];
            }
            o[column] = narrow<element>(sum * share);
        }
        // Everyone has read the LSE.
        __syncthreads();
        if (threadIdx.x == 0) {
            p.lse[number] = total == 0.0f ? -infinity() : most + logf(total);
        }
        __syncthreads();
    }
}
