// The codebook GEMM of dense factors in two kernels: see dense.cuh. *shrink* leaves h = x·I in the workspace, in f32, by shares of d_in; *expand* sums the shares
// in their order, and multiplies with a share of O. What either needs of its factor is in shared memory before it waits for the kernel before. Each row of the
// grid is a slice. Blocks that have no unit end at once, so that others have their places: the first of a slice waits for all.

#include "codebook_gemm/dense.cuh"

template <bool ALIGNED> __device__ __forceinline__ void shrink(const DenseParams &p) {
    extern __shared__ __align__(1024) u8 dynamic[];
    auto &share = *reinterpret_cast<element(*)[SHARE * RANK]>(dynamic);
    __shared__ Unit unit;
    const DenseSlice &slice = p.slices[blockIdx.y];
    grid_launch_next();
    u32 part = blockIdx.x % p.shares;
    if (threadIdx.x < 32) {
        read_unit(p, blockIdx.x / p.shares, p.units, unit);
    }
    __syncthreads();
    bool any = unit.rows > 0;
    if (!any && blockIdx.x > 0) {
        return;
    }
    Inputs inputs;
    if (any) {
        fetch_share<ALIGNED>(Factor(slice.input, slice.input_of, unit.adapter, p.d_in, slice.rank), part, share, input_place);
        inputs.find(p, unit, part);
    }
    cp_async_wait<0>();
    __syncthreads();
    // The launch after this one takes its end for the end of all before it.
    grid_wait();
    if (!any) {
        return;
    }
    inputs.fetch<ALIGNED>();
    f32 sum[OF_WARP][RANK / 8][4] = {};
    inputs.multiply<ALIGNED>(share, unit.rows > 8, sum);
    __syncthreads();
    Parts &parts = *reinterpret_cast<Parts *>(share);
    static_assert(sizeof(Parts) <= sizeof(share), "the sums take the place of I");
    leave_parts(parts, sum);
    __syncthreads();
    u32 row = threadIdx.x / 8, c = threadIdx.x % 8 * 2;
    if (row < unit.rows) {
        f32 *to = p.shrunk + ((u64(blockIdx.y) * p.shares + part) * p.tokens + unit.start + row) * RANK + c;
#pragma unroll
        for (u32 d = 0; d < DEPTHS; d++) {
            float2 all = make_float2(0.0f, 0.0f);
#pragma unroll
            for (u32 from = 0; from < PARTS; from++) {
                float2 one = *reinterpret_cast<const float2 *>(&parts[from][row][d * 16 + c]);
                all.x += one.x;
                all.y += one.y;
            }
            *reinterpret_cast<float2 *>(to + d * 16) = all;
        }
    }
}

struct ExpandSpace {
    alignas(128) element share[SHARE * RANK];
    alignas(16) element g[ROWS][G_STRIDE];
};

template <bool ALIGNED> __device__ __forceinline__ void expand(const DenseParams &p) {
    extern __shared__ __align__(1024) u8 dynamic[];
    auto &space = *reinterpret_cast<ExpandSpace *>(dynamic);
    static_assert(sizeof(ExpandSpace) <= EXPAND_BYTES, "the host's size is another");
    __shared__ Unit unit;
    const DenseSlice &slice = p.slices[blockIdx.y];
    grid_launch_next();
    u32 part = blockIdx.x % p.pieces;
    if (threadIdx.x < 32) {
        read_unit(p, blockIdx.x / p.pieces, p.units, unit);
    }
    bool bare = any_bare(p);
    __syncthreads();
    bool any = unit.rows > 0 && part * SHARE < slice.d_out;
    if (!any && !bare && blockIdx.x > 0) {
        return;
    }
    f32 scaling = 0.0f;
    Outputs outputs;
    if (any) {
        fetch_share<ALIGNED>(Factor(slice.output, slice.output_of, unit.adapter, slice.d_out, slice.rank), part, space.share, output_place);
        scaling = scaling_of(p, unit);
        outputs.find(slice, unit, part, p.accumulate);
    }
    cp_async_wait<0>();
    __syncthreads();
    grid_wait();
    if (any) {
        float2 h[DEPTHS] = {};
        u32 row = threadIdx.x / 8;
        if (row < unit.rows) {
            const f32 *from = p.shrunk + (u64(blockIdx.y) * p.shares * p.tokens + unit.start + row) * RANK + threadIdx.x % 8 * 2;
#pragma unroll 4
            for (u32 number = 0; number < p.shares; number++) {
#pragma unroll
                for (u32 d = 0; d < DEPTHS; d++) {
                    float2 one = *reinterpret_cast<const float2 *>(from + u64(number) * p.tokens * RANK + d * 16);
                    h[d].x += one.x;
                    h[d].y += one.y;
                }
            }
        }
        Before before;
        before.fetch<ALIGNED>(outputs, p.accumulate);
        narrow_g(unit, space.g, h, scaling);
        __syncthreads();
        expand<ALIGNED>(unit, space.g, space.share, outputs, before, p.accumulate);
    }
    if (bare) {
        clear_bare(p, slice);
    }
}

// Blocks of two launches, one of each kernel, fill an SM's shared memory up to rank 32.
constexpr u32 BLOCKS = RANK <= 64 ? 5 : 2;

#ifdef COMPILE_codebook_gemm_sgmv_dense_shrink
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) codebook_gemm_sgmv_dense_shrink(const __grid_constant__ DenseParams p) { shrink<true>(p); }
#endif

#ifdef COMPILE_codebook_gemm_sgmv_dense_shrink_any
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS / 2) codebook_gemm_sgmv_dense_shrink_any(const __grid_constant__ DenseParams p) { shrink<false>(p); }
#endif

#ifdef COMPILE_codebook_gemm_sgmv_dense_expand
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) codebook_gemm_sgmv_dense_expand(const __grid_constant__ DenseParams p) { expand<true>(p); }
#endif

#ifdef COMPILE_codebook_gemm_sgmv_dense_expand_any
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS / 2) codebook_gemm_sgmv_dense_expand_any(const __grid_constant__ DenseParams p) { expand<false>(p); }
#endif
