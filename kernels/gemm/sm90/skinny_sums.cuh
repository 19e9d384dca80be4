// Of a product of few rows with adapters (gemm/sm90/skinny_lora.cuh): what the adapters' warps leave in shared memory, and how the product's
// warps add it to their sums.
#pragma once

#include "tile/codes.cuh"
#include "tile/power.cuh"
#include "gemm/sm90/skinny.cuh"
#include "gemm/skinny_lora_params.cuh"

constexpr u32 ADAPTER_FIRST = SKINNY_THREADS, ADAPTER_THREADS = 128, ADAPTER_WARPS = ADAPTER_THREADS / 32, ADAPTER_BARRIER = 2;
constexpr u32 RANK_STEPS = RANK / 16;
constexpr u32 WHOLE_WARP = 0xffffffffu;

// Of the two warps that compute h: the first thread, rows of V that each takes of a stage's 128, 16-row tiles of tokens and eights of ranks.
constexpr u32 SHRINK_FIRST = SKINNY_THREADS - 64, SHRINK_WARPS = 2, SHRINK_ROWS = 64, TOKEN_TILES = TOKENS / 16, RANK_EIGHTS = RANK / 8;
// Where K is split and there are few tokens, the first block of a cluster has all outputs.
constexpr bool FIRST_HAS_OUTPUTS = SKINNY_SPLIT && TOKEN_BLOCKS <= 2;
// Parts of h: a warp's of each block that has a part of K.
constexpr u32 H_PARTS = SHRINK_WARPS * (SKINNY_SPLIT ? SKINNY_CLUSTER : 1);

static_assert(TOKENS <= 32, "a lane has a token");

struct AdapterSpace {
    // For each adapter of the batch and 16 ranks the rows of U, in 16-byte pieces that are swizzled. First the codes lie there.
    alignas(128) element u[TOKENS * RANK_STEPS][SKINNY_ROWS * 16];
    alignas(16) float4 h[H_PARTS][TOKEN_TILES * RANK_EIGHTS][32]; // as mma leaves it to the lanes
    alignas(16) element g[TOKENS][RANK + 8];
    alignas(4) element table[TOKENS][TABLE_ENTRIES]; // each adapter's values, scaled: 128 sums of both stages, 28 of one, 4 of no bits
    u32 column[TOKENS * RANK];          // of each column of codes: in which bit of those fetched it starts, and its width in the low byte
    f32 table_scale[TOKENS];
    f32 factor[TOKENS];                 // of each token's products
    i32 adapter[TOKENS];                // of each place: adapters of the batch, in the order of their first tokens
    i32 place[TOKENS];                  // of each token; -1 without an adapter
    u32 places[TOKEN_BLOCKS];           // bit i: some of the eight tokens have place i
    u64 ready, taken;                   // mbarriers: a tile's rows of U and g are there; they have been read
    u64 shrunk;                      // all parts of h are there
    u64 sent;                           // rows of U that other blocks decoded are there
};

static_assert(sizeof(AdapterSpace) <= ADAPTER_BYTES, "the host's size is another");

// Behind the stages and their barriers. One thread readies its barriers before the ring's constructor has everyone wait.
__device__ __forceinline__ AdapterSpace &adapter_space(char *shared) {
    static_assert(SKINNY_STAGES * 24 <= 256, "barriers of the ring");
    char *tiles = shared + (1024 - shared_address(shared) % 1024) % 1024;
    AdapterSpace &space = *reinterpret_cast<AdapterSpace *>(tiles + SKINNY_STAGES * SKINNY_STAGE + 256);
    if (threadIdx.x == 0) {
        mbarrier_init(&space.ready, ADAPTER_THREADS);
        mbarrier_init(&space.taken, 8);
        mbarrier_init(&space.shrunk, 1);
        mbarrier_init(&space.sent, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect(&space.shrunk, sizeof(space.h));
    }
    return space;
}

// In elements: where 16-byte piece `piece` of a row of U lies. Eight rows that ldmatrix reads are in different banks.
__device__ __forceinline__ u32 u_place(u32 row, u32 piece) { return row * 16 + (piece ^ row / 4 % 2) * 8; }

// The part of the adapters in the epilogue of the product's warps.
struct SkinnySums {
    static constexpr bool ADDS = true;
    AdapterSpace &space;
    u32 phase = 0;

    __device__ __forceinline__ void begin() { mbarrier_wait(&space.ready, phase); }

    __device__ __forceinline__ void end() {
        phase ^= 1;
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            mbarrier_arrive(&space.taken);
        }
    }

    // What comes to a thread's four sums, as stream_outputs has them, of a warp's 16 rows from `inside` of the tile on.
    __device__ __forceinline__ void of(u32 inside, u32 block, f32 (&sum)[4]) const {
        u32 lane = threadIdx.x % 32, left = space.places[block];
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            sum[e] = 0.0f;
        }
        if (!left) {
            return;
        }
        u32 g[RANK_STEPS][2];
#pragma unroll
        for (u32 step = 0; step < RANK_STEPS; step++) {
            ldmatrix_x2(g[step], shared_address(&space.g[block * 8 + lane % 8][step * 16 + lane / 8 % 2 * 8]));
        }
        i32 place[2];
        f32 factor[2];
#pragma unroll
        for (u32 e = 0; e < 2; e++) {
            u32 token = block * 8 + lane % 4 * 2 + e;
            place[e] = space.place[token];
            factor[e] = space.factor[token];
        }
        // Some adapters at a time, without a branch between them: what is left over multiplies the last one again, for nobody.
        constexpr u32 AT_ONCE = 4;
        while (left) {
            i32 which[AT_ONCE];
            u32 a[AT_ONCE][RANK_STEPS][4];
#pragma unroll
            for (u32 n = 0; n < AT_ONCE; n++) {
                which[n] = left ? __ffs(left) - 1 : -1;
                left &= left - 1;
                u32 from = which[n] < 0 ? which[0] : which[n];
#pragma unroll
                for (u32 step = 0; step < RANK_STEPS; step++) {
                    ldmatrix_x4(a[n][step], shared_address(&space.u[from * RANK_STEPS + step][u_place(inside + lane % 16, lane / 16)]));
                }
            }
#pragma unroll
            for (u32 n = 0; n < AT_ONCE; n++) {
                f32 own[4] = {};
#pragma unroll
                for (u32 step = 0; step < RANK_STEPS; step++) {
                    mma_m16n8k16<element>(own, a[n][step], g[step]);
                }
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    if (which[n] >= 0 && place[e % 2] == which[n]) {
                        sum[e] = factor[e % 2] * own[e];
                    }
                }
            }
        }
    }
};
