// Rows whose keys were shared out: joining the parts, and writing what comes of them.
#pragma once

#include "ptx/special.cuh"
#include "attention/sequence.cuh"

// Four columns of a row over some of the keys: O not yet divided by the sum of the weights.
struct Partial {
    f32 most, total;
    float4 o;

    __device__ __forceinline__ void join(const Partial &more) {
        f32 above = fmaxf(most, more.most), base = above == -infinity() ? 0.0f : above;
        f32 own = exp2_fast(most - base), other = exp2_fast(more.most - base);
        most = above;
        total = total * own + more.total * other;
        o = {o.x * own + more.o.x * other, o.y * own + more.o.y * other, o.z * own + more.o.z * other, o.w * own + more.o.w * other};
    }
};

__device__ __forceinline__ Partial no_keys() { return {-infinity(), 0.0f, {0.0f, 0.0f, 0.0f, 0.0f}}; }

// Four columns of a row of O, and with the first of them the LSE.
__device__ __forceinline__ void finish(const AttentionParams &p, const Sequence &s, u32 head, u32 query, i32 column, const Partial &sum) {
    f32 share = sum.total > 0.0f ? 1.0f / sum.total : 0.0f;
    element *to = s.o + u64(query) * p.o_token + u64(head) * p.o_head + column;
    u32 low = narrow2<element>(sum.o.x * share, sum.o.y * share), high = narrow2<element>(sum.o.z * share, sum.o.w * share);
    if ((u64(to) & 3) == 0 && column + 4 <= p.head_dim) {
        ((u32 *)to)[0] = low;
        ((u32 *)to)[1] = high;
    } else {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            if (column + c < p.head_dim) {
                to[c].bits = u16((c < 2 ? low : high) >> c % 2 * 16);
            }
        }
    }
    if (p.lse && column == 0) {
        f32 natural = 0.69314718056f * (sum.most + log2f(sum.total));
        p.lse[s.lse + head * p.lse_head + query] = sum.total == 0.0f ? -infinity() : natural;
    }
}
