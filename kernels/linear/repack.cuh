// Rows that do not start on multiples of 16 bytes, copied to where they do.
#pragma once

#include "tile/repack.cuh"
#include "linear/repack_params.cuh"

// to[rows, to_stride] = from[rows, depth], with zeros up to the stride, a multiple of 8. Each thread writes eight elements.
extern "C" __global__ void __launch_bounds__(REPACK_THREADS) linear_repack(const RepackParams p) {
    u64 begin = u64(p.from), end = u64(p.from + p.rows * p.depth);
    repack_rows(p.to, p.rows, p.depth, p.to_stride, begin, end, [&p](u64 row) { return p.from + row * p.depth; });
}
