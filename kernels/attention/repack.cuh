// Q, K and V whose rows do not start on multiples of 16 bytes, copied to where they do.
#pragma once

#include "tile/repack.cuh"
#include "attention/rows_params.cuh"
#include "attention/repack_params.cuh"

// One operand for each block along y: rows of head_dim elements, in the order of sequences, tokens, heads, with zeros up to the stride.
extern "C" __global__ void __launch_bounds__(REPACK_THREADS) attention_repack(const RepackParams p) {
    const RowsParams &own = blockIdx.y == 0 ? p.q : blockIdx.y == 1 ? p.k : p.v;
    repack_rows(own.to, own.rows, p.head_dim, p.to_stride, u64(own.from), u64(own.end), [&own](u64 row) {
        u64 token = row / own.heads, sequence = token / own.tokens;
        return own.from + sequence * own.batch_stride + (token - sequence * own.tokens) * own.token_stride + (row - token * own.heads) * own.head_stride;
    });
}
