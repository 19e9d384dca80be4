// The second launch of attention over a prefix: joins the parts that the splits of the keys have left.

#include "attention/prefix_rows.cuh"

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
