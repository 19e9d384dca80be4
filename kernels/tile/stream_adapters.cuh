// What adapters add to a product of few rows, in the same launch: a warp group of its own works beside the stream of W and leaves what
// the product's warps multiply at their end, a step of mma for each adapter.
//
//   project   A few blocks compute h = x·V, each over a part of K, leave it in the workspace, in the second-level cache, and count.
//   decode    Each block decodes its own rows of U, of all adapters of the batch, into shared memory, by a table of each's values in 16 bits.
//   gather    Each block adds up h in the order of the parts, turns it by the core and leaves g in 16 bits.
//   add       The warps that hold the sums of the product multiply U by g. An adapter's products reach its own tokens' sums alone: they
//             are chosen, not multiplied by zero, so that values that are no numbers harm nobody else.
//
// f16 has few exponents: a power of two is taken out of each token's g and of each adapter's codebook, and comes back in f32. Blocks
// wait for each other, so the host starts as many as fit at once.
//
// Besides what stream_gemm.cuh wants the host defines RANK (16, 32, 64: at least that of the factors), PUBLISHERS and ADAPTER_BYTES.
#pragma once

#include "tile/stream_codes.cuh"

// Of the adapters' warps: adapters of the batch, and which tokens have them. Gives this lane's token's adapter and how many there are.
__device__ __forceinline__ i32 read_tokens(const LinearAdaptedParams &p, AdapterSpace &space, u32 &count) {
    u32 lane = threadIdx.x % 32, below = (1u << lane) - 1;
    // The adapters follow two counts. Codes of no bits add nothing, and there may be none.
    i32 adapter = lane < p.gemm.rows && p.output.bits ? p.index[2 + lane] : -1;
    u32 same = __match_any_sync(WHOLE_WARP, adapter);
    u32 firsts = __ballot_sync(WHOLE_WARP, adapter >= 0 && (same & below) == 0);
    i32 place = adapter < 0 ? -1 : __popc(firsts & ((1u << (__ffs(same) - 1)) - 1));
    count = __popc(firsts);
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
    return adapter;
}

// Two rows of V, in one column: mma's B takes neighbours along K together.
__device__ __forceinline__ u32 two_rows(const element *v, u32 rank) { return v[0].bits | u32(v[rank].bits) << 16; }

// Leaves part `own` of `parts` of h = x·V in the workspace and counts it. A lane takes 8 neighbouring elements of x as two steps of
// mma's A: the k index of mma may be any order of K, and V's rows follow it. Here and below loads stand without branches between
// them, from a place that is there where theirs is not, so that all are under way at once.
__device__ __forceinline__ void project_part(const LinearAdaptedParams &p, AdapterSpace &space, i32 adapter, u32 own, u32 parts) {
    // As many steps under way as registers hold.
    constexpr u32 TILES = TOKENS / 16, STEPS_AT_ONCE = RANK == 16 ? 2 : 1;
    u32 thread = threadIdx.x - ADAPTER_FIRST, lane = thread % 32, warp = thread / 32, rank = p.input.rank;
    i32 basis = adapter < 0 ? -1 : p.input.basis_of ? p.input.basis_of[adapter] : 0;
    // A lane's sums: of rows 8 apart, two neighbouring ranks of each eight.
    float2 *all = reinterpret_cast<float2 *>(&space.u), *mine = all + (warp * TOKENS + lane / 4) * RANK / 2 + lane % 4;
    u32 bare = ~__ballot_sync(WHOLE_WARP, basis >= 0);
#pragma unroll
    for (u32 i = 0; i < TILES * RANK / 4; i++) {
        u32 row = i / (RANK / 8) * 8, n = i % (RANK / 8);
        if (bare >> (row + lane / 4) & 1) {
            mine[row * RANK / 2 + n * 4] = make_float2(0.0f, 0.0f);
        }
    }
#pragma unroll 1
    for (u32 left = ~bare; left;) {
        i32 which = __shfl_sync(WHOLE_WARP, basis, __ffs(left) - 1);
        u32 tokens = __ballot_sync(WHOLE_WARP, basis == which);
        left &= ~tokens;
        const element *v = p.input.values + u64(which) * p.input.d * rank;
        f32 sum[TILES][RANK / 8][4] = {};
#pragma unroll STEPS_AT_ONCE
        for (u64 start = own * 128 + warp * 32; start < p.gemm.depth; start += parts * 128) {
            // K is whole eights.
            u64 k = start + lane % 4 * 8;
            bool inside = k < p.gemm.depth;
            uint4 x[TILES][2];
#pragma unroll
            for (u32 i = 0; i < 2 * TILES; i++) {
                u32 token = i * 8 + lane / 4;
                bool there = inside && token < p.gemm.rows;
                uint4 eight = *reinterpret_cast<const uint4 *>(p.gemm.x + (there ? token * p.gemm.x_stride + k : 0));
                x[i / 2][i % 2] = there ? eight : make_uint4(0, 0, 0, 0);
            }
#pragma unroll STEPS_AT_ONCE
            for (u32 step = 0; step < 2; step++) {
                u32 b[RANK / 8][2];
#pragma unroll
                for (u32 i = 0; i < RANK / 4; i++) {
                    u32 half = i % 2, column = i / 2 * 8 + lane / 4;
                    bool there = inside && column < rank;
                    u32 two = two_rows(v + (there ? (k + step * 4 + half * 2) * rank + column : 0), rank);
                    b[i / 2][half] = there ? two : 0;
                }
#pragma unroll
                for (u32 tile = 0; tile < TILES; tile++) {
                    uint4 low = x[tile][0], high = x[tile][1];
                    const u32 a[4] = {step ? low.z : low.x, step ? high.z : high.x, step ? low.w : low.y, step ? high.w : high.y};
#pragma unroll
                    for (u32 n = 0; n < RANK / 8; n++) {
                        mma_m16n8k16<element>(sum[tile][n], a, b[n]);
                    }
                }
            }
        }
        // A token belongs to one basis.
#pragma unroll
        for (u32 i = 0; i < TILES * RANK / 4; i++) {
            u32 tile = i / (RANK / 4), half = i / (RANK / 8) % 2, n = i % (RANK / 8), row = tile * 16 + half * 8;
            if (tokens >> (row + lane / 4) & 1) {
                mine[row * RANK / 2 + n * 4] = make_float2(sum[tile][n][2 * half], sum[tile][n][2 * half + 1]);
            }
        }
    }
    named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
#pragma unroll
    for (u32 at = thread; at < TOKENS * RANK; at += ADAPTER_THREADS) {
        f32 total = 0.0f;
#pragma unroll
        for (u32 from = 0; from < ADAPTER_WARPS; from++) {
            total += reinterpret_cast<const f32 *>(all)[from * TOKENS * RANK + at];
        }
        p.partial[u64(own) * TOKENS * RANK + at] = total;
    }
    named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
    if (thread == 0) {
        count_up(p.arrived);
    }
}

// Leaves g and each token's factor, once all parts of h are there. `waiters`: the blocks that come here.
__device__ __forceinline__ void gather(const LinearAdaptedParams &p, AdapterSpace &space, u32 parts, u32 waiters) {
    constexpr u32 SHARERS = ADAPTER_THREADS / TOKENS, EACH = RANK / SHARERS;
    // As many loads under way as registers hold.
    constexpr u32 PARTS_AT_ONCE = RANK == 64 ? 8 : PUBLISHERS, CORE_ROWS = 16 / EACH;
    u32 thread = threadIdx.x - ADAPTER_FIRST, rank = p.input.rank;
    // Fetched first: nothing of it depends on the other blocks.
    u32 token = thread / SHARERS, first = thread % SHARERS * EACH;
    i32 place = space.place[token], adapter = place < 0 ? -1 : space.adapter[place];
    f32 scaling = adapter < 0 ? 0.0f : p.scaling[adapter];
    if (thread == 0) {
        wait_for_count(p.arrived, parts);
    }
    named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
#pragma unroll 1
    for (u32 at = thread * 2; at < TOKENS * RANK; at += ADAPTER_THREADS * 2) {
        float2 total = make_float2(0.0f, 0.0f);
#pragma unroll 1
        for (u32 begin = 0; begin < PUBLISHERS; begin += PARTS_AT_ONCE) {
            float2 part[PARTS_AT_ONCE];
#pragma unroll
            for (u32 n = 0; n < PARTS_AT_ONCE; n++) {
                u32 from = begin + n < parts ? begin + n : 0;
                part[n] = __ldcg(reinterpret_cast<const float2 *>(p.partial + u64(from) * TOKENS * RANK + at));
            }
#pragma unroll
            for (u32 n = 0; n < PARTS_AT_ONCE; n++) {
                total.x += begin + n < parts ? part[n].x : 0.0f;
                total.y += begin + n < parts ? part[n].y : 0.0f;
            }
        }
        *reinterpret_cast<float2 *>(&space.h[0][0] + at) = total;
    }
    named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
    f32 g[EACH], greatest = 0.0f;
#pragma unroll
    for (u32 e = 0; e < EACH; e++) {
        g[e] = p.core ? 0.0f : space.h[token][first + e];
    }
    if (p.core && adapter >= 0) {
        const f32 *core = p.core + u64(u32(adapter)) * rank * rank;
#pragma unroll CORE_ROWS
        for (u32 i = 0; i < rank; i++) {
            f32 h = space.h[token][i];
#pragma unroll
            for (u32 e = 0; e < EACH; e++) {
                f32 q = core[first + e < rank ? i * rank + first + e : 0];
                g[e] += first + e < rank ? h * q : 0.0f;
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
    // The last to pass leaves the counter as it was found.
    if (thread == 0 && count_up(p.arrived) == parts + waiters - 1) {
        *p.arrived = 0;
    }
}

// Of the adapters' warp group, beside the product.
template <bool SPLIT> __device__ __forceinline__ void stream_adapters(const LinearAdaptedParams &p, AdapterSpace &space) {
    StreamWork<false, SPLIT> work(p.gemm, p.tile_rows);
    u32 count;
    i32 adapter = read_tokens(p, space, count);
    named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
    // Where K is split, blocks of one rank alone may have outputs: the others project.
    constexpr bool HALF = SPLIT && TOKEN_BLOCKS <= 2;
    u32 blocks = HALF ? gridDim.x / STREAM_CLUSTER : gridDim.x, steps = u32((p.gemm.depth + 127) / 128);
    u32 parts = steps < PUBLISHERS ? steps : PUBLISHERS;
    parts = parts < blocks ? parts : blocks;
    u32 own = HALF ? blockIdx.x / STREAM_CLUSTER : blockIdx.x;
    if (count > 0 && own < parts && (!HALF || work.rank == 1)) {
        project_part(p, space, adapter, own, parts);
    }
    if (HALF && work.rank > 0) {
        return;
    }
    fill_tables(p, space, count);
    named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
    u32 phase = 1;
    bool gathered = count == 0;
    work.each([&](u64 row) {
        mbarrier_wait(&space.taken, phase);
        phase ^= 1;
        if (p.output.bits == EACH_COLUMN) {
            decode_rows<true>(p, space, count, row);
        } else {
            decode_rows<false>(p, space, count, row);
        }
        if (!gathered) {
            gather(p, space, parts, blocks);
            gathered = true;
        }
        mbarrier_arrive(&space.ready);
    });
}
