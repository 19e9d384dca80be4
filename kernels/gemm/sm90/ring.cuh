// The main loop of a product on the tensor cores of Hopper: stages that one warp fills by TMA, a ring of them in shared memory, and two
// warpgroups that multiply what is in them with wgmma, 64 rows each.
//
// The host defines the tiles: 128 rows, 64 elements of K a stage; and CLUSTER, the blocks that share something of them.
#pragma once

#include "ptx/cluster.cuh"
#include "ptx/copy.cuh"
#include "ptx/wgmma.cuh"

constexpr int WGMMA_ROWS = 128, WGMMA_DEPTH = 64, WGMMA_THREADS = 384;
constexpr u32 PANEL = WGMMA_DEPTH * 2;   // bytes of a row of a stage: the width of the swizzle
constexpr u32 GROUPS_BARRIER = 1, SUMS_BARRIER = 2;   // named barriers of both warpgroups
constexpr u32 OPEN_BARRIER = 5;   // and of all threads
constexpr u32 WGMMA_X_BYTES = WGMMA_ROWS * PANEL;

// d = (more ? d : 0) + a stage's products, of rows of PANEL bytes at descriptors x and w. They are under way then.
template <u32 N> __device__ __forceinline__ void multiply_stage(f32 (&d)[N / 2], u64 x, u64 w, bool more) {
    wgmma_fence();
#pragma unroll
    for (u32 k = 0; k < WGMMA_DEPTH / 16; k++) {
        // 16 elements are 32 bytes; addresses in descriptors count 16.
        wgmma_ss<element, N>(d, x + k * 2, w + k * 2, more || k > 0);
    }
    wgmma_commit();
}

// The ring: COUNT stages, each a tile of ROWS rows of X, then WIDTH rows of W. SHARERS: blocks that read what
// one of them brings. Where in it a thread is, a stage and its phase, are variables of the caller: as members they make the compiler
// order the loop's instructions in another way.
template <u32 WIDTH, u32 COUNT, u32 SHARERS = CLUSTER, u32 ROWS = WGMMA_ROWS> struct WgmmaRing {
    static constexpr u32 LENGTH = COUNT, X_BYTES = ROWS * PANEL, STAGE = X_BYTES + WIDTH * PANEL;
    // How many steps of a tile the second warpgroup leaves for when the first one's last has begun: outputs of one are written while the
    // other's products keep the tensor cores at work. Fewer than the stages, or the first would wait for one that the second holds.
    static constexpr u32 BEHIND = COUNT / 2 + 1;
    static_assert(BEHIND < COUNT, "the first warp group gets its last stages");

    char *tiles;
    u64 *full, *empty;   // a barrier a stage each

    __device__ __forceinline__ explicit WgmmaRing(char *shared) : tiles(shared + (1024 - shared_address(shared) % 1024) % 1024) {
        full = (u64 *)(tiles + COUNT * STAGE);
        empty = full + COUNT;
    }

    // By one thread, before the blocks of the cluster meet.
    __device__ __forceinline__ void init() const {
        for (u32 i = 0; i < COUNT; i++) {
            mbarrier_init(&full[i], 1);
            // The warpgroups, of 64 rows each, of every block that reads what this one brings.
            mbarrier_init(&empty[i], ROWS / 64 * SHARERS);
        }
        fence_mbarrier_init();
    }

    // To the next stage.
    static __device__ __forceinline__ void advance(u32 &stage, u32 &phase) {
        if (++stage == COUNT) {
            stage = 0;
            phase ^= 1;
        }
    }

    // Waits until the stage is free to be filled.
    __device__ __forceinline__ void wait_free(u32 stage, u32 phase) const { mbarrier_wait(&empty[stage], phase ^ 1); }

    // The barrier that is told when the stage is full, and now of how many bytes. By one thread.
    __device__ __forceinline__ u64 *expect(u32 stage, u32 bytes = STAGE) const {
        mbarrier_arrive_expect(&full[stage], bytes);
        return &full[stage];
    }

    // The stage's tile of X; that of W comes behind it.
    __device__ __forceinline__ char *x_tile(u32 stage) const { return tiles + stage * STAGE; }

    // Brings steps `begin` to `end` of K, `bytes` a stage: rows(x_tile, full, k) asks for what of X lies from element `k` on, weights(w_tile, full,
    // k) for that of W, by the one thread that `leads`; the rest of the first step's time is for beside(). By a warp.
    template <class Rows, class Weights, class Beside>
    __device__ __forceinline__ void bring(u32 &stage, u32 &phase, bool leads, u32 begin, u32 end, u32 bytes, Rows rows, Weights weights, Beside beside) const {
        for (u32 step = begin; step < end; step++) {
            wait_free(stage, phase);
            if (leads) {
                u64 *full = expect(stage, bytes);
                rows(x_tile(stage), full, i32(step * WGMMA_DEPTH));
                weights(x_tile(stage) + X_BYTES, full, i32(step * WGMMA_DEPTH));
            }
            __syncwarp();
            if (step == begin) {
                beside();
            }
            advance(stage, phase);
        }
    }

    // Says that a warpgroup has read a stage. By all of its threads.
    __device__ __forceinline__ void release(u32 which) const {
        if constexpr (SHARERS == 1) {
            if (threadIdx.x % 128 == 0) {
                mbarrier_arrive(&empty[which]);
            }
        } else if (threadIdx.x % 128 < SHARERS) {
            mbarrier_arrive_remote_relaxed(&empty[which], threadIdx.x % 128);
        }
    }

    // d = the products of steps `begin` to `end` of K, of warpgroup `group`, the same in all lanes. The last of them are still under way:
    // wait, then release the stage whose number this gives. APART: the second warpgroup ends behind the first. SUMS: columns of the tile, of which
    // there may be fewer than the ring has room for.
    template <bool APART = true, u32 SUMS = WIDTH>
    __device__ __forceinline__ u32 multiply(u32 &stage, u32 &phase, u32 group, u32 begin, u32 end, f32 (&d)[SUMS / 2]) const {
        u64 x_tiles = wgmma_descriptor(shared_address(tiles) + group * 64 * PANEL, 16, 8 * PANEL, SWIZZLE_128);
        u64 w_tiles = wgmma_descriptor(shared_address(tiles) + X_BYTES, 16, 8 * PANEL, SWIZZLE_128);
        // With fewer steps the first could come by a second time before the other has.
        bool apart = APART && end - begin > COUNT;
        u32 before = 0;
        for (u32 step = begin; step < end; step++) {
            if (apart && group == 1 && step == end - BEHIND) {
                named_barrier_sync(GROUPS_BARRIER, 256);
            }
            mbarrier_wait(&full[stage], phase);
            u64 x = wgmma_moved(x_tiles, stage * STAGE), w = wgmma_moved(w_tiles, stage * STAGE);
            multiply_stage<SUMS>(d, x, w, step > begin);
            // All but this step's are done, and so is the stage before.
            wgmma_wait<1>();
            if (apart && group == 0 && step == end - 1) {
                named_barrier_arrive(GROUPS_BARRIER, 256);
            }
            if (step > begin) {
                release(before);
            }
            before = stage;
            advance(stage, phase);
        }
        return before;
    }
};
