// The codebook GEMM in S2LC's form for many tokens over many adapters, in one launch, for Hopper: y = s·(x·V)·Q·Uᵀ, written over.
//
// A block projects tiles of tokens over a share of d_in, and expands an equal piece of all pairs of an adapter's tokens and a group of columns
// (codebook_gemm/sgmv_parts.cuh). What it has summed of x·V it tells to whoever looks for it in L2: numbers are their own flags (publish_16). All that
// the block expands is decoded before the launch before has ended: of a warp's groups of columns some lie in registers, the others in shared memory, where their
// codes were.
//
// There are two places for what is published, taken in turn: a launch clears that of the launch before. All blocks are on the device at once, one an SM, but
// for where another stream has taken room: a block that has looked for long makes what it wants itself.
//
// Operands that do not start on 16 bytes are left to the kernels of sgmv.cu.

#include "codebook_gemm/sgmv_fused.cuh"

__device__ __forceinline__ void sgmv_fused(const TileParams &p, const SgmvFusedPlan &plan) {
    extern __shared__ __align__(1024) u8 dynamic[];
    SgmvFusedSpace &space = *reinterpret_cast<SgmvFusedSpace *>(dynamic);
    grid_launch_next();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 *arrived = &space.arrived[warp];
    if (lane == 0) {
        mbarrier_init(arrived, 1);
        fence_mbarrier_init();
    }
    read_piece(p, plan.segments, space.piece);
    __syncthreads();
    const Part(&parts)[MOST_PARTS] = space.piece.part;
    // Before codes, which all blocks ask for at once.
    Record record[MOST_PARTS];
#pragma unroll
    for (u32 i = 0; i < MOST_PARTS; i++) {
        record[i].fetch(p.output, OneAdapter{parts[i].groups > 0 ? 1u : 0u, {parts[i].adapter}, {}}, 0);
    }
    Stretch stretch(parts);
    const Part &part = parts[stretch.second];
    u32 *own = space.own[warp], held = stretch.held, skew = stage_own(p.output, part, stretch, own, arrived);
    Share share(p, plan, blockIdx.x % SHARES);
    fetch_share<4>(p, share.begin, share.end, space.v);
    u32 place = blockIdx.x / SHARES < plan.lanes ? blockIdx.x / SHARES * ROWS : u32(p.tokens), stride = plan.lanes * ROWS;
    i32 token[UNDER_WAY][2], next[UNDER_WAY][2], written[2][2];
#pragma unroll
    for (u32 i = 0; i < UNDER_WAY; i++) {
        tokens_at(p, place + i * stride, p.tokens, token[i]);
        tokens_at(p, place + (UNDER_WAY + i) * stride, p.tokens, next[i]);
    }
    // Of the tokens from `first` on.
    auto written_at = [&](u32 first) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 row = first + i / 2 * 8 + lane % 4 * 2 + i % 2;
            written[i / 2][i % 2] = row < part.count ? p.index[2 + p.tokens + part.start + row] : -1;
        }
    };
    if (threadIdx.x == 0) {
        space.missing = 0;
        space.bare = u32(p.index[1]) < p.tokens;
    }
#pragma unroll
    for (u32 i = 0; i < MOST_PARTS; i++) {
        if (parts[i].groups > 0) {
            fill_spread(record[i], space.adapter[i], space.table[i]);
        }
    }
    if (held > 0) {
        mbarrier_wait(arrived, 0);
    }
    __syncthreads();
    u32 decoded[SGMV_FUSED_HELD][4][2];
    if (held > 0) {
        decode_own(own, skew, held, Spread{space.table[0], lane * 4 + (stretch.second ? u32(sizeof(space.table[0])) : 0)}, decoded);
    }
    Places places[UNDER_WAY] = {{p, share, token[0]}, {p, share, token[1]}};
    computed_here(places[0].row[0]);
    computed_here(places[0].row[1]);
    cp_async_wait<0>();
    __syncthreads();
    // Every block waits: the launch after this one takes its end for the end of all before it.
    grid_wait();
    Inputs inputs[UNDER_WAY];
#pragma unroll
    for (u32 i = 0; i < UNDER_WAY; i++) {
        places[i].fetch(p, share, inputs[i]);
    }
    // How many blocks of the launches before have ended, counted round and round: of two launches.
    bool odd = read_count(plan.counted) >= gridDim.x;
    u64 whole = SHARES * p.tokens * RANK;
    f32 *published = plan.published + (odd ? whole : 0), *clear = plan.published + (odd ? 0 : whole);
#pragma unroll 1
    for (;;) {
        u32 first = place;
#pragma unroll 1
        for (u32 t = 0; t < TILES_AT_ONCE && place < p.tokens; t += UNDER_WAY) {
#pragma unroll
            for (u32 i = 0; i < UNDER_WAY; i++) {
                f32 sum[RANK / 8][4] = {};
#pragma unroll
                for (u32 step = 0; step < STEPS; step++) {
                    multiply_step(inputs[i].x[step], space.v, step, sum);
                }
                leave_part(space.parts(t + i)[warp], sum);
                Places(p, share, next[i]).fetch(p, share, inputs[i]);
                place += stride;
                tokens_at(p, place + (2 * UNDER_WAY - 1) * stride, p.tokens, next[i]);
            }
        }
        __syncthreads();
#pragma unroll 1
        for (u32 t = 0; t < TILES_AT_ONCE && first < p.tokens; t++, first += stride) {
            publish_sums(p, space.parts(t), share.number, first, p.tokens, published, clear);
        }
        if (place >= p.tokens) {
            break;
        }
        __syncthreads();
    }
    written_at(0);
    f32 scaling = Quarter().scaling(p, parts, 0);
    u32 most = parts[0].count > parts[1].count ? parts[0].count : parts[1].count;
#pragma unroll 1
    for (u32 first = 0; first < most;) {
        Quarter quarter;
        if (quarter.any) {
            const Part &its = parts[quarter.part];
            bool there = first + quarter.row < its.count;
            f32 h[4] = {};
            if (there && !quarter.poll(published, p.tokens, its.start + first + quarter.row, h)) {
                space.missing = 1;
            }
            quarter.apply(p, its.adapter, there, scaling, h, space);
        }
        __syncthreads();
        if (space.missing) {
            // Others wait for room, as where launches of two streams have some each. What is wanted here is as well made here: the same bits.
#pragma unroll 1
            for (u32 number = 0; number < MOST_PARTS * SHARES; number++) {
                const Part &its = parts[number / SHARES];
                Share missing(p, plan, number % SHARES);
                i32 token[2];
                tokens_at(p, its.start + first, its.start + its.count, token);
                __syncthreads();
                fetch_share<1>(p, missing.begin, missing.end, space.v);
                cp_async_wait<0>();
                __syncthreads();
                f32 sum[RANK / 8][4] = {};
#pragma unroll 1
                for (u32 step = 0; step < STEPS; step++) {
                    uint4 x[2];
                    Places(p, missing, token).fetch(p, missing, step, x);
                    multiply_step(x, space.v, step, sum);
                }
                leave_part(space.parts(0)[warp], sum);
                __syncthreads();
                publish_sums(p, space.parts(0), missing.number, its.start + first, its.start + its.count, published, nullptr);
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                space.missing = 0;
            }
            __syncthreads();
            continue;
        }
#pragma unroll 1
        for (u32 eight = 0; eight < ROWS && first + eight < part.count; eight += 8) {
            Outputs outputs(p, space, stretch.second, eight, written[0], part.first + stretch.first);
            written[0][0] = written[1][0];
            written[0][1] = written[1][1];
#pragma unroll
            for (u32 k = 0; k < SGMV_FUSED_HELD; k += 2) {
                if (k < held) {
                    outputs.store_two(k, held, reinterpret_cast<const u32(&)[2][4][2]>(decoded[k]));
                }
            }
#pragma unroll 1
            for (u32 k = SGMV_FUSED_HELD; k < held; k += 2) {
                const uint4 *from = reinterpret_cast<const uint4 *>(own + (k - SGMV_FUSED_HELD) * FRAGMENT) + lane;
                u32 b[2][4][2];
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    uint4 low = from[i * 64], high = from[i * 64 + 32];
                    b[i][0][0] = low.x, b[i][0][1] = low.y, b[i][1][0] = low.z, b[i][1][1] = low.w;
                    b[i][2][0] = high.x, b[i][2][1] = high.y, b[i][3][0] = high.z, b[i][3][1] = high.w;
                }
                outputs.store_two(k, held, b);
            }
        }
        first += ROWS;
        if (first < most) {
            // Everyone has read the last rows' coefficients.
            __syncthreads();
            written_at(first);
            scaling = Quarter().scaling(p, parts, first);
        }
    }
    if (space.bare) {
        clear_bare<true>(p);
    }
    if (threadIdx.x == 0) {
        count_round(plan.counted, 2 * gridDim.x - 1);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) codebook_gemm_sgmv_fused(const __grid_constant__ SgmvFusedParams p) { sgmv_fused(p.tile, p.plan); }
