// Tiles of X·Wᵀ on the tensor cores of Hopper for a short K: a block keeps 192 rows of W, whole, in shared memory, and X streams past
// it through a ring of stages. Three warpgroups take tiles of 64 rows in turn: one multiplies, two write outputs, so that the tensor
// cores do not wait for an epilogue that takes as long as the few steps of so short a K.
//
// The turns are a matter of right as well as of speed: a warpgroup sees every third tile's stages, and of the phases of a barrier
// only the last two can be told apart. When its turn has come, all stages before its own have arrived.
//
// Two blocks of a cluster have neighbouring rows of W and the same rows of X: each brings half of X's tile to both.
//
// W's rows lie in another order than the outputs (gemm/ordered_outputs.cuh).
//
// Adapters of one basis: its columns are 16 more rows behind W's, which give h = x·I beside the sums, so that X is read once for both.
// h goes to registers as an operand, and the output factor of each adapter that a tile has is multiplied onto the sums: rows of other
// adapters are zeros. mma.sync would wait for a place between the other warpgroups' wgmma each time. A warp of its own brings the
// factors in the order of the tiles, through a ring, ahead of need.
#pragma once

#include "ptx/cluster.cuh"
#include "ptx/copy.cuh"
#include "ptx/mma.cuh"
#include "ptx/wgmma.cuh"
#include "tile/activation.cuh"
#include "gemm/adapter_sums.cuh"
#include "gemm/ordered_outputs.cuh"

constexpr u32 SLAB = 192, SLAB_RUNS = SLAB / 32;  // rows of W that a block keeps
constexpr u32 SLAB_STEPS = 6;                     // steps of K that there is room for
constexpr u32 SLAB_DEPTH = 64;                    // elements of K a step
constexpr u32 SLAB_TILE = 64, SLAB_GROUPS = 3;    // rows of X a tile; warpgroups that multiply
constexpr u32 SLAB_FACTORS = 3;                   // output factors of adapters in the ring
constexpr u32 WEIGHT_STATIONARY_THREADS = (SLAB_GROUPS + 1) * 128;
constexpr u32 SLAB_LINE = SLAB_DEPTH * 2;         // bytes of a row of a step: the width of the swizzle
constexpr u32 SLAB_X_BYTES = SLAB_TILE * SLAB_LINE, SLAB_W_BYTES = SLAB * SLAB_LINE;

// What adapters add: nothing that the product does not find in Y; what it makes of h, which a kernel before has left; or of X itself.
enum AdapterForm : u32 { NONE_OR_IN_Y = 0, SHRUNK = 1, WITH_LORA = 2 };

// Whether X goes to registers by ldmatrix on its way into the product: where lab/linear-short-k.md says that it was faster. A basis leaves no
// registers for it.
template <u32 FORM, AdapterForm ADAPTERS> constexpr bool X_IN_REGISTERS = FORM == EXACT_GELU && ADAPTERS != WITH_LORA;

// What lies in shared memory, from a multiple of 1,024 on.
template <AdapterForm ADAPTERS> struct WeightStationary {
    static constexpr bool BASIS = ADAPTERS == WITH_LORA;
    static constexpr u32 RING = BASIS ? SLAB_BASIS_STAGES : SLAB_STAGES;
    static constexpr u32 STEP_BYTES = SLAB_W_BYTES + (BASIS ? BASIS_BYTES : 0), FACTOR_BYTES = SLAB_RUNS * RUN_BYTES;
    static_assert((2 * RING + SLAB_STEPS + SLAB_GROUPS) * 8 + BASIS * ((2 * SLAB_FACTORS + SLAB_GROUPS) * 8 + SLAB_GROUPS * 4) <= 256,
                  "the barriers fit in front of the bias");

    char *w, *x;
    // Stages of X that have arrived, that may be written again; steps of W that have arrived; whose turn it is to multiply.
    u64 *full, *empty, *weights, *turn;
    f32 *bias;
    // Output factors; those that have arrived, that may be written again; whose turn it is to use them, and of which on, by warpgroup.
    char *factors;
    u64 *factor_full, *factor_empty, *factor_turn;
    u32 *factor_next;

    __device__ __forceinline__ explicit WeightStationary(char *shared) {
        w = shared + (1024 - shared_address(shared) % 1024) % 1024;
        hold_address(w);
        x = w + SLAB_STEPS * STEP_BYTES;
        factors = x + RING * SLAB_X_BYTES;
        full = (u64 *)(factors + BASIS * SLAB_FACTORS * FACTOR_BYTES);
        empty = full + RING;
        weights = empty + RING;
        turn = weights + SLAB_STEPS;
        factor_full = turn + SLAB_GROUPS;
        factor_empty = factor_full + SLAB_FACTORS;
        factor_turn = factor_empty + SLAB_FACTORS;
        factor_next = (u32 *)(factor_turn + SLAB_GROUPS);
        bias = (f32 *)(full + 32);
    }
};

// A place in a ring of so many stages.
template <u32 RING> struct RingPlace {
    u32 stage, phase;

    // By at most RING.
    __device__ __forceinline__ void advance(u32 steps) {
        stage += steps;
        if (stage >= RING) {
            stage -= RING;
            phase ^= 1;
        }
    }
};

// Where a lane finds its row of a tile of X, and of each 16 elements of K the 8 that ldmatrix asks it for. Said so that the compiler finds
// it out for each tile of rows anew: it would take a register through the epilogue.
__device__ __forceinline__ u32 x_fragments_at(u32 tiles) {
    u32 thread = threadIdx.x % 128;
    asm volatile("" : "+r"(thread));
    return tiles + (thread / 32 * 16 + thread % 16) * SLAB_LINE + ((thread % 32 / 16) ^ (thread % 8)) * 16;
}

// A step's X of a warp's 16 rows, as operands of wgmma.
struct XFragments {
    u32 a[SLAB_DEPTH / 16][4];

    __device__ __forceinline__ void load(u32 at) {
#pragma unroll
        for (u32 k = 0; k < SLAB_DEPTH / 16; k++) {
            // As the swizzle has it: 16 elements on is two pieces of 16 bytes on, by exclusive or.
            ldmatrix_x4(a[k], at ^ k * 32);
        }
    }
};

// Y = act(X·Wᵀ + bias + what Y holds) + residual, for a K of at most SLAB_STEPS steps and outputs in whole runs of 32.
// With adapters in `sums`, what Y has added are theirs, and Y itself is not read.
template <u32 FORM, AdapterForm ADAPTERS = NONE_OR_IN_Y>
__device__ __forceinline__ void weight_stationary_gemm(const GemmParams &p, char *shared, const AdapterSums &sums = {}) {
    typedef WeightStationary<ADAPTERS> Space;
    constexpr bool ADAPTED = ADAPTERS != NONE_OR_IN_Y, IN_REGISTERS = X_IN_REGISTERS<FORM, ADAPTERS>;
    Space at(shared);
    // Said so that the compiler knows that a warp has one: what follows from it is then computed in uniform registers.
    u32 group = shuffle_from(threadIdx.x / 128, 0), rank = cluster_rank();
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < Space::RING; stage++) {
            mbarrier_init(&at.full[stage], 1);
            // The warpgroup of each block whose tile it is, or each of its warps.
            mbarrier_init(&at.empty[stage], IN_REGISTERS ? 8 : 2);
        }
        for (u32 step = 0; step < SLAB_STEPS; step++) {
            mbarrier_init(&at.weights[step], 1);
        }
        for (u32 which = 0; which < SLAB_GROUPS; which++) {
            mbarrier_init(&at.turn[which], 1);
        }
        if constexpr (Space::BASIS) {
            for (u32 factor = 0; factor < SLAB_FACTORS; factor++) {
                mbarrier_init(&at.factor_full[factor], 1);
                mbarrier_init(&at.factor_empty[factor], 1);
            }
            for (u32 which = 0; which < SLAB_GROUPS; which++) {
                mbarrier_init(&at.factor_turn[which], 1);
            }
            at.factor_next[0] = 0;
        }
        fence_mbarrier_init();
    }
    // Pairs of slabs across; the clusters of one pair share its rows of X.
    u32 pairs = u32((p.columns + 2 * SLAB - 1) / (2 * SLAB)), cluster = blockIdx.x / 2, lane = cluster / pairs, lanes = gridDim.x / 2 / pairs;
    // TMA counts rows and columns in 31 bits.
    u32 column = (cluster % pairs * 2 + rank) * SLAB, down = u32((p.rows + SLAB_TILE - 1) / SLAB_TILE);
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
    // A block's outputs are of one slice.
    u32 which = ADAPTED && column < p.columns ? u32(column / sums.columns) : 0;
    const AdapterSlice &slice = sums.slices[which];
    i32 left = i32(p.columns) - i32(column);
    u32 within = column - which * sums.columns;
    if (group == SLAB_GROUPS) {
        registers_give<32>();
        if (threadIdx.x == SLAB_GROUPS * 128) {
            tma_prefetch_map(&p.x_map);
            tma_prefetch_map(&p.w_map);
            RingPlace<Space::RING> place = {0, 0};
            for (u32 tile = lane; tile < down; tile += lanes) {
                for (u32 step = 0; step < steps; step++) {
                    if (tile == lane) {
                        mbarrier_arrive_expect(&at.weights[step], Space::STEP_BYTES);
                        if constexpr (Space::BASIS) {
                            bulk_load(at.w + step * Space::STEP_BYTES + SLAB_W_BYTES, slice.basis + step * (BASIS_BYTES / 2), BASIS_BYTES, &at.weights[step]);
                        }
                        tma_load_5d(at.w + step * Space::STEP_BYTES, &p.w_map, &at.weights[step], i32(step * SLAB_DEPTH), 0, 0, 0, i32(column / 32));
                    }
                    mbarrier_wait(&at.empty[place.stage], place.phase ^ 1);
                    mbarrier_arrive_expect(&at.full[place.stage], SLAB_X_BYTES);
                    char *to = at.x + place.stage * SLAB_X_BYTES + rank * (SLAB_X_BYTES / 2);
                    tma_load_2d_multicast(to, &p.x_map, &at.full[place.stage], i32(step * SLAB_DEPTH), i32(tile * SLAB_TILE + rank * (SLAB_TILE / 2)), 3);
                    place.advance(1);
                }
            }
        }
        if (Space::BASIS && left > 0 && threadIdx.x / 32 == SLAB_GROUPS * 4 + 1) {
            u32 bytes = (left < SLAB ? left / 32 : SLAB_RUNS) * RUN_BYTES;
            RingPlace<SLAB_FACTORS> place = {0, 0};
            u32 coming = adapters_of<SLAB_TILE>(sums, lane * SLAB_TILE, u32(p.rows));
            for (u32 tile = lane; tile < down; tile += lanes) {
                u32 adapters = coming;
                coming = adapters_of<SLAB_TILE>(sums, (tile + lanes) * SLAB_TILE, u32(p.rows));
                while (adapters) {
                    const u32 *from = factor_at(slice, sums.groups, take_first(adapters), within);
                    mbarrier_wait(&at.factor_empty[place.stage], place.phase ^ 1);
                    if (threadIdx.x % 32 == 0) {
                        mbarrier_arrive_expect(&at.factor_full[place.stage], bytes);
                        bulk_load(at.factors + place.stage * Space::FACTOR_BYTES, from, bytes, &at.factor_full[place.stage]);
                    }
                    __syncwarp();
                    place.advance(1);
                }
            }
        }
        __syncwarp();
    } else {
        registers_take<160>();
        f32 d[SLAB / 2], h[BASIS_SUMS];
        // Where it lies in registers, each warp has read its own rows.
        constexpr u32 TOGETHER = IN_REGISTERS ? 32 : 128;
        auto release = [&](u32 stage) {
            if (threadIdx.x % TOGETHER < 2) {
                mbarrier_arrive_remote_relaxed(&at.empty[stage], threadIdx.x % TOGETHER);
            }
        };
        u64 x_tiles = wgmma_uniform(wgmma_descriptor(shared_address(at.x), 16, 8 * SLAB_LINE, SWIZZLE_128));
        u64 w_tiles = wgmma_uniform(wgmma_descriptor(shared_address(at.w), 16, 8 * SLAB_LINE, SWIZZLE_128));
        RingPlace<Space::RING> place = {0, 0};
        for (u32 before = 0; before < group; before++) {
            place.advance(steps);
        }
        u32 number = 0;
        for (u32 tile = lane + group * lanes; tile < down; tile += SLAB_GROUPS * lanes, number++) {
            AdapterRows rows;
            u32 own = tile * SLAB_TILE + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
            u32 adapters = 0;
            // Before its turn: while others multiply.
            if constexpr (Space::BASIS) {
                adapters = left > 0 ? adapters_of<SLAB_TILE>(sums, tile * SLAB_TILE, u32(p.rows)) : 0;
                rows.fetch_adapters(sums, own, p.rows);
                rows.fetch_scales(slice);
            } else if (ADAPTED && number > 0) {
                // Not the first time: what it reads may still be written.
                rows.fetch(sums, slice, own, p.rows);
            }
            if (group > 0 || number > 0) {
                // The first warpgroup's first turn is nobody's to give.
                mbarrier_wait(&at.turn[group], (number - (group == 0)) & 1);
            }
            XFragments x[2];
            u32 lane_at = x_fragments_at(shared_address(at.x));
            auto arrived = [&](u32 step) {
                if (number == 0) {
                    mbarrier_wait(&at.weights[step], 0);
                }
                mbarrier_wait(&at.full[place.stage], place.phase);
            };
            u32 before = 0;
            arrived(0);
            if constexpr (IN_REGISTERS) {
                x[0].load(lane_at + place.stage * SLAB_X_BYTES);
            }
#pragma unroll
            for (u32 step = 0; step < SLAB_STEPS; step++) {
                u64 a = wgmma_moved(x_tiles, place.stage * SLAB_X_BYTES), w = wgmma_moved(w_tiles, step * Space::STEP_BYTES);
                wgmma_fence();
#pragma unroll
                for (u32 k = 0; k < SLAB_DEPTH / 16; k++) {
                    // 16 elements are 32 bytes; addresses in descriptors count 16.
                    bool more = step > 0 || k > 0;
                    if constexpr (IN_REGISTERS) {
                        wgmma_rs<element, SLAB>(d, x[step % 2].a[k], w + k * 2, more);
                    } else {
                        wgmma_ss<element, SLAB>(d, a + k * 2, w + k * 2, more);
                    }
                    if constexpr (Space::BASIS) {
                        wgmma_ss<element, BASIS_ROWS>(h, a + k * 2, w + SLAB_W_BYTES / 16 + k * 2, more);
                    }
                }
                wgmma_commit();
                u32 own = place.stage;
                place.advance(1);
                if (IN_REGISTERS) {
                    // What is multiplied has been read: nobody needs the stage.
                    release(own);
                }
                bool last = step + 1 == SLAB_STEPS || step + 1 == steps;
                if (IN_REGISTERS && !last) {
                    arrived(step + 1);
                }
                // All but this step's are done, and so is the stage before, or are the registers that X had there.
                wgmma_wait<1>();
                if (!IN_REGISTERS && step > 0) {
                    release(before);
                }
                before = own;
                if (last) {
                    break;
                }
                if constexpr (IN_REGISTERS) {
                    x[(step + 1) % 2].load(lane_at + place.stage * SLAB_X_BYTES);
                } else {
                    arrived(step + 1);
                }
            }
            if (threadIdx.x % 128 == 0) {
                mbarrier_arrive(&at.turn[group + 1 == SLAB_GROUPS ? 0 : group + 1]);
            }
            wgmma_wait<0>();
            wgmma_hold(d);
            if constexpr (Space::BASIS) {
                wgmma_hold(h);
            }
            if (!IN_REGISTERS) {
                release(before);
            }
#pragma unroll
            for (u32 other = 1; other < SLAB_GROUPS; other++) {
                place.advance(steps);
            }
            if (p.adds) {
                grid_wait();
            }
            if constexpr (Space::BASIS) {
                rows.take(h, rows.scale);
                // In the order of the tiles, as the factors come.
                if (group > 0 || number > 0) {
                    mbarrier_wait(&at.factor_turn[group], (number - (group == 0)) & 1);
                }
                u32 factor = at.factor_next[group];
                named_barrier_sync(1 + group, 128);
                while (adapters) {
                    i32 which = take_first(adapters);
                    u32 slot = factor % SLAB_FACTORS, a[4];
                    rows.only(which, a);
                    mbarrier_wait(&at.factor_full[slot], factor / SLAB_FACTORS & 1);
                    u64 b = wgmma_descriptor(shared_address(at.factors) + slot * Space::FACTOR_BYTES, 128, 256, SWIZZLE_NONE);
                    wgmma_fence();
                    wgmma_rs<element, SLAB>(d, a, b, true);
                    wgmma_commit();
                    wgmma_wait<0>();
                    wgmma_hold(d);
                    if (threadIdx.x % 128 == 0) {
                        mbarrier_arrive(&at.factor_empty[slot]);
                    }
                    factor++;
                }
                if (threadIdx.x % 128 == 0) {
                    u32 next = group + 1 == SLAB_GROUPS ? 0 : group + 1;
                    at.factor_next[next] = factor;
                    mbarrier_arrive(&at.factor_turn[next]);
                }
            } else if constexpr (ADAPTED) {
                if (number == 0) {
                    rows.fetch(sums, slice, own, p.rows);
                }
                rows.add<IN_FRAGMENTS, SLAB_RUNS>(slice, sums.groups, within, left, FragmentsFar(), d);
            }
            BiasNear bias = {shared_address(at.bias)};
            if ((!ADAPTED && p.adds) || p.residual) {
                write_rows<FORM, SLAB_RUNS, true, !ADAPTED>(p, bias, tile * SLAB_TILE, column, d);
            } else if (FORM == FLOOR && p.floor == -infinity()) {
                write_rows<AS_IT_IS, SLAB_RUNS, false, !ADAPTED>(p, bias, tile * SLAB_TILE, column, d);
            } else {
                write_rows<FORM, SLAB_RUNS, false, !ADAPTED>(p, bias, tile * SLAB_TILE, column, d);
            }
        }
    }
    // The other block may still write into this one, or arrive at its barriers.
    cluster_arrive();
    cluster_wait();
}
