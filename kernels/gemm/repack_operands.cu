// Rows that do not start on multiples of 16 bytes, copied to where they do, f16 and bf16.

#include "tile/repack.cuh"
#include "gemm/repack_params.cuh"

// Rows that a thread copies at once: enough reads under way to keep memory busy.
constexpr u32 REPACK_ROWS = 4;

// Of both operands: to[rows, depth] = from[rows, depth], with zeros up to the copy's stride, a multiple of 8. Blocks of x first, then of w.
extern "C" __global__ void __launch_bounds__(REPACK_THREADS) repack_operands(const RepackParams p) {
    u32 chunks = u32(p.stride / 8), side = chunks < REPACK_THREADS ? chunks : REPACK_THREADS, high = REPACK_THREADS / side;
    u64 group = blockIdx.x, x_groups = (p.x_rows + high * REPACK_ROWS - 1) / (high * REPACK_ROWS);
    bool of_w = group >= x_groups;
    const element *from = of_w ? p.w : p.x;
    element *to = of_w ? p.w_to : p.x_to;
    u64 rows = of_w ? p.w_rows : p.x_rows, first = (of_w ? group - x_groups : group) * high * REPACK_ROWS + threadIdx.x / side;
    u64 stride = of_w ? p.w_stride : p.x_stride;
    u64 begin = u64(from), end = u64(from + (rows - 1) * stride + p.depth);
    if (threadIdx.x / side >= high) {
        return;
    }
    for (u64 k = threadIdx.x % side * 8; k < p.stride; k += side * 8) {
        Straddled words[REPACK_ROWS];
#pragma unroll
        for (u32 i = 0; i < REPACK_ROWS; i++) {
            u64 row = first + i * high;
            words[i] = read_straddled(from + (row < rows ? row : rows - 1) * stride + k, begin, end);
        }
#pragma unroll
        for (u32 i = 0; i < REPACK_ROWS; i++) {
            u64 row = first + i * high;
            if (row < rows) {
                *(uint4 *)(to + row * p.stride + k) = eight_of(words[i], from + row * stride + k, k + 8 <= p.depth ? 8 : i32(p.depth - k));
            }
        }
    }
}
