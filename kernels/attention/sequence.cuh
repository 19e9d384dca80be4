// Where the queries and keys of a piece of work lie, in each form of the operation.
#pragma once

#include "attention/params.cuh"

enum Form : u32 { DENSE = 0, VARLEN = 1, BLOCKS = 2, PAGED = 3 };

// One sequence.
struct Sequence {
    const element *q, *k, *v;
    element *o;
    const i32 *pages;   // paged: the pages of this sequence
    i64 q_len, kv_len;
    u64 lse;            // where the LSE of head 0, query 0 lies
};

__device__ __forceinline__ Sequence sequence_of(const AttentionParams &p, u64 batch) {
    Sequence s = {p.q + batch * p.q_batch, p.k, p.v, p.o + batch * p.o_batch, nullptr, i64(p.q_len), i64(p.kv_len), batch * p.heads * p.q_len};
    if (p.form == VARLEN) {
        const i32 *cu_q = p.index, *cu_kv = p.index + p.batch + 1;
        s.q = p.q + cu_q[batch] * p.q_token;
        s.o = p.o + cu_q[batch] * p.o_token;
        s.k = p.k + cu_kv[batch] * p.k_token;
        s.v = p.v + cu_kv[batch] * p.v_token;
        s.q_len = cu_q[batch + 1] - cu_q[batch];
        s.kv_len = cu_kv[batch + 1] - cu_kv[batch];
        s.lse = cu_q[batch];
    } else if (p.form == PAGED) {
        s.kv_len = p.index[batch];
        s.pages = p.index + p.batch + batch * p.pages;
    } else {
        s.k += batch * p.k_batch;
        s.v += batch * p.v_batch;
    }
    return s;
}

// Elements of K (or V) from the sequence's first to the first of token `key`.
__device__ __forceinline__ u64 token_offset(const AttentionParams &p, const Sequence &s, i64 key, u64 page_stride, u64 token_stride) {
    if (p.form != PAGED) {
        return u64(key) * token_stride;
    }
    return u64(s.pages[u64(key) / p.page]) * page_stride + u64(key) % p.page * token_stride;
}

// The listed blocks of one row of blocks.
struct BlockRow {
    const i32 *columns, *kinds;
    const u32 *bits;
    i32 begin, end;
};

__device__ __forceinline__ BlockRow block_row(const AttentionParams &p, u64 batch, u64 head, u64 row) {
    u64 pattern = p.patterns == 1 ? 0 : p.patterns == p.heads ? head : batch * p.heads + head;
    const i32 *row_ptr = p.index + pattern * (p.q_blocks + 1) + row;
    const i32 *columns = p.index + u64(p.patterns) * (p.q_blocks + 1);
    const i32 *kinds = columns + p.capacity;
    return {columns, kinds, (const u32 *)(kinds + p.capacity), row_ptr[0], row_ptr[1]};
}
