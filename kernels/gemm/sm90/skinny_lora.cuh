// What adapters add to a product of few rows, in the same launch: warps of their own work beside the stream of W and leave what the
// product's warps multiply at their end, a step of mma for each adapter.
//
//   shrink    Two warps of each block read X in the ring's stages as the product does, and V, which comes with it, and compute h = x·V over
//             the block's part of K. Where that is a half, the cluster's blocks send each other their sums.
//   decode    A warpgroup brings its block's codes of U, of all adapters of the batch, at once, and decodes them in shared memory, by a
//             table of each adapter's values in 16 bits. Blocks that have the same rows, each a part of K, decode a part of the adapters
//             each, for all that have outputs.
//   gather    It adds up h in the order of the parts, turns it by the core and leaves g in 16 bits, while the product's sums are exchanged.
//   add       The warps that hold the sums of the product multiply U by g. An adapter's products reach its own tokens' sums alone: they
//             are chosen, not multiplied by zero, so that values that are no numbers harm nobody else.
//
// No block waits for another cluster, and nothing but Y is written. Of reads that depend on each other there are two: the tokens' adapters, then
// everything else. While W streams each takes as long as the bytes that are under way before it.
//
// f16 has few exponents: a power of two is taken out of each token's g and of each adapter's codebook, and comes back in f32.
//
// Besides what gemm/sm90/skinny_ring.cuh wants the host defines RANK (16, 32: at least that of the factors, a multiple of 8) and ADAPTER_BYTES.
#pragma once

#include "gemm/sm90/skinny_codes.cuh"

// Of the token that a lane has. In the index the adapters follow two counts. Codes of no bits add nothing, and there may be none.
__device__ __forceinline__ i32 adapter_of_lane(const LinearAdaptedParams &p) {
    u32 lane = threadIdx.x % 32;
    return lane < p.gemm.rows && p.output.bits ? p.index[2 + lane] : -1;
}

// Of the adapters' warps: adapters of the batch, and which tokens have them. Gives how many there are.
__device__ __forceinline__ u32 read_tokens(AdapterSpace &space, i32 adapter) {
    u32 lane = threadIdx.x % 32, below = (1u << lane) - 1;
    u32 same = __match_any_sync(WHOLE_WARP, adapter);
    u32 firsts = __ballot_sync(WHOLE_WARP, adapter >= 0 && (same & below) == 0);
    i32 place = adapter < 0 ? -1 : __popc(firsts & ((1u << (__ffs(same) - 1)) - 1));
    if (threadIdx.x < ADAPTER_FIRST + 32) {
        if (lane < TOKENS) {
            space.place[lane] = place;
        }
        if (firsts >> lane & 1) {
            space.adapter[place] = adapter;
        }
#pragma unroll
        for (u32 block = 0; block < TOKEN_BLOCKS; block++) {
            u32 places = __reduce_or_sync(WHOLE_WARP, adapter >= 0 && lane / 8 == block ? 1u << place : 0u);
            if (lane == 0) {
                space.places[block] = places;
            }
        }
    }
    return __popc(firsts);
}

// V, which comes with X as long as the first tile lasts. Past K there are zeros, as in X.
struct Basis {
    const LinearAdaptedParams &p;
    u32 left;

    __device__ __forceinline__ explicit Basis(const LinearAdaptedParams &p) : p(p) {
        SkinnyWork<false, SKINNY_SPLIT> work(p.gemm, p.tile_rows);
        left = work.end - work.begin;
    }

    __device__ __forceinline__ u32 bytes() const { return left > 0 ? SHRINK_WARPS * SHRINK_ROWS * p.input.rank * 2 : 0; }

    __device__ __forceinline__ void bring(const SkinnyRing &ring, i32 k) {
        if (left > 0) {
            left--;
            tma_load_2d(ring.beside(), &p.basis_map, &ring.full[ring.stage], 0, k);
        }
    }
};

// Pairs of steps of mma whose operands a warp has registers for at once.
constexpr u32 PAIRS = RANK <= 16 ? 2 : 1;

// Of two warps: h of the block's part of K, each over half of every stage.
template <bool SPLIT> __device__ __forceinline__ void skinny_shrink(const LinearAdaptedParams &p, AdapterSpace &space, SkinnyRing &ring) {
    SkinnyWork<false, SPLIT> work(p.gemm, p.tile_rows);
    u32 lane = threadIdx.x % 32, warp = (threadIdx.x - SHRINK_FIRST) / 32, rank = p.input.rank;
    f32 sum[TOKEN_TILES][RANK_EIGHTS][4] = {};
    bool first = true;
    work.each([&](u64) {
#pragma unroll 1
        for (u32 step = work.begin; step < work.end; step++) {
            mbarrier_wait(&ring.full[ring.stage], ring.phase);
            if (first) {
                u32 x = shared_address(ring.x(warp)), v = shared_address(ring.beside()) + warp * SHRINK_ROWS * rank * 2;
#pragma unroll
                for (u32 begin = 0; begin < 2; begin += PAIRS) {
                    // All that is read first: what a product waits for would keep the reads behind it waiting.
                    u32 a[2 * PAIRS][TOKEN_TILES][4], b[PAIRS][RANK_EIGHTS][4];
#pragma unroll
                    for (u32 i = 0; i < PAIRS; i++) {
                        u32 pair = begin + i;
#pragma unroll
                        for (u32 n = 0; n < RANK_EIGHTS; n++) {
                            // Of ranks that are not there, the last ones again, without a branch.
                            u32 column = n * 8 < rank ? n * 8 : rank - 8;
                            ldmatrix_x4_transposed(b[i][n], v + ((pair * 32 + lane) * rank + column) * 2);
                        }
#pragma unroll
                        for (u32 half = 0; half < 2; half++) {
#pragma unroll
                            for (u32 tile = 0; tile < TOKEN_TILES; tile++) {
                                u32 token = tile * 16 + lane % 16, piece = (pair * 2 + half) * 2 + lane / 16;
                                ldmatrix_x4(a[i * 2 + half][tile], x + token * LINE + (piece ^ token % 8) * 16);
                            }
                        }
                    }
#pragma unroll
                    for (u32 i = 0; i < 2 * PAIRS; i++) {
#pragma unroll
                        for (u32 n = 0; n < RANK_EIGHTS; n++) {
                            const u32 two[2] = {b[i / 2][n][i % 2 * 2], b[i / 2][n][i % 2 * 2 + 1]};
#pragma unroll
                            for (u32 tile = 0; tile < TOKEN_TILES; tile++) {
                                mma_m16n8k16<element>(sum[tile][n], a[i][tile], two);
                            }
                        }
                    }
                }
                __syncwarp();
            }
            if (lane < SKINNY_CLUSTER) {
                mbarrier_arrive_remote_relaxed(&ring.empty_x[ring.stage], SPLIT ? work.rank : lane);
            }
            ring.advance();
        }
        if (!first) {
            return;
        }
        first = false;
        u32 part = SPLIT ? work.rank * SHRINK_WARPS + warp : warp;
        u32 to = FIRST_HAS_OUTPUTS || SPLIT ? 0 : work.rank, end = FIRST_HAS_OUTPUTS ? 1 : SPLIT ? SKINNY_CLUSTER : work.rank + 1;
        for (; to < end; to++) {
            u32 barrier = cluster_address(shared_address(&space.shrunk), to);
#pragma unroll
            for (u32 i = 0; i < TOKEN_TILES * RANK_EIGHTS; i++) {
                const f32(&own)[4] = sum[i / RANK_EIGHTS][i % RANK_EIGHTS];
                bool there = i % RANK_EIGHTS * 8 < rank;
                u32 place = cluster_address(shared_address(&space.h[part][i][lane]), to);
                cluster_store(place, there ? make_float4(own[0], own[1], own[2], own[3]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f), barrier);
            }
        }
    });
}

// Threads of the adapters' warps that share a token's g.
constexpr u32 SHARERS = ADAPTER_THREADS / TOKENS;

// The adapter of a thread's token.
__device__ __forceinline__ i32 own_adapter(const AdapterSpace &space) {
    i32 place = space.place[(threadIdx.x - ADAPTER_FIRST) / SHARERS];
    return place < 0 ? -1 : space.adapter[place];
}

// Columns of the core of a thread's token that the thread has, and rows of it that it has at once.
constexpr u32 EACH = RANK / SHARERS, CORE_ROWS = 32 / EACH < RANK ? 32 / EACH : RANK;

// What gather needs besides h. Asked for long before, where there are registers: memory takes as long as W that is under way.
struct TokenCoefficients {
    f32 scaling, core[CORE_ROWS][EACH];

    // Rows of the core from `begin` on.
    __device__ __forceinline__ void fetch_core(const LinearAdaptedParams &p, i32 adapter, u32 begin) {
        u32 rank = p.input.rank, first = (threadIdx.x - ADAPTER_FIRST) % SHARERS * EACH;
        const f32 *rows = p.core + u64(u32(adapter < 0 ? 0 : adapter)) * rank * rank;
#pragma unroll
        for (u32 i = 0; i < CORE_ROWS; i++) {
#pragma unroll
            for (u32 e = 0; e < EACH; e++) {
                bool there = p.core && adapter >= 0 && begin + i < rank && first + e < rank;
                core[i][e] = there ? rows[(begin + i) * rank + first + e] : 0.0f;
            }
        }
    }

    __device__ __forceinline__ void fetch(const LinearAdaptedParams &p, i32 adapter) {
        scaling = adapter < 0 ? 0.0f : p.scaling[adapter];
        fetch_core(p, adapter, 0);
    }
};

// Leaves g and each token's factor, once all parts of h are there.
__device__ __forceinline__ void gather(const LinearAdaptedParams &p, AdapterSpace &space, TokenCoefficients &own) {
    static_assert(EACH % 2 == 0 && EACH <= 8 && RANK % CORE_ROWS == 0, "neighbours, of one eight");
    u32 thread = threadIdx.x - ADAPTER_FIRST, lane = thread % 32;
    u32 token = thread / SHARERS, first = thread % SHARERS * EACH;
    i32 place = space.place[token];
    cluster_barrier_wait(&space.shrunk, 0);
    f32 h[EACH] = {}, g[EACH], greatest = 0.0f;
    u32 eight = token / 16 * RANK_EIGHTS + first / 8, holder = token % 8 * 4;
#pragma unroll
    for (u32 part = 0; part < H_PARTS; part++) {
#pragma unroll
        for (u32 e = 0; e < EACH; e += 2) {
            const f32 *four = reinterpret_cast<const f32 *>(&space.h[part][eight][holder + (first + e) % 8 / 2]);
            float2 two = *reinterpret_cast<const float2 *>(four + token / 8 % 2 * 2);
            h[e] += two.x;
            h[e + 1] += two.y;
        }
    }
#pragma unroll
    for (u32 e = 0; e < EACH; e++) {
        g[e] = p.core ? 0.0f : h[e];
    }
    if (p.core) {
#pragma unroll
        for (u32 begin = 0; begin < RANK; begin += CORE_ROWS) {
            if (begin > 0) {
                own.fetch_core(p, own_adapter(space), begin);
            }
#pragma unroll
            for (u32 i = 0; i < CORE_ROWS; i++) {
                f32 row = __shfl_sync(WHOLE_WARP, h[(begin + i) % EACH], lane / SHARERS * SHARERS + (begin + i) / EACH);
#pragma unroll
                for (u32 e = 0; e < EACH; e++) {
                    g[e] += row * own.core[i][e];
                }
            }
        }
    }
#pragma unroll
    for (u32 e = 0; e < EACH; e++) {
        greatest = fmaxf(greatest, fabsf(g[e]));
    }
#pragma unroll
    for (u32 distance = SHARERS / 2; distance > 0; distance /= 2) {
        greatest = fmaxf(greatest, __shfl_xor_sync(WHOLE_WARP, greatest, distance));
    }
    u32 exponent = exponent_below(greatest);
#pragma unroll
    for (u32 e = 0; e < EACH; e += 2) {
        u32 two = narrow2<element>(g[e] * inverse_power(exponent), g[e + 1] * inverse_power(exponent));
        *reinterpret_cast<u32 *>(&space.g[token][first + e]) = two;
    }
    if (thread % SHARERS == 0) {
        space.factor[token] = place < 0 ? 0.0f : own.scaling * power(exponent) * space.table_scale[place];
    }
}

// Of the adapters' warpgroup, to the kernel's end.
template <bool SPLIT> __device__ __forceinline__ void skinny_adapters(const LinearAdaptedParams &p, AdapterSpace &space, i32 adapter) {
    SkinnyWork<false, SPLIT> work(p.gemm, p.tile_rows);
    bool has_outputs = !FIRST_HAS_OUTPUTS || work.rank == 0;
    // They read no stages: nobody waits for them where the product's sums take their place.
    cluster_arrive();
    u32 count = read_tokens(space, adapter), phase = 1;
    named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
    if (SPLIT && has_outputs && threadIdx.x == ADAPTER_FIRST) {
        expect_rows(space, count);
    }
    TokenCoefficients own;
    bool first = true;
    work.each([&](u64 row) {
        mbarrier_wait(&space.taken, phase);
        phase ^= 1;
        auto ask = [&] {
            fetch_codes(p, space, count, row);
            if (SPLIT) {
                own.fetch(p, own_adapter(space));
            }
        };
        if (first && count > 0) {
            fill_tables(p, space, count, ask);
            named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
        } else {
            ask();
        }
        cp_async_wait<0>();
        __syncwarp();
        if (p.output.bits == EACH_COLUMN) {
            decode_rows<true>(p, space, count);
        } else {
            decode_rows<false>(p, space, count);
        }
        if constexpr (!SPLIT) {
            // Decoding more rows leaves no registers for them before.
            if (first) {
                own.fetch(p, own_adapter(space));
                gather(p, space, own);
            }
            mbarrier_arrive(&space.ready);
        }
        first = false;
    });
    cluster_wait();
    if constexpr (SPLIT) {
        // The product's sums are on their way meanwhile: it goes on once everybody has come here.
        cluster_arrive();
        if (has_outputs) {
            gather(p, space, own);
            cluster_barrier_wait(&space.sent, 0);
            mbarrier_arrive(&space.ready);
        }
        cluster_wait();
    }
}
