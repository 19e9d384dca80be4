// y[t] (+)= s_a · x[t]·I_a·Q_a·O_aᵀ for one slice, on the ordinary cores: every size, f32 as well.
//
// A block takes one token and OUTPUTS columns of y: h and g stay in shared memory, O is decoded where it is used, and
// nothing but y is written to device memory.

#include "tile/codes.cuh"
#include "codebook_gemm/params.cuh"

constexpr u32 OUTPUTS = 1024;

extern "C" __global__ void __launch_bounds__(ROW_SHRINK_THREADS) codebook_gemm_simt(const CodebookGemmParams p) {
    __shared__ Shrinking space;
    u64 chunks = (p.output.d + OUTPUTS - 1) / OUTPUTS;
    for (u64 work = blockIdx.x; work < p.tokens * chunks; work += gridDim.x) {
        u64 token = work / chunks, first = work % chunks * OUTPUTS;
        u64 end = first + OUTPUTS < p.output.d ? first + OUTPUTS : p.output.d;
        element *y = p.y + token * p.y_stride;
        i32 adapter = p.token_adapter[token];
        if (adapter < 0) {
            if (!p.accumulate) {
                for (u64 o = first + threadIdx.x; o < end; o += ROW_SHRINK_THREADS) {
                    y[o] = narrow<element>(0.0f);
                }
            }
            continue;
        }
        shrink(p.x + token * p.x_stride, p.input, p.core, p.scaling[p.scaled_by_token ? token : u64(adapter)], adapter, space);
        for (u64 o = first + threadIdx.x; o < end; o += ROW_SHRINK_THREADS) {
            f32 sum = 0.0f;
            for (u32 j = 0; j < p.output.rank; j++) {
                sum += space.g[j] * element_of(column_of(p.output, adapter, j), o);
            }
            y[o] = narrow<element>(p.accumulate ? widen(y[o]) + sum : sum);
        }
        __syncthreads();
    }
}
