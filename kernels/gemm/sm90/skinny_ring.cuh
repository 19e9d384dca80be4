// A ring of stages of W and X in shared memory, for products of few rows (gemm/sm90/skinny.cuh): what a block takes of a product, and the threads that
// bring it.
//
// The host defines TOKENS (16, 32, 64, 128: at least the rows of X), SKINNY_ROWS (of W in a stage: 128; 64 do where K is split, 96 for tiles
// of no more), SKINNY_STAGES, SKINNY_CLUSTER (2 or 4), SKINNY_BESIDE (bytes of a stage for what else is to come with X), and SKINNY_SPLIT, which
// says whether K is split in the kernel's last product.
#pragma once

#include "ptx/cluster.cuh"
#include "ptx/copy.cuh"
#include "gemm/gemm_params.cuh"

// Whether the gate of a gated product has rows of its own (SKINNY_PAIRED), which `x_last_map` is the map of.
#ifdef SKINNY_PAIRED
constexpr bool PAIRED = true;
#else
constexpr bool PAIRED = false;
#endif

constexpr int SKINNY_THREADS = 384, SKINNY_LOADER = 256, TOKEN_BLOCKS = TOKENS / 8;
constexpr u32 LINE = 128;   // bytes of a row of a stage: the width of the swizzle
constexpr u32 W_PART = SKINNY_ROWS * LINE, X_PART = TOKENS * LINE;
// Two parts of either: 128 elements of K, or 64 of both weights of a gated product.
constexpr u32 SKINNY_STAGE = 2 * (W_PART + X_PART) + SKINNY_BESIDE;

// A ring of stages, as one of its users goes round it.
struct SkinnyRing {
    char *tiles;
    u64 *full, *empty_w, *empty_x;
    u32 stage = 0, phase = 0;

    // `x_readers`: of a block, warps or warpgroups that read X and let go of it.
    // `early`: what the thread that brings W does before the blocks of the cluster have met.
    template <class Early> __device__ __forceinline__ SkinnyRing(char *shared, u32 x_readers, const Early &early) {
        tiles = shared + (1024 - shared_address(shared) % 1024) % 1024;
        full = (u64 *)(tiles + SKINNY_STAGES * SKINNY_STAGE);
        empty_w = full + SKINNY_STAGES;
        empty_x = empty_w + SKINNY_STAGES;
        if (threadIdx.x == SKINNY_LOADER) {
            for (u32 stage = 0; stage < SKINNY_STAGES; stage++) {
                // The one that brings W and the one that brings X.
                mbarrier_init(&full[stage], 2);
                // W is read by each warp for itself, X by its readers in every block that this one brings it to.
                mbarrier_init(&empty_w[stage], 8);
                mbarrier_init(&empty_x[stage], x_readers * SKINNY_CLUSTER);
            }
            fence_mbarrier_init();
        }
        cluster_arrive_relaxed();
        if (threadIdx.x == SKINNY_LOADER) {
            early(*this);
        }
        __syncwarp();
        cluster_wait();
    }

    __device__ __forceinline__ void advance() {
        if (++stage == SKINNY_STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }

    __device__ __forceinline__ char *w(u32 part) const { return tiles + stage * SKINNY_STAGE + part * W_PART; }
    __device__ __forceinline__ char *x(u32 part) const { return tiles + stage * SKINNY_STAGE + 2 * W_PART + part * X_PART; }
    __device__ __forceinline__ char *beside() const { return x(2); }
};

// How K is split: not at all, over the blocks of a cluster and their warpgroups, or over the warpgroups of each block alone.
enum SkinnyCut : u32 { WHOLE, BY_BLOCKS, BY_GROUPS };

// Of a product in a launch of its own, whose clusters all have a share in it: a share is the rows of a tile. Of one among others there is another
// (gemm/sm90/skinny_list.cu).
__device__ __forceinline__ u64 cluster_of(u32) { return blockIdx.x / SKINNY_CLUSTER; }
__device__ __forceinline__ u64 clusters_of(u32) { return gridDim.x / SKINNY_CLUSTER; }

// What a block takes of a product.
template <bool GATED, u32 CUT> struct SkinnyWork {
    static constexpr bool SPLIT = CUT == BY_BLOCKS;
    static constexpr u32 DEPTH = GATED ? 64 : 128;
    u64 first, next, columns;
    u32 begin, end, rank;
    u32 tile_rows;

    template <class Share>
    __device__ __forceinline__ SkinnyWork(const GemmParams &p, Share share) : columns(p.columns), rank(cluster_rank()), tile_rows(share) {
        u64 cluster = cluster_of(share), clusters = clusters_of(share), tiles = SPLIT ? 1 : SKINNY_CLUSTER;
        first = cluster * tiles * tile_rows;
        next = clusters * tiles * tile_rows;
        u32 steps = u32((p.depth + DEPTH - 1) / DEPTH);
        begin = SPLIT ? steps * rank / SKINNY_CLUSTER : 0;
        end = SPLIT ? steps * (rank + 1) / SKINNY_CLUSTER : steps;
    }

    // Steps of the first tile that `skinny_early` asks for.
    __device__ __forceinline__ u32 early() const {
        u32 steps = first < columns ? end - begin : 0;
        return steps < SKINNY_STAGES ? steps : SKINNY_STAGES;
    }

    // Calls with the first row of W of each tile of this block. Blocks of a cluster go together, if need be past the last row.
    template <class Each> __device__ __forceinline__ void each(const Each &each) const {
        for (u64 start = first; start < columns; start += next) {
            // The rank anew: held over a gated product's sums it takes a register that is not there.
            each(SPLIT ? start : start + cluster_rank() * tile_rows);
        }
    }

    // Of the first of them.
    __device__ __forceinline__ u64 row() const { return SPLIT ? first : first + rank * tile_rows; }
};

// What a stage holds of W.
template <bool GATED> __device__ __forceinline__ void skinny_weights_step(const GemmParams &p, u32 tile_rows, const SkinnyRing &ring, u64 policy, i32 k, i32 row) {
    u64 *full = &ring.full[ring.stage];
    mbarrier_arrive_expect(full, 2 * tile_rows * LINE);
    tma_load_2d_by(policy, ring.w(0), &p.w_map, full, k, row);
    tma_load_2d_by(policy, ring.w(1), GATED ? &p.gate_map : &p.w_map, full, GATED ? k : k + 64, row);
}

// What comes with X: nothing. Adapters have a basis (gemm/sm90/skinny_lora.cuh).
struct NothingBeside {
    __device__ __forceinline__ u32 bytes() const { return 0; }
    __device__ __forceinline__ void bring(const SkinnyRing &, i32) {}
};

// What a stage holds of X. `alone`: all of it for this block; otherwise this block's part of it for each block of the cluster.
template <bool GATED, class Beside>
__device__ __forceinline__ void skinny_tokens_step(const GemmParams &p, const SkinnyRing &ring, bool alone, i32 k, Beside &beside) {
    // A block's share of the parts, and whole patterns of the swizzle.
    constexpr u32 PARTS = GATED && !PAIRED ? 1 : 2, SHARE = TOKENS * PARTS / SKINNY_CLUSTER < 8 ? 8 : TOKENS * PARTS / SKINNY_CLUSTER;
    static_assert(TOKENS % SHARE == 0, "a share lies in one part");
    u64 *full = &ring.full[ring.stage];
    mbarrier_arrive_expect(full, PARTS * X_PART + beside.bytes());
    beside.bring(ring, k);
#pragma unroll
    for (u32 piece = 0; piece < PARTS * TOKENS / SHARE; piece++) {
        u32 part = piece * SHARE / TOKENS, token = piece * SHARE % TOKENS;
        const tensor_map *map = PAIRED && part > 0 ? &p.x_last_map : &p.x_map;
        i32 column = PAIRED ? k : k + i32(part) * 64;
        if (alone) {
            tma_load_2d(ring.x(part) + token * LINE, map, full, column, token);
        } else if (piece == cluster_rank()) {
            tma_load_2d_multicast(ring.x(part) + token * LINE, map, full, column, token, (1 << SKINNY_CLUSTER) - 1);
        }
    }
}

// Of one thread, before the blocks have met: the first stages, W and X, of this block alone. `ahead`: W is asked for before the launch before has
// ended, and X behind all of it then.
template <bool GATED, u32 CUT, class Share>
__device__ __forceinline__ void skinny_early(const GemmParams &p, Share tile_rows, const SkinnyRing &ring, u64 policy, bool ahead) {
    SkinnyWork<GATED, CUT> work(p, tile_rows);
    NothingBeside nothing;
    auto ask = [&](bool for_weights, bool for_tokens) {
        SkinnyRing at = ring;
        for (u32 step = work.begin; step < work.begin + work.early(); step++) {
            i32 k = i32(step * work.DEPTH);
            if (for_weights) {
                skinny_weights_step<GATED>(p, tile_rows, at, policy, k, i32(work.row()));
            }
            if (for_tokens) {
                skinny_tokens_step<GATED>(p, at, true, k, nothing);
            }
            at.advance();
        }
    };
    ask(true, !ahead);
    if (ahead) {
        grid_wait();
        ask(false, true);
    }
}

// Of one thread: brings W, as far ahead as there are stages. `early`: the first stages are on their way.
template <bool GATED, u32 CUT, class Share>
__device__ __forceinline__ void skinny_weights(const GemmParams &p, Share tile_rows, SkinnyRing &ring, u64 policy, bool early = false) {
    SkinnyWork<GATED, CUT> work(p, tile_rows);
    u32 left = early ? work.early() : 0;
    work.each([&](u64 row) {
        for (u32 step = work.begin; step < work.end; step++) {
            if (left > 0) {
                left--;
            } else {
                mbarrier_wait(&ring.empty_w[ring.stage], ring.phase ^ 1);
                skinny_weights_step<GATED>(p, tile_rows, ring, policy, i32(step * work.DEPTH), i32(row));
            }
            ring.advance();
        }
    });
}

// Of one thread: brings X, and what comes with it. `early` as above.
template <bool GATED, u32 CUT, class Beside = NothingBeside, class Share>
__device__ __forceinline__ void skinny_tokens(const GemmParams &p, Share tile_rows, SkinnyRing &ring, bool early = false, Beside beside = Beside()) {
    SkinnyWork<GATED, CUT> work(p, tile_rows);
    u32 left = early ? work.early() : 0;
    work.each([&](u64) {
        for (u32 step = work.begin; step < work.end; step++) {
            if (left > 0) {
                left--;
            } else {
                mbarrier_wait(&ring.empty_x[ring.stage], ring.phase ^ 1);
                skinny_tokens_step<GATED>(p, ring, CUT == BY_BLOCKS, i32(step * work.DEPTH), beside);
            }
            ring.advance();
        }
    });
}
