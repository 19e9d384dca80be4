// The codebook GEMM in S2LC's form for many tokens over many adapters, by mma.sync.
//
// Two kernels. *shrink* leaves h = x·V in the workspace, in f32: a block keeps a share of V and takes tiles of 16 tokens, sorted by adapter; nobody
// waits for another block, and the shares are summed by whoever reads h.
// *expand* gives each block as many pairs of an adapter's tokens and a group of columns as any other (codebook_gemm/sgmv_parts.cuh). A block decodes what
// registers hold of them before it waits for h, and the rest afterwards, so that an adapter's codes are decoded once for 16 of its
// tokens, and not once for every tile that one of them is in.
//
// Sums of a token run in an order that depends on d_in alone: the shares' number does not follow the batch, and rows of mma do not mix.
// Which tokens a segment has stands in the index: a replay of a graph may bring others.

#include "codebook_gemm/sgmv_expand.cuh"

// ---- h = x·V ----

// ONCE: a share fits into one buffer of V, and there is one basis. The second buffer is then cut off behind the sums.
struct ShrinkSpace {
    alignas(128) element v[2][STAGE][V_STRIDE];
};

template <bool ALIGNED, bool ONCE> __device__ __forceinline__ void sgmv_shrink(const TileParams &p, const SgmvPlan &plan, u32 slice) {
    extern __shared__ __align__(1024) u8 dynamic[];
    __shared__ Tile tile;
    ShrinkSpace &space = *reinterpret_cast<ShrinkSpace *>(dynamic);
    grid_launch_next();
    u32 index = blockIdx.x / plan.shares, share = blockIdx.x % plan.shares;
    u64 begin = share * plan.each, end = begin + plan.each < p.input.d ? begin + plan.each : p.input.d;
    bool one_basis = ONCE || !p.input.basis_of;
    if (one_basis) {
        fetch_v<ALIGNED>(p, 0, begin, end, space.v[0]);
    }
    read_tile(p, index, 0, 0, 1, plan.each, tile);
    __syncthreads();
    bool any = tile.rows > 0;
    if (any && !one_basis) {
        fetch_v<ALIGNED>(p, tile.bases[0], begin, end, space.v[0]);
    }
    cp_async_wait<0>();
    __syncthreads();
    // Every block waits: the launch after this one takes its end for the end of all before it.
    grid_wait();
    if (!any) {
        return;
    }
    Rows rows(p, tile);
    Inputs inputs;
    inputs.fetch<ALIGNED>(p, rows, begin, end);
    u32 buffer = shrink<ALIGNED, ONCE>(p, tile, rows, inputs, space, begin, end);
    f32 h[DEPTHS];
    sum_parts<WARPS>(parts_in(space, buffer), h);
    u32 row = threadIdx.x / 16;
    if (row < tile.rows) {
        u64 place = (u64(slice) * plan.shares + share) * p.tokens + u64(index) * ROWS + row;
#pragma unroll
        for (u32 d = 0; d < DEPTHS; d++) {
            plan.shrunk[place * RANK + d * 16 + threadIdx.x % 16] = h[d];
        }
    }
}

// The same where a share fits into one buffer of V and there is one basis: a block keeps its share for all tiles that it takes in turn, of which the next one's x
// comes while one is multiplied.
__device__ __forceinline__ void shrink_in_turn(const TileParams &p, const SgmvPlan &plan) {
    extern __shared__ __align__(1024) u8 dynamic[];
    ShrinkSpace &space = *reinterpret_cast<ShrinkSpace *>(dynamic);
    grid_launch_next();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 share = blockIdx.x % plan.shares, stride = gridDim.x / plan.shares * ROWS;
    u64 begin = share * plan.each, end = begin + plan.each < p.input.d ? begin + plan.each : p.input.d;
    fetch_v<true>(p, 0, begin, end, space.v[0]);
    const i32 *order = p.index + 2 + p.tokens;
    // The rows of x that a lane multiplies of the tile that starts at a place.
    auto rows_at = [&](u32 place, i32 (&token)[2]) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 at = place + lane / 4 + 8 * half;
            token[half] = at < p.tokens ? order[at] : -1;
        }
    };
    u32 own = warp * 32 + lane % 4 * 8;
    auto fetch = [&](const i32 (&token)[2], Inputs &inputs) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const element *row = token[half] < 0 ? nullptr : p.x + u64(token[half]) * p.x_stride + own;
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) {
                u64 from = begin + step * STEP;
                inputs.x[step][half] = fetch_x<true>(row, from, i64(end) - i64(from) - own, true);
            }
        }
    };
    u32 place = blockIdx.x / plan.shares * ROWS;
    i32 token[2], next[2];
    rows_at(place, token);
    rows_at(place + stride, next);
    cp_async_wait<0>();
    __syncthreads();
    grid_wait();
    Inputs now, coming;
    fetch(token, now);
    Parts &parts = parts_in(space, 1);
#pragma unroll 1
    for (; place < p.tokens; place += stride) {
        if (place + stride < p.tokens) {
            fetch(next, coming);
            rows_at(place + 2 * stride, next);
        }
        f32 sum[RANK / 8][4] = {};
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            u32 row = step * STEP + warp * 32;
            multiply_v(now.x[step], &space.v[0][row], sum);
        }
        leave_part(parts[warp], sum);
        __syncthreads();
        f32 h[DEPTHS];
        sum_parts<WARPS>(parts, h);
        u32 row = place + threadIdx.x / 16;
        if (row < p.tokens) {
#pragma unroll
            for (u32 d = 0; d < DEPTHS; d++) {
                plan.shrunk[(u64(share) * p.tokens + row) * RANK + d * 16 + threadIdx.x % 16] = h[d];
            }
        }
        now = coming;
        if (place + stride < p.tokens) {
            __syncthreads();
        }
    }
}

#ifdef COMPILE_codebook_gemm_sgmv_shrink
extern "C" __global__ void __launch_bounds__(THREADS, RANK == 16 ? 4 : 2) codebook_gemm_sgmv_shrink(const __grid_constant__ SgmvParams p) {
    shrink_in_turn(p.tile, p.plan);
}
#endif

#ifdef COMPILE_codebook_gemm_sgmv_shrink_long
extern "C" __global__ void __launch_bounds__(THREADS, RANK == 16 ? 2 : 1) codebook_gemm_sgmv_shrink_long(const __grid_constant__ SgmvParams p) {
    sgmv_shrink<true, false>(p.tile, p.plan, 0);
}
#endif

#ifdef COMPILE_codebook_gemm_sgmv_shrink_any
extern "C" __global__ void __launch_bounds__(THREADS, 1) codebook_gemm_sgmv_shrink_any(const __grid_constant__ SgmvParams p) {
    sgmv_shrink<false, false>(p.tile, p.plan, 0);
}
#endif

// Several slices: each row of the grid is one.
#ifdef COMPILE_codebook_gemm_sgmv_shrink_grouped
extern "C" __global__ void __launch_bounds__(THREADS, RANK == 16 ? 2 : 1) codebook_gemm_sgmv_shrink_grouped(const __grid_constant__ SgmvGroup p) {
    sgmv_shrink<true, false>(slice_of(p.group, blockIdx.y), p.plan, blockIdx.y);
}
#endif

// So few registers, as if blocks were larger, that beside two blocks of this kernel one of the first has room; codes of any width need more.
constexpr u32 BOUND = RANK == 16 && WIDTH != 0 ? 320 : THREADS;
constexpr int EXPAND_BLOCKS = RANK == 16 ? 2 : 1;

#ifdef COMPILE_codebook_gemm_sgmv_expand
extern "C" __global__ void __launch_bounds__(BOUND, EXPAND_BLOCKS) codebook_gemm_sgmv_expand(const __grid_constant__ SgmvParams p) {
    expand<true>(p.tile, p.plan, 0);
}
#endif

#ifdef COMPILE_codebook_gemm_sgmv_expand_any
extern "C" __global__ void __launch_bounds__(THREADS, 1) codebook_gemm_sgmv_expand_any(const __grid_constant__ SgmvParams p) { expand<false>(p.tile, p.plan, 0); }
#endif

#ifdef COMPILE_codebook_gemm_sgmv_expand_grouped
extern "C" __global__ void __launch_bounds__(BOUND, EXPAND_BLOCKS) codebook_gemm_sgmv_expand_grouped(const __grid_constant__ SgmvGroup p) {
    expand<true, 4 / DEPTHS>(slice_of(p.group, blockIdx.y), p.plan, blockIdx.y);
}
#endif
