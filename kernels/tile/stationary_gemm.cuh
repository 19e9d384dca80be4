// Tiles of X·Wᵀ on the tensor cores of Hopper for a short K: a block keeps 192 rows of W, whole, in shared memory, and X streams past
// it through a ring of stages. Three warp groups take tiles of 64 rows in turn: one multiplies, two write outputs, so that the tensor
// cores do not wait for an epilogue that takes as long as the few steps of so short a K.
//
// The turns are a matter of right as well as of speed: a warp group sees every third tile's stages, and of the phases of a barrier
// only the last two can be told apart. When its turn has come, all stages before its own have arrived.
//
// Two blocks of a cluster have neighbouring rows of W and the same rows of X: each brings half of X's tile to both.
//
// W's rows lie in another order than the outputs, so that a thread's sums are of neighbouring outputs and are stored without an
// exchange: of each 32 rows, place 8i + 2q + e has row 8q + 2i + e (see D in ptx/wgmma.cuh).
#pragma once

#include "ptx/cluster.cuh"
#include "ptx/copy.cuh"
#include "ptx/wgmma.cuh"
#include "tile/activation.cuh"
#include "tile/adapter_sums.cuh"
#include "tile/outputs.cuh"

constexpr u32 SLAB = 192;                       // rows of W that a block keeps
constexpr u32 SLAB_STEPS = 6;                   // steps of K that there is room for
constexpr u32 SLAB_DEPTH = 64;                        // elements of K a step
constexpr u32 SLAB_TILE = 64, SLAB_GROUPS = 3;  // rows of X a tile; warp groups that multiply
constexpr u32 STATIONARY_THREADS = (SLAB_GROUPS + 1) * 128;
constexpr u32 SLAB_LINE = SLAB_DEPTH * 2;                  // bytes of a row of a step: the width of the swizzle
constexpr u32 SLAB_X_BYTES = SLAB_TILE * SLAB_LINE, SLAB_W_BYTES = SLAB * SLAB_LINE;

// What lies in shared memory, from a multiple of 1,024 on.
struct Stationary {
    char *w, *x;
    // Stages of X that have arrived, that may be written again; steps of W that have arrived; whose turn it is to multiply.
    u64 *full, *empty, *weights, *turn;
    f32 *bias;

    __device__ __forceinline__ explicit Stationary(char *shared) {
        w = shared + (1024 - shared_address(shared) % 1024) % 1024;
        hold_address(w);
        x = w + SLAB_STEPS * SLAB_W_BYTES;
        full = (u64 *)(x + SLAB_STAGES * SLAB_X_BYTES);
        empty = full + SLAB_STAGES;
        weights = empty + SLAB_STAGES;
        turn = weights + SLAB_STEPS;
        bias = (f32 *)(w + SLAB_STEPS * SLAB_W_BYTES + SLAB_STAGES * SLAB_X_BYTES + 256);
    }
};
static_assert((2 * SLAB_STAGES + SLAB_STEPS + SLAB_GROUPS) * 8 <= 256, "the barriers fit in front of the bias");

// A place in the ring.
struct Place {
    u32 stage, phase;

    __device__ __forceinline__ void advance(u32 steps) {
        stage += steps;
        while (stage >= SLAB_STAGES) {
            stage -= SLAB_STAGES;
            phase ^= 1;
        }
    }
};

// Eight neighbouring values in f32; zeros where there are none.
__device__ __forceinline__ void read_eight(const element *from, bool there, f32 (&values)[8]) {
    u32x4 found = there ? *(const u32x4 *)from : u32x4{};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        values[2 * i] = low_half(found.word[i]);
        values[2 * i + 1] = high_half(found.word[i]);
    }
}

// Writes the outputs of this warp group's 64 rows from `row` on. MORE: there is something in Y to add, or a residual.
template <u32 FORM, bool MORE, bool ADAPTED>
__device__ __forceinline__ void write_rows(const GemmParams &p, const f32 *bias, u64 row, u64 column, const f32 (&d)[SLAB / 2]) {
    u32 thread = threadIdx.x % 128, quad = thread % 4;
    row += thread / 32 * 16 + thread % 32 / 4;
    i64 left = i64(p.columns - column);
    u64 start = row * p.y_stride + column + quad * 8;
    bias += quad * 8;
#pragma unroll
    for (int run = 0; run < SLAB / 32; run++) {
        if (run * 32 >= left) {
            break;
        }
        f32 found[2][8], residual[2][8];
        if constexpr (MORE) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u64 at = start + half * 8 * p.y_stride + run * 32;
                bool there = row + half * 8 < p.rows;
                read_eight(p.y + at, there && p.adds && !ADAPTED, found[half]);
                read_eight(p.residual + at, there && p.residual, residual[half]);
            }
        }
        float4 added[2] = {*(const float4 *)(bias + run * 32), *(const float4 *)(bias + run * 32 + 4)};
        const f32 *b = (const f32 *)added;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32x4 packed;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                f32 value[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    f32 sum = d[(run * 4 + i) * 4 + half * 2 + e];
                    if constexpr (MORE) {
                        sum += found[half][i * 2 + e];
                    }
                    value[e] = activate_form<FORM>(p, sum + b[i * 2 + e]);
                    if constexpr (MORE) {
                        value[e] += residual[half][i * 2 + e];
                    }
                }
                packed.word[i] = narrow2<element>(value[0], value[1]);
            }
            if (row + half * 8 < p.rows) {
                *(u32x4 *)(p.y + start + half * 8 * p.y_stride + run * 32) = packed;
            }
        }
    }
}

// Y = act(X·Wᵀ + bias + what Y holds) + residual, for a K of at most SLAB_STEPS steps and outputs in whole runs of 32.
// ADAPTED: what Y has added are the adapters' sums, and Y itself is not read.
template <u32 FORM, bool ADAPTED = false>
__device__ __forceinline__ void stationary_gemm(const GemmParams &p, char *shared, const AdapterSums &sums = {}) {
    Stationary at(shared);
    u32 group = threadIdx.x / 128, rank = cluster_rank();
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < SLAB_STAGES; stage++) {
            mbarrier_init(&at.full[stage], 1);
            // The warp group of each block whose tile it is.
            mbarrier_init(&at.empty[stage], 2);
        }
        for (u32 step = 0; step < SLAB_STEPS; step++) {
            mbarrier_init(&at.weights[step], 1);
        }
        for (u32 which = 0; which < SLAB_GROUPS; which++) {
            mbarrier_init(&at.turn[which], 1);
        }
        fence_mbarrier_init();
    }
    // Pairs of slabs across; the clusters of one pair share its rows of X.
    u32 pairs = u32((p.columns + 2 * SLAB - 1) / (2 * SLAB)), cluster = blockIdx.x / 2, lane = cluster / pairs, lanes = gridDim.x / 2 / pairs;
    u64 column = u64(cluster % pairs * 2 + rank) * SLAB, down = (p.rows + SLAB_TILE - 1) / SLAB_TILE;
    u32 steps = u32((p.depth + SLAB_DEPTH - 1) / SLAB_DEPTH);
    grid_launch_next();
    // Where the host lets this kernel start early, its operands are still being written; or Y alone, which is read last.
    if (!p.adds) {
        grid_wait();
    }
    if (threadIdx.x < SLAB) {
        bool there = p.bias && column + threadIdx.x < p.columns;
        at.bias[threadIdx.x] = there ? widen(p.bias[column + threadIdx.x]) : 0.0f;
    }
    // A barrier of both blocks' threads: the bias is there too.
    cluster_arrive();
    cluster_wait();
    if (group == SLAB_GROUPS) {
        registers_give<32>();
        if (threadIdx.x == SLAB_GROUPS * 128) {
            tma_prefetch_map(&p.x_map);
            tma_prefetch_map(&p.w_map);
            Place place = {0, 0};
            for (u64 tile = lane; tile < down; tile += lanes) {
                for (u32 step = 0; step < steps; step++) {
                    if (tile == lane) {
                        mbarrier_arrive_expect(&at.weights[step], SLAB_W_BYTES);
                        tma_load_5d(at.w + step * SLAB_W_BYTES, &p.w_map, &at.weights[step], i32(step * SLAB_DEPTH), 0, 0, 0, i32(column / 32));
                    }
                    mbarrier_wait(&at.empty[place.stage], place.phase ^ 1);
                    mbarrier_arrive_expect(&at.full[place.stage], SLAB_X_BYTES);
                    char *to = at.x + place.stage * SLAB_X_BYTES + rank * (SLAB_X_BYTES / 2);
                    tma_load_2d_multicast(to, &p.x_map, &at.full[place.stage], i32(step * SLAB_DEPTH), i32(tile * SLAB_TILE + rank * (SLAB_TILE / 2)), 3);
                    place.advance(1);
                }
            }
        }
        __syncwarp();
    } else {
        registers_take<160>();
        f32 d[SLAB / 2];
        auto release = [&](u32 stage) {
            if (threadIdx.x % 128 < 2) {
                mbarrier_arrive_remote_relaxed(&at.empty[stage], threadIdx.x % 128);
            }
        };
        // A block's outputs are of one slice.
        u32 which = ADAPTED && column < p.columns ? u32(column / sums.columns) : 0;
        const AdapterSlice &slice = sums.slices[which];
        Place place = {0, 0};
        place.advance(group * steps);
        u32 number = 0;
        for (u64 tile = lane + group * u64(lanes); tile < down; tile += SLAB_GROUPS * u64(lanes), number++) {
            AdapterRows rows;
            u64 own = tile * SLAB_TILE + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
            // Before its turn: while others multiply. The first time what it reads may still be written.
            if (ADAPTED && number > 0) {
                rows.fetch(sums, slice, own, p.rows);
            }
            if (group > 0 || number > 0) {
                // The first warp group's first turn is nobody's to give.
                mbarrier_wait(&at.turn[group], (number - (group == 0)) & 1);
            }
            u32 before = 0;
            for (u32 step = 0; step < steps; step++) {
                if (number == 0) {
                    mbarrier_wait(&at.weights[step], 0);
                }
                mbarrier_wait(&at.full[place.stage], place.phase);
                u64 x = wgmma_descriptor(shared_address(at.x) + place.stage * SLAB_X_BYTES, 16, 8 * SLAB_LINE, SWIZZLE_128);
                u64 w = wgmma_descriptor(shared_address(at.w) + step * SLAB_W_BYTES, 16, 8 * SLAB_LINE, SWIZZLE_128);
                wgmma_fence();
#pragma unroll
                for (u32 k = 0; k < SLAB_DEPTH / 16; k++) {
                    // 16 elements are 32 bytes; addresses in descriptors count 16.
                    wgmma_ss<element, SLAB>(d, x + k * 2, w + k * 2, step > 0 || k > 0);
                }
                wgmma_commit();
                // All but this step's are done, and so is the stage before.
                wgmma_wait<1>();
                if (step > 0) {
                    release(before);
                }
                before = place.stage;
                place.advance(1);
            }
            if (threadIdx.x % 128 == 0) {
                mbarrier_arrive(&at.turn[group + 1 == SLAB_GROUPS ? 0 : group + 1]);
            }
            wgmma_wait<0>();
            wgmma_hold(d);
            release(before);
            place.advance((SLAB_GROUPS - 1) * steps);
            if (p.adds) {
                grid_wait();
            }
            if constexpr (ADAPTED) {
                if (number == 0) {
                    rows.fetch(sums, slice, own, p.rows);
                }
                rows.add(slice, sums.groups, column - which * sums.columns, i64(p.columns - column), d);
            }
            if ((!ADAPTED && p.adds) || p.residual) {
                write_rows<FORM, true, ADAPTED>(p, at.bias, tile * SLAB_TILE, column, d);
            } else {
                write_rows<FORM, false, ADAPTED>(p, at.bias, tile * SLAB_TILE, column, d);
            }
        }
    }
    // The other block may still write into this one, or arrive at its barriers.
    cluster_arrive();
    cluster_wait();
}
