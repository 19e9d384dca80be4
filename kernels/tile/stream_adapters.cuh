// What adapters add to a product of few rows, in the same launch: warps of their own work beside the stream of W and leave what the
// product's warps multiply at their end, a step of mma for each adapter.
//
//   project   Two warps of each block read X in the ring's stages as the product does, bring V beside it, and compute h = x·V over the
//             block's part of K. Where that is a half, the cluster's blocks send each other their sums.
//   decode    A warp group brings its block's codes of U, of all adapters of the batch, at once, and decodes them in shared memory, by a
//             table of each adapter's values in 16 bits.
//   gather    It adds up h in the order of the parts, turns it by the core and leaves g in 16 bits, while the product's sums are exchanged.
//   add       The warps that hold the sums of the product multiply U by g. An adapter's products reach its own tokens' sums alone: they
//             are chosen, not multiplied by zero, so that values that are no numbers harm nobody else.
//
// No block waits for another cluster, and nothing but Y is written. Of reads that depend on each other there are two: the tokens' adapters, then
// everything else. While W streams each takes as long as the bytes that are under way before it.
//
// f16 has few exponents: a power of two is taken out of each token's g and of each adapter's codebook, and comes back in f32.
//
// Besides what stream_gemm.cuh wants the host defines RANK (16, 32: at least that of the factors, a multiple of 8), BASIS_STAGES (of V) and
// ADAPTER_BYTES.
#pragma once

#include "tile/stream_codes.cuh"

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

// Of one warp: a stage of V, whose rows lie one after another. Past K there are zeros, as TMA leaves them in X.
__device__ __forceinline__ void fetch_basis(const LinearAdaptedParams &p, AdapterSpace &space, u32 warp, u32 slot, u32 step) {
    u32 lane = threadIdx.x % 32, rank = p.input.rank;
    u64 first = u64(step) * 128 + warp * PROJECT_ROWS;
    u32 rows = first >= p.gemm.depth ? 0 : p.gemm.depth - first < PROJECT_ROWS ? u32(p.gemm.depth - first) : PROJECT_ROWS;
    element *to = space.v[warp][slot];
    // K and the rank are whole eights: 16 bytes at a time.
    for (u32 at = rows * rank / 8 + lane; at < PROJECT_ROWS * rank / 8; at += 32) {
        reinterpret_cast<uint4 *>(to)[at] = make_uint4(0, 0, 0, 0);
    }
    __syncwarp();
    if (lane == 0) {
        mbarrier_arrive_expect(&space.basis[warp][slot], rows * rank * 2);
        if (rows > 0) {
            bulk_load(to, p.input.values + first * rank, rows * rank * 2, &space.basis[warp][slot]);
        }
    }
}

// Of two warps: h of the block's part of K, each over half of every stage.
template <bool SPLIT> __device__ __forceinline__ void stream_project(const LinearAdaptedParams &p, AdapterSpace &space, StreamRing &ring) {
    StreamWork<false, SPLIT> work(p.gemm, p.tile_rows);
    u32 lane = threadIdx.x % 32, warp = (threadIdx.x - PROJECT_FIRST) / 32, rank = p.input.rank, slot = 0, phase = 0;
    f32 sum[TOKEN_TILES][RANK_EIGHTS][4] = {};
#pragma unroll 1
    for (u32 i = 0; i < BASIS_STAGES && work.begin + i < work.end; i++) {
        fetch_basis(p, space, warp, i, work.begin + i);
    }
    bool first = true;
    work.each([&](u64) {
#pragma unroll 1
        for (u32 step = work.begin; step < work.end; step++) {
            mbarrier_wait(&ring.full[ring.stage], ring.phase);
            if (first) {
                mbarrier_wait(&space.basis[warp][slot], phase);
                u32 x = shared_address(ring.x(warp)), v = shared_address(space.v[warp][slot]);
#pragma unroll
                for (u32 pair = 0; pair < 2; pair++) {
                    u32 a[2][TOKEN_TILES][4];
#pragma unroll
                    for (u32 i = 0; i < 2 * TOKEN_TILES; i++) {
                        u32 token = i % TOKEN_TILES * 16 + lane % 16, piece = (pair * 2 + i / TOKEN_TILES) * 2 + lane / 16;
                        ldmatrix_x4(a[i / TOKEN_TILES][i % TOKEN_TILES], x + token * LINE + (piece ^ token % 8) * 16);
                    }
#pragma unroll
                    for (u32 n = 0; n < RANK_EIGHTS; n++) {
                        if (n * 8 >= rank) {
                            break;
                        }
                        u32 both[4];
                        ldmatrix_x4_transposed(both, v + ((pair * 32 + lane) * rank + n * 8) * 2);
                        const u32 low[2] = {both[0], both[1]}, high[2] = {both[2], both[3]};
#pragma unroll
                        for (u32 tile = 0; tile < TOKEN_TILES; tile++) {
                            mma_m16n8k16<element>(sum[tile][n], a[0][tile], low);
                            mma_m16n8k16<element>(sum[tile][n], a[1][tile], high);
                        }
                    }
                }
                __syncwarp();
                if (step + BASIS_STAGES < work.end) {
                    fetch_basis(p, space, warp, slot, step + BASIS_STAGES);
                }
                if (++slot == BASIS_STAGES) {
                    slot = 0;
                    phase ^= 1;
                }
            }
            if (lane < STREAM_CLUSTER) {
                mbarrier_arrive_remote_relaxed(&ring.empty_x[ring.stage], SPLIT ? work.rank : lane);
            }
            ring.advance();
        }
        if (!first) {
            return;
        }
        first = false;
        u32 part = SPLIT ? work.rank * PROJECT_WARPS + warp : warp;
        u32 to = FIRST_HAS_OUTPUTS || SPLIT ? 0 : work.rank, end = FIRST_HAS_OUTPUTS ? 1 : SPLIT ? STREAM_CLUSTER : work.rank + 1;
        for (; to < end; to++) {
            u32 barrier = cluster_address(shared_address(&space.projected), to);
#pragma unroll
            for (u32 i = 0; i < TOKEN_TILES * RANK_EIGHTS; i++) {
                const f32(&own)[4] = sum[i / RANK_EIGHTS][i % RANK_EIGHTS];
                u32 place = cluster_address(shared_address(&space.h[part][i][lane]), to);
                cluster_store(place, make_float4(own[0], own[1], own[2], own[3]), barrier);
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

// Leaves g and each token's factor, once all parts of h are there. `scaling` is that of the thread's token.
__device__ __forceinline__ void gather(const LinearAdaptedParams &p, AdapterSpace &space, f32 scaling) {
    constexpr u32 EACH = RANK / SHARERS, CORE_ROWS = 32 / EACH < RANK ? 32 / EACH : RANK;
    static_assert(EACH % 2 == 0 && EACH <= 8 && RANK % CORE_ROWS == 0, "neighbours, of one eight");
    u32 thread = threadIdx.x - ADAPTER_FIRST, lane = thread % 32, rank = p.input.rank;
    u32 token = thread / SHARERS, first = thread % SHARERS * EACH;
    i32 place = space.place[token], adapter = own_adapter(space);
    // It does not depend on h.
    f32 core[CORE_ROWS][EACH];
    const f32 *rows = p.core + u64(u32(adapter < 0 ? 0 : adapter)) * rank * rank;
    auto fetch_core = [&](u32 begin) {
#pragma unroll
        for (u32 i = 0; i < CORE_ROWS; i++) {
#pragma unroll
            for (u32 e = 0; e < EACH; e++) {
                bool there = adapter >= 0 && begin + i < rank && first + e < rank;
                core[i][e] = there ? rows[(begin + i) * rank + first + e] : 0.0f;
            }
        }
    };
    if (p.core) {
        fetch_core(0);
    }
    cluster_barrier_wait(&space.projected, 0);
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
                fetch_core(begin);
            }
#pragma unroll
            for (u32 i = 0; i < CORE_ROWS; i++) {
                f32 row = __shfl_sync(WHOLE_WARP, h[(begin + i) % EACH], lane / SHARERS * SHARERS + (begin + i) / EACH);
#pragma unroll
                for (u32 e = 0; e < EACH; e++) {
                    g[e] += row * core[i][e];
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
        space.factor[token] = place < 0 ? 0.0f : scaling * power(exponent) * space.table_scale[place];
    }
}

// Of the adapters' warp group, to the kernel's end.
template <bool SPLIT> __device__ __forceinline__ void stream_adapters(const LinearAdaptedParams &p, AdapterSpace &space, i32 adapter) {
    StreamWork<false, SPLIT> work(p.gemm, p.tile_rows);
    bool reads = !FIRST_HAS_OUTPUTS || work.rank == 0;
    f32 scaling = 0.0f;
    // They read no stages: nobody waits for them where the product's sums take their place.
    cluster_arrive();
    if (reads) {
        u32 count = read_tokens(space, adapter), phase = 1;
        named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
        i32 own = own_adapter(space);
        scaling = own < 0 ? 0.0f : p.scaling[own];
        bool first = true;
        work.each([&](u64 row) {
            mbarrier_wait(&space.taken, phase);
            phase ^= 1;
            if (first && count > 0) {
                fill_tables(p, space, count, [&] { fetch_codes(p, space, count, row); });
                named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
            } else {
                fetch_codes(p, space, count, row);
            }
            cp_async_wait<0>();
            __syncwarp();
            if (p.output.bits == EACH_COLUMN) {
                decode_rows<true>(p, space, count);
            } else {
                decode_rows<false>(p, space, count);
            }
            if constexpr (!SPLIT) {
                if (first) {
                    gather(p, space, scaling);
                }
                mbarrier_arrive(&space.ready);
            }
            first = false;
        });
    }
    cluster_wait();
    if constexpr (SPLIT) {
        // The product's sums are on their way meanwhile: it goes on once everybody has come here.
        cluster_arrive();
        if (reads) {
            gather(p, space, scaling);
            mbarrier_arrive(&space.ready);
        }
        cluster_wait();
    }
}
