// Q, K and V whose rows do not start on multiples of 16 bytes, or whose sequences lie at slots, copied to where they do, in order.

#include "tile/repack.cuh"
#include "attention/rows_params.cuh"
#include "attention/repack_params.cuh"

// One operand for each block along y: rows of head_dim elements, on three axes, with zeros up to the stride.
extern "C" __global__ void __launch_bounds__(REPACK_THREADS) attention_repack(const RepackParams p) {
    const RowsParams &own = blockIdx.y == 0 ? p.q : blockIdx.y == 1 ? p.k : p.v;
    repack_rows(own.to, own.rows, p.head_dim, p.to_stride, u64(own.from), u64(own.end), [&own, &p](u64 row) {
        if (own.inner == own.rows && !p.slots) {
            return own.from + row * own.inner_stride;
        }
        u64 further = row / own.inner, outer = further / own.middle;
        u64 place = p.slots ? u64(p.slots[outer]) : outer;
        return own.from + place * own.outer_stride + (further - outer * own.middle) * own.middle_stride + (row - further * own.inner) * own.inner_stride;
    });
}
