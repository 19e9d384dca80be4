// Y = LayerNorm(X·Wᵀ + bias + residual) on the tensor cores of Hopper: a tile holds whole rows of Y, so that their mean and variance
// are found in registers, and nothing is written between the product and the norm.
//
// A warpgroup has 64 rows of LAYERNORM_COLUMNS sums each, in two halves, as wide as two wgmma: 192 registers a thread. LAYERNORM_GROUPS warpgroups
// make a tile. CLUSTER blocks one below the other share W: each brings a part of it to all. The residual's tile comes through the
// same ring as the operands, behind the last of them, so that it is there when the sums are.
//
// W's rows lie in another order than the outputs (see gemm/sm90/weight_stationary.cuh): of 32 outputs a thread's eight sums of a row are
// neighbours. What a row's outputs are depends on that row alone, whichever tile it is in.
//
// Adapters of one basis: its columns are 16 more rows behind W's and X's, which give h = x·I beside the sums, as in gemm/sm90/weight_stationary.cuh. The
// output factors of all adapters that the cluster's rows have come in a stage of the ring, or more; the blocks of a cluster write to each
// other's stages, so that all have the same.
#pragma once

#include "ptx/cluster.cuh"
#include "ptx/copy.cuh"
#include "ptx/special.cuh"
#include "ptx/wgmma.cuh"
#include "gemm/adapter_sums.cuh"
#include "gemm/ordered_outputs.cuh"

constexpr u32 LAYERNORM_DEPTH = 64, LAYERNORM_LINE = LAYERNORM_DEPTH * 2;      // elements of K a step; bytes of its rows: the width of the swizzle
constexpr u32 LAYERNORM_HALF = LAYERNORM_COLUMNS / 2, LAYERNORM_RUNS = LAYERNORM_COLUMNS / 32;
constexpr u32 LAYERNORM_TILE = LAYERNORM_GROUPS * 64;                        // rows of X
constexpr u32 LAYERNORM_THREADS = (LAYERNORM_GROUPS + 1) * 128;              // the last warpgroup brings operands
constexpr u32 LAYERNORM_W_BYTES = LAYERNORM_COLUMNS * LAYERNORM_LINE, LAYERNORM_X_BYTES = LAYERNORM_TILE * LAYERNORM_LINE;
constexpr u32 LAYERNORM_STAGE = LAYERNORM_W_BYTES + LAYERNORM_X_BYTES;
// Of a warpgroup's rows of the residual, as runs of 32 columns: [LAYERNORM_RUNS][64][32]. One takes a stage.
constexpr u32 LAYERNORM_RESIDUAL = LAYERNORM_COLUMNS * 64 * 2;
// An output factor of an adapter; a stage takes so many.
constexpr u32 LAYERNORM_FACTOR = LAYERNORM_RUNS * RUN_BYTES, LAYERNORM_FACTORS = LAYERNORM_STAGE / LAYERNORM_FACTOR;
static_assert(LAYERNORM_RESIDUAL <= LAYERNORM_STAGE, "a stage holds the residual of a warp group");
static_assert(LAYERNORM_RUNS % CLUSTER == 0 && LAYERNORM_HALF % 32 == 0, "whole runs");

// What lies in shared memory, from a multiple of 1,024 on.
template <bool BASIS> struct LayernormShared {
    static constexpr u32 STAGE = LAYERNORM_STAGE + (BASIS ? BASIS_BYTES : 0);
    char *stages;
    // Stages that have arrived, that may be written again.
    u64 *full, *empty;
    // Of a tile's first stage: which adapters the cluster's rows have, and those of each warpgroup.
    u32 (*adapters)[1 + LAYERNORM_GROUPS];
    // The tile that is being brought, and the adapters still to bring: the warp that brings has few registers.
    volatile u32 *bringing;
    // Of all columns.
    f32 *bias, *weight, *shift;

    __device__ __forceinline__ explicit LayernormShared(char *shared) {
        stages = shared + (1024 - shared_address(shared) % 1024) % 1024;
        hold_address(stages);
        full = (u64 *)(stages + LAYERNORM_STAGES * STAGE);
        empty = full + LAYERNORM_STAGES;
        adapters = (u32 (*)[1 + LAYERNORM_GROUPS])(empty + LAYERNORM_STAGES);
        bringing = (u32 *)full + 30;
        bias = (f32 *)(stages + LAYERNORM_STAGES * STAGE + 128);
        weight = bias + LAYERNORM_COLUMNS;
        shift = weight + LAYERNORM_COLUMNS;
    }
};
static_assert(LAYERNORM_STAGES * (2 * 8 + (1 + LAYERNORM_GROUPS) * 4) <= 120, "the barriers fit in front of the bias");

// A place in the ring.
struct LayernormPlace {
    u32 stage, phase;

    __device__ __forceinline__ void advance() {
        if (++stage == LAYERNORM_STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

// The sum of the four lanes that share a row.
__device__ __forceinline__ f32 quad_sum(f32 value) {
    value += shuffle_xor(value, 1);
    return value + shuffle_xor(value, 2);
}

typedef f32 LayernormSums[2][LAYERNORM_HALF / 2];

// The sum of output `run` · 32 + quad · 8 + `at` of the thread's first row, or of its second.
__device__ __forceinline__ f32 &layernorm_sum(LayernormSums &d, u32 run, u32 half, u32 at) {
    return d[run / (LAYERNORM_RUNS / 2)][(run % (LAYERNORM_RUNS / 2) * 4 + at / 2) * 4 + half * 2 + at % 2];
}

// Adds bias, and the residual where there is one, from its tile of the warpgroup; gives the sums of both rows.
template <bool RESIDUAL, class Shared> __device__ __forceinline__ void layernorm_add(const Shared &at, u32 residual, LayernormSums &d, f32 (&sums)[2]) {
    u32 thread = threadIdx.x % 128, quad = thread % 4;
    u32 own = residual + (thread / 32 * 16 + thread % 32 / 4) * 64 + quad * 16, columns = shared_address(at.bias) + quad * 32;
    sums[0] = sums[1] = 0.0f;
#pragma unroll
    for (u32 run = 0; run < LAYERNORM_RUNS; run++) {
        f32 bias[8];
        shared_eight(columns + run * 128, bias);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 found[4];
            if constexpr (RESIDUAL) {
                float4 words = shared_load_16_bytes(own + run * 4096 + half * 512);
                found[0] = __float_as_uint(words.x), found[1] = __float_as_uint(words.y);
                found[2] = __float_as_uint(words.z), found[3] = __float_as_uint(words.w);
            }
#pragma unroll
            for (u32 e = 0; e < 8; e++) {
                f32 &sum = layernorm_sum(d, run, half, e);
                sum += bias[e];
                if constexpr (RESIDUAL) {
                    sum += e % 2 ? high_half(found[e / 2]) : low_half(found[e / 2]);
                }
                sums[half] += sum;
            }
        }
    }
}

// From the sums of this warpgroup's rows from `row` on to outputs. `sums`: of each row.
template <class Shared> __device__ __forceinline__ void layernorm_write(const LayernormParams &p, const Shared &at, u64 row, LayernormSums &d, const f32 (&sums)[2]) {
    u32 thread = threadIdx.x % 128, quad = thread % 4;
    row += thread / 32 * 16 + thread % 32 / 4;
    f32 factor[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        f32 mean = quad_sum(sums[half]) / f32(LAYERNORM_COLUMNS), squares = 0.0f;
#pragma unroll
        for (u32 run = 0; run < LAYERNORM_RUNS; run++) {
#pragma unroll
            for (u32 e = 0; e < 8; e++) {
                f32 &sum = layernorm_sum(d, run, half, e);
                sum -= mean;
                squares = fmaf(sum, sum, squares);
            }
        }
        factor[half] = 1.0f / sqrtf(quad_sum(squares) / f32(LAYERNORM_COLUMNS) + p.eps);
    }
    element *to = p.y + row * LAYERNORM_COLUMNS + quad * 8;
    u32 columns = shared_address(at.weight) + quad * 32;
    bool there[2] = {row < p.rows, row + 8 < p.rows};
#pragma unroll
    for (u32 run = 0; run < LAYERNORM_RUNS; run++) {
        f32 weight[8], shift[8];
        shared_eight(columns + run * 128, weight);
        shared_eight(columns + LAYERNORM_COLUMNS * 4 + run * 128, shift);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 packed[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                f32 low = fmaf(layernorm_sum(d, run, half, 2 * i) * factor[half], weight[2 * i], shift[2 * i]);
                f32 high = fmaf(layernorm_sum(d, run, half, 2 * i + 1) * factor[half], weight[2 * i + 1], shift[2 * i + 1]);
                packed[i] = narrow2<element>(low, high);
            }
            if (there[half]) {
                store_16(to + half * 8 * LAYERNORM_COLUMNS + run * 32, make_uint4(packed[0], packed[1], packed[2], packed[3]));
            }
        }
    }
}

// This block's cluster, and how many there are. Asked for where they are needed: the warp that brings has few registers to keep them in.
__device__ __forceinline__ u32 own_cluster() { return block_index_anew() / CLUSTER; }

__device__ __forceinline__ u32 all_clusters() { return block_count_anew() / CLUSTER; }

// Brings the output factors of the next adapters to a stage, as many as it takes. All lanes of the warp.
template <class Shared>
__device__ __forceinline__ void bring_factors(const Shared &at, const AdapterSlice &slice, u32 &adapters, LayernormPlace &place) {
    mbarrier_wait(&at.empty[place.stage], place.phase ^ 1);
    if (threadIdx.x % 32 == 0) {
        mbarrier_arrive_expect(&at.full[place.stage], (__popc(adapters) < LAYERNORM_FACTORS ? __popc(adapters) : LAYERNORM_FACTORS) * LAYERNORM_FACTOR);
    }
    char *to = at.stages + place.stage * Shared::STAGE;
#pragma unroll 1
    for (u32 i = 0; i < LAYERNORM_FACTORS && adapters; i++, to += LAYERNORM_FACTOR) {
        i32 which = take_first(adapters);
        if (threadIdx.x % 32 == 0) {
            bulk_load(to, slice.fragments + u32(which) * (LAYERNORM_RUNS * RUN_WORDS), LAYERNORM_FACTOR, &at.full[place.stage]);
        }
    }
    __syncwarp();
    place.advance();
}

// Y = LayerNorm(X·Wᵀ + bias + residual) of LAYERNORM_COLUMNS outputs; BASIS: and what the adapters of `sums` add in front of the norm.
template <bool BASIS = false> __device__ __forceinline__ void layernorm_gemm(const LayernormParams &p, char *shared, const AdapterSums &sums = {}) {
    typedef LayernormShared<BASIS> Shared;
    Shared at(shared);
    const AdapterSlice &slice = sums.slices[0];
    // Said so that the compiler knows that a warp has one: what follows from it is then computed in uniform registers.
    u32 group = shuffle_from(threadIdx.x / 128, 0), rank = cluster_rank();
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < LAYERNORM_STAGES; stage++) {
            mbarrier_init(&at.full[stage], 1);
            // The warpgroups of a tile, in every block that this one brings W to.
            mbarrier_init(&at.empty[stage], LAYERNORM_GROUPS * CLUSTER);
        }
        fence_mbarrier_init();
    }
    grid_launch_next();
    // Where the host lets this kernel start early, its operands are still being written.
    grid_wait();
    for (u32 column = threadIdx.x; column < LAYERNORM_COLUMNS; column += LAYERNORM_THREADS) {
        at.bias[column] = p.bias ? widen(p.bias[column]) : 0.0f;
        at.weight[column] = widen(p.weight[column]);
        at.shift[column] = widen(p.shift[column]);
    }
    // A barrier of all blocks' threads: the columns' numbers are there too.
    cluster_arrive();
    cluster_wait();
    // TMA counts rows in 31 bits.
    u32 clusters = gridDim.x / CLUSTER, down = u32((p.rows + LAYERNORM_TILE * CLUSTER - 1) / (LAYERNORM_TILE * CLUSTER));
    u32 steps = u32((p.depth + LAYERNORM_DEPTH - 1) / LAYERNORM_DEPTH), extra = p.residual ? LAYERNORM_GROUPS : 0;
    if (group == LAYERNORM_GROUPS) {
        registers_give<BASIS && LAYERNORM_GROUPS == 1 ? 40 : 24>();
        // Registers are few here: the rank is asked for anew. With adapters all of the warp looks for them, and one lane brings.
        u32 lane = threadIdx.x - LAYERNORM_GROUPS * 128;
        if (lane < (BASIS ? 32 : 1)) {
            tma_prefetch_map(&p.x_map);
            tma_prefetch_map(&p.w_map);
            tma_prefetch_map(&p.residual_map);
            LayernormPlace place = {0, 0};
            for (u32 tile = own_cluster(); tile < down; tile = (BASIS ? at.bringing[0] : tile) + all_clusters()) {
                u32 adapters = 0;
                if constexpr (BASIS) {
                    mbarrier_wait(&at.empty[place.stage], place.phase ^ 1);
#pragma unroll 1
                    for (u32 part = 0; part < CLUSTER * LAYERNORM_GROUPS; part++) {
                        u32 own = adapters_of<64>(sums, (tile * CLUSTER * LAYERNORM_GROUPS + part) * 64, u32(p.rows));
                        adapters |= own;
                        if (lane == 0 && part / LAYERNORM_GROUPS == cluster_rank()) {
                            at.adapters[place.stage][1 + part % LAYERNORM_GROUPS] = own;
                        }
                    }
                    if (lane == 0) {
                        at.adapters[place.stage][0] = adapters;
                        at.bringing[0] = tile;
                        at.bringing[1] = adapters;
                    }
                    __syncwarp();
                }
                for (u32 step = 0; BASIS || step < steps + extra; step++) {
                    if constexpr (BASIS) {
                        if (step == steps) {
                            u32 left = at.bringing[1];
                            while (left) {
                                bring_factors(at, slice, left, place);
                            }
                        }
                        if (step == steps + extra) {
                            break;
                        }
                    }
                    mbarrier_wait(&at.empty[place.stage], place.phase ^ 1);
                    if (lane > 0) {
                        place.advance();
                        continue;
                    }
                    char *to = at.stages + place.stage * Shared::STAGE;
                    u64 *full = &at.full[place.stage];
                    u32 rank = cluster_rank();
                    i32 row = i32(((BASIS ? at.bringing[0] : tile) * CLUSTER + rank) * LAYERNORM_TILE);
                    if (step < steps) {
                        constexpr u32 PART = LAYERNORM_RUNS / CLUSTER;
                        mbarrier_arrive_expect(full, Shared::STAGE);
                        if constexpr (BASIS) {
                            bulk_load(to + LAYERNORM_STAGE, slice.basis + step * (BASIS_BYTES / 2), BASIS_BYTES, full);
                        }
                        tma_load_2d(to + LAYERNORM_W_BYTES, &p.x_map, full, i32(step * LAYERNORM_DEPTH), row);
                        tma_load_5d_multicast(to + rank * (LAYERNORM_W_BYTES / CLUSTER), &p.w_map, full, i32(step * LAYERNORM_DEPTH), 0, 0, 0, i32(rank * PART),
                                              (1 << CLUSTER) - 1);
                    } else {
                        mbarrier_arrive_expect(full, LAYERNORM_RESIDUAL);
                        tma_load_3d(to, &p.residual_map, full, 0, row + i32((step - steps) * 64), 0);
                    }
                    place.advance();
                }
            }
        }
        __syncwarp();
    } else {
        registers_take<240>();
        LayernormSums d;
        auto release = [&](u32 stage) {
            if (threadIdx.x % 128 < CLUSTER) {
                mbarrier_arrive_remote_relaxed(&at.empty[stage], threadIdx.x % 128);
            }
        };
        LayernormPlace place = {0, 0};
        for (u32 tile = own_cluster(); tile < down; tile += clusters) {
            u32 before = 0;
            f32 h[BASIS_SUMS];
            AdapterRows rows;
            u32 adapters = 0, mine = 0;
            for (u32 step = 0; step < steps; step++) {
                mbarrier_wait(&at.full[place.stage], place.phase);
                if (BASIS && step == 0) {
                    adapters = at.adapters[place.stage][0];
                    mine = at.adapters[place.stage][1 + group];
                }
                u32 stage = shared_address(at.stages) + place.stage * Shared::STAGE;
                u64 w = wgmma_descriptor(stage, 16, 8 * LAYERNORM_LINE, SWIZZLE_128);
                u64 x = wgmma_descriptor(stage + LAYERNORM_W_BYTES + group * 64 * LAYERNORM_LINE, 16, 8 * LAYERNORM_LINE, SWIZZLE_128);
                wgmma_fence();
#pragma unroll
                for (u32 k = 0; k < LAYERNORM_DEPTH / 16; k++) {
                    // 16 elements are 32 bytes; addresses in descriptors count 16.
#pragma unroll
                    for (u32 half = 0; half < 2; half++) {
                        wgmma_ss<element, LAYERNORM_HALF>(d[half], x + k * 2, w + half * (LAYERNORM_HALF * LAYERNORM_LINE / 16) + k * 2, step > 0 || k > 0);
                    }
                    if constexpr (BASIS) {
                        wgmma_ss<element, BASIS_ROWS>(h, x + k * 2, w + LAYERNORM_STAGE / 16 + k * 2, step > 0 || k > 0);
                    }
                }
                wgmma_commit();
                if constexpr (BASIS) {
                    if (step + 1 == steps) {
                        // While it is multiplied.
                        rows.fetch_adapters(sums, (tile * CLUSTER + rank) * LAYERNORM_TILE + group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, p.rows);
                        rows.fetch_scales(slice);
                    }
                    // With this step's left under way, and the factors' products behind them, the assembler has every single one waited for.
                    wgmma_wait<0>();
                    release(place.stage);
                } else {
                    // All but this step's are done, and so is the stage before.
                    wgmma_wait<1>();
                    if (step > 0) {
                        release(before);
                    }
                }
                before = place.stage;
                place.advance();
            }
            wgmma_wait<0>();
            wgmma_hold(d[0]);
            wgmma_hold(d[1]);
            if constexpr (!BASIS) {
                release(before);
            }
            if constexpr (BASIS) {
                wgmma_hold(h);
                rows.take(h, rows.scale);
                while (adapters) {
                    mbarrier_wait(&at.full[place.stage], place.phase);
#pragma unroll 1
                    for (u32 factor = 0; factor < LAYERNORM_FACTORS && adapters; factor++) {
                        i32 which = take_first(adapters);
                        // The warpgroup's rows may have none of it.
                        if (mine >> which & 1) {
                            u32 a[4], from = shared_address(at.stages) + place.stage * Shared::STAGE + factor * LAYERNORM_FACTOR;
                            rows.only(which, a);
                            wgmma_fence();
#pragma unroll
                            for (u32 half = 0; half < 2; half++) {
                                u64 b = wgmma_descriptor(from + half * (LAYERNORM_FACTOR / 2), 128, 256, SWIZZLE_NONE);
                                wgmma_rs<element, LAYERNORM_HALF>(d[half], a, b, true);
                            }
                            wgmma_commit();
                            wgmma_wait<0>();
                            wgmma_hold(d[0]);
                            wgmma_hold(d[1]);
                        }
                    }
                    release(place.stage);
                    place.advance();
                }
            }
            f32 of_rows[2];
            if (extra > 0) {
                for (u32 step = 0; step < LAYERNORM_GROUPS; step++) {
                    mbarrier_wait(&at.full[place.stage], place.phase);
                    if (step == group) {
                        layernorm_add<true>(at, shared_address(at.stages) + place.stage * Shared::STAGE, d, of_rows);
                        // All warps have read it.
                        named_barrier_sync(1 + group, 128);
                    }
                    // Every warpgroup lets go of every stage.
                    release(place.stage);
                    place.advance();
                }
            } else {
                layernorm_add<false>(at, 0, d, of_rows);
            }
            layernorm_write(p, at, (tile * CLUSTER + rank) * LAYERNORM_TILE + group * 64, d, of_rows);
        }
    }
    // The other blocks may still write into this one, or arrive at its barriers.
    cluster_arrive();
    cluster_wait();
}
