// O = softmax(scale·Q·Kᵀ + mask)·V on Hopper's tensor cores, dense and block-sparse, after FlashAttention-3 (Shah et al., 2024,
// arXiv 2407.08608).
//
// A producer warp copies K and V by TMA into a ring of STAGES. Each consumer warp group holds 64 rows of the scores, of P and of
// O in registers: the scores of the next step are multiplied while P·V of this one runs, and the softmax of one group runs under
// the products of the other (named barriers 1 and 2). Keys are walked from the last to the first, so that masks come early.
//
// Blocks stay and take one tile after the other, the next from a counter in device memory: what ends and begins a tile runs
// under the products of its neighbours. Where tiles are few, the blocks of a cluster share the keys of one (`join_output`).

#include "attention/lists.cuh"
#include "attention/narrow.cuh"
#include "attention/sm90.cuh"
#include "attention/sm90_mask.cuh"
#ifdef PLAN_PARTS
#include "attention/sm90_parts.cuh"
#endif

// Every tile once, in the order of their numbers. `Parts` is the other choice.
struct Tiles {
    static constexpr bool IN_PARTS = false, SHARED_KEYS = false;
    const TmaParams &p;

    template <Lists LISTED> __device__ __forceinline__ void prepare(const Stage &) const {}
    __device__ __forceinline__ u32 total() const { return p.work; }
    template <Lists LISTED> __device__ __forceinline__ Block block(u32 work) const { return block_of<LISTED>(p, work); }
    __device__ __forceinline__ void put(const Stage &stage, const Block &block, u32, Rows &rows, Output &o, u32 group) const {
        if (cluster_size() > 1) {
            keep_output((f32 *)stage.k, rows, o, group);
        } else {
            write_output(p.common, block, rows, o);
        }
    }
};

// Two neighbouring tiles of a head, one for each block of a cluster: both walk over the keys of both, and each brings half of a step's for
// the two, so that the second-level cache is asked for them once.
struct Neighbours {
    static constexpr bool IN_PARTS = false, SHARED_KEYS = true;
    const TmaParams &p;

    template <Lists LISTED> __device__ __forceinline__ void prepare(const Stage &) const {}
    __device__ __forceinline__ u32 total() const { return p.work; }
    template <Lists LISTED> __device__ __forceinline__ Block block(u32 work) const {
        Block block = place_of(p.common, work);
        i32 first_row = block.first_row * 2, past = first_row + 2 * BLOCK_ROWS;
        i32 last_row = (past < i32(p.common.q_len) ? past : i32(p.common.q_len)) - 1;
        i32 first = block.mask.first(first_row), end = block.mask.end(last_row);
        block.steps = {first / BLOCK_KEYS, first < end ? (end - 1) / BLOCK_KEYS : first / BLOCK_KEYS - 1};
        block.first_row = first_row + i32(cluster_rank()) * BLOCK_ROWS;
        return block;
    }
    __device__ __forceinline__ void put(const Stage &, const Block &block, u32, Rows &rows, Output &o, u32) const { write_output(p.common, block, rows, o); }
};

// Starts copying a step's keys, or this block's half of them for both blocks of a cluster.
template <class Order> __device__ __forceinline__ void fetch_keys(const tensor_map &map, char *to, u64 *full, i32 row, u32 head, u32 batch) {
    if constexpr (Order::SHARED_KEYS) {
        i32 half = i32(cluster_rank()) * (BLOCK_KEYS / 2);
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) {
            tma_load_4d_multicast(to + (panel * BLOCK_KEYS + half) * ROW_BYTES, &map, full, panel * 64, row + half, head, batch, 3);
        }
    } else {
        fetch<BLOCK_KEYS>(map, to, full, row, head, batch);
    }
}

// This warp is done with keys, which `empty` guards in every block that they were brought to.
template <class Order> __device__ __forceinline__ void leave_keys(u64 *empty) {
    if constexpr (Order::SHARED_KEYS) {
        if (threadIdx.x % 32 < 2) {
            mbarrier_arrive_remote_relaxed(empty, threadIdx.x % 32);
        }
    } else {
        leave(empty);
    }
}

// The tile after this one; `total` or more where there is none. Whoever asks last of all clears the counter for the next launch.
template <class Order> __device__ __forceinline__ u32 next_work(const TmaParams &p, u32 total) {
    if (Order::IN_PARTS ? total <= gridDim.x : p.queue == nullptr) {
        return total;
    }
    u32 taken = atomicAdd(p.queue, 1u);
    if (taken + 1 == total) {
        *p.queue = 0;
    }
    return gridDim.x + taken;
}

template <Lists LISTED, class Order> __device__ __forceinline__ void produce(const Order &order, const Stage &stage) {
    const TmaParams &p = order.p;
    Shared &shared = *stage.shared;
    tma_prefetch_map(&p.q);
    tma_prefetch_map(&p.k);
    tma_prefetch_map(&p.v);
    u32 total = order.total(), count = 0, turn = 0, work = blockIdx.x / cluster_size();
    for (; work < total; turn++) {
        Block block = order.template block<LISTED>(work);
        u32 kv_head = block.head / (u32(p.common.heads) / u32(p.common.kv_heads));
        u32 place = turn % Q_STAGES;
        await(&shared.q_empty[place], turn / Q_STAGES % 2 ^ 1);
        shared.work[place] = work;
        mbarrier_arrive_expect(&shared.q_full[place], Q_BYTES);
        fetch<BLOCK_ROWS>(p.q, stage.q + place * Q_BYTES, &shared.q_full[place], block.first_row, block.head, block.batch);
        TilePairs pairs = {};
        if constexpr (LISTED == BLOCKS_OF_64) {
            pairs = pairs_of(p, block);
        }
        // A part is asked for a step earlier than tiles are: its lists are read too, one number after the other, before its keys can come.
        i32 asking = block.steps.last > block.steps.first ? block.steps.first + 1 : block.steps.first;
        u32 next = Order::IN_PARTS && block.steps.last < block.steps.first ? next_work<Order>(p, total) : 0;
        for (i32 step = block.steps.last; step >= block.steps.first; step--, count++) {
            u32 at = count % STAGES, round = count / STAGES % 2 ^ 1;
            if constexpr (LISTED == BLOCKS_OF_64) {
                PairKeys keys = pair_keys(pairs, step);
                await(&shared.k_ring.empty[at], round);
                shared.pairs[at] = keys;
                mbarrier_arrive_expect(&shared.k_ring.full[at], KV_BYTES);
                fetch_pair(p.k, stage.k + at * KV_BYTES, &shared.k_ring.full[at], keys.first, kv_head, block.batch);
                if (Order::IN_PARTS && step == asking) {
                    next = next_work<Order>(p, total);
                }
                await(&shared.v_ring.empty[at], round);
                mbarrier_arrive_expect(&shared.v_ring.full[at], KV_BYTES);
                fetch_pair(p.v, stage.v + at * KV_BYTES, &shared.v_ring.full[at], keys.first, kv_head, block.batch);
                continue;
            }
            i32 key = LISTED ? block_columns(p.common)[step] * BLOCK_KEYS : step * BLOCK_KEYS;
            i32 kind = LISTED ? block_kinds(p.common)[step] : -1;
            await(&shared.k_ring.empty[at], round);
            if (LISTED) {
                shared.keys[at] = {key, kind};
            }
            mbarrier_arrive_expect(&shared.k_ring.full[at], KV_BYTES);
            fetch_keys<Order>(p.k, stage.k + at * KV_BYTES, &shared.k_ring.full[at], key, kv_head, block.batch);
            if (Order::IN_PARTS && step == asking) {
                next = next_work<Order>(p, total);
            }
            await(&shared.v_ring.empty[at], round);
            mbarrier_arrive_expect(&shared.v_ring.full[at], KV_BYTES);
            fetch_keys<Order>(p.v, stage.v + at * KV_BYTES, &shared.v_ring.full[at], key, kv_head, block.batch);
        }
        // Asked for late: a block with a long tile must not keep the next one from others.
        work = Order::SHARED_KEYS ? work + gridDim.x / 2 : Order::IN_PARTS ? next : next_work<Order>(p, total);
    }
    // Nothing is left.
    await(&shared.q_empty[turn % Q_STAGES], turn / Q_STAGES % 2 ^ 1);
    shared.work[turn % Q_STAGES] = ~0u;
    mbarrier_arrive(&shared.q_full[turn % Q_STAGES]);
}

// Keys of the step in a stage, for warp group `group`.
template <Lists LISTED> __device__ __forceinline__ auto keys_of(const Shared &shared, u32 stage, i32 step, u32 group) {
    if constexpr (LISTED == BLOCKS_OF_64) {
        const PairKeys &keys = shared.pairs[stage];
        return GroupKeys{{keys.first[0], keys.first[1]}, {keys.kind[group][0], keys.kind[group][1]}};
    } else {
        return LISTED ? shared.keys[stage] : Keys{step * BLOCK_KEYS, -1};
    }
}

template <Lists LISTED, class K>
__device__ __forceinline__ void hide(const AttentionParams &p, Scores &s, const Rows &rows, const ShortMask &mask, const K &keys) {
    if constexpr (LISTED == BLOCKS_OF_64) {
        hide_pair(p, s, rows, mask, keys);
    } else {
        hide_scores<LISTED>(p, s, rows, mask, keys);
    }
}

// The tiles of a warp group: 64 rows of each; `group` counts from 0.
template <Lists LISTED, class Order> __device__ __forceinline__ void consume(const Order &order, const Stage &stage, u32 group) {
    const AttentionParams &p = order.p.common;
    Shared &shared = *stage.shared;
    f32 factor = p.scale * 1.4426950409f;
    u64 q_tiles = wgmma_descriptor(shared_address(stage.q) + group * 64 * ROW_BYTES, 16, PATTERN, SWIZZLE_128);
    u64 k_tiles = wgmma_descriptor(shared_address(stage.k), 16, PATTERN, SWIZZLE_128);
    u64 v_tiles = wgmma_descriptor(shared_address(stage.v), BLOCK_KEYS * ROW_BYTES, PATTERN, SWIZZLE_128);
    u32 count = 0;

#pragma unroll 1
    for (u32 turn = 0;; turn++) {
        u32 place = turn % Q_STAGES;
        await(&shared.q_full[place], turn / Q_STAGES % 2);
        // Read by the lane alone that says later (`leave`) that the next may be written: that orders the two.
        u32 work = __shfl_sync(0xffffffffu, threadIdx.x % 32 == 0 ? shared.work[place] : 0, 0);
        if (work == ~0u) {
            return;
        }
        Block block = order.template block<LISTED>(work);
        block.steps = {i32(shuffle_from(u32(block.steps.first), 0)), i32(shuffle_from(u32(block.steps.last), 0))};
        u64 q = wgmma_uniform(wgmma_moved(q_tiles, place * Q_BYTES)), k = wgmma_uniform(k_tiles), v = wgmma_uniform(v_tiles);
        Rows rows;
        i32 first = block.first_row + i32(group * 64), last = first + 63 < i32(p.q_len) ? first + 63 : i32(p.q_len) - 1;
        rows.row[0] = first + i32(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
        rows.row[1] = rows.row[0] + 8;
        rows.all_first = block.mask.first(last);
        rows.all_end = block.mask.end(first);
        rows.most[0] = rows.most[1] = -infinity();
        rows.total[0] = rows.total[1] = 0.0f;

        Output o;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) {
            o[i] = 0.0f;
        }
        if (block.steps.last < block.steps.first) {
            leave(&shared.q_empty[place]);
        } else {
            Weights weights;
            await(&shared.k_ring.full[count % STAGES], count / STAGES % 2);
            {
                Scores s;
                wgmma_fence();
                start_scores(s, q, wgmma_moved(k, count % STAGES * KV_BYTES));
                wgmma_wait<0>();
                wgmma_hold(s);
                auto keys = keys_of<LISTED>(shared, count % STAGES, block.steps.last, group);
                if (LISTED) {
                    __syncwarp();
                }
                leave_keys<Order>(&shared.k_ring.empty[count % STAGES]);
                if (block.steps.last == block.steps.first) {
                    leave(&shared.q_empty[place]);
                }
                hide<LISTED>(p, s, rows, block.mask, keys);
                soften_scores(s, rows, factor);
                pack_weights(weights, s);
            }
            if (group == CONSUMERS - 1 && block.steps.last > block.steps.first) {
                // The first group may multiply first.
                named_barrier_arrive(1, 256);
            }
            for (i32 step = block.steps.last - 1; step >= block.steps.first; step--) {
                Scores s;
                u32 next = count + 1;
                await(&shared.k_ring.full[next % STAGES], next / STAGES % 2);
                named_barrier_sync(1 + group, 256);
                wgmma_fence();
                start_scores(s, q, wgmma_moved(k, next % STAGES * KV_BYTES));
                await(&shared.v_ring.full[count % STAGES], count / STAGES % 2);
                wgmma_fence();
                start_output(o, weights, wgmma_moved(v, count % STAGES * KV_BYTES));
                if (group < CONSUMERS - 1 || step != block.steps.first) {
                    named_barrier_arrive(group < CONSUMERS - 1 ? 2 + group : 1, 256);
                }
                wgmma_wait<1>();
                wgmma_hold(s);
                auto keys = keys_of<LISTED>(shared, next % STAGES, step, group);
                if (LISTED) {
                    __syncwarp();
                }
                leave_keys<Order>(&shared.k_ring.empty[next % STAGES]);
                if (step == block.steps.first) {
                    // Q of the next tile may come.
                    leave(&shared.q_empty[place]);
                }
                hide<LISTED>(p, s, rows, block.mask, keys);
                soften_scores(s, rows, factor);
                wgmma_wait<0>();
                wgmma_hold(o);
                hold(weights);
                leave_keys<Order>(&shared.v_ring.empty[count % STAGES]);
                pack_weights(weights, s);
                shrink_output(o, rows);
                count = next;
            }
            await(&shared.v_ring.full[count % STAGES], count / STAGES % 2);
            wgmma_fence();
            start_output(o, weights, wgmma_moved(v, count % STAGES * KV_BYTES));
            wgmma_wait<0>();
            wgmma_hold(o);
            hold(weights);
            leave_keys<Order>(&shared.v_ring.empty[count % STAGES]);
            count++;
        }
        order.put(stage, block, work, rows, o, group);
    }
}

template <Lists LISTED, class Order> __device__ __forceinline__ void attend_tma(Order order, char *tiles) {
    constexpr bool PLANNED = Order::IN_PARTS || LISTED == BLOCKS_OF_64;
    constexpr u32 READERS = CONSUMERS * 4 * (Order::SHARED_KEYS ? 2 : 1);   // warps that read a step's keys
    Stage stage;
    stage.q = tiles;
    stage.k = stage.q + Q_STAGES * Q_BYTES;
    stage.v = stage.k + STAGES * KV_BYTES;
    stage.shared = (Shared *)(stage.v + STAGES * KV_BYTES);
    Shared &shared = *stage.shared;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Q_STAGES; i++) {
            mbarrier_init(&shared.q_full[i], 1);
            // A lane of each consumer warp.
            mbarrier_init(&shared.q_empty[i], CONSUMERS * 4);
        }
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&shared.k_ring.full[i], 1);
            mbarrier_init(&shared.v_ring.full[i], 1);
            mbarrier_init(&shared.k_ring.empty[i], READERS);
            mbarrier_init(&shared.v_ring.empty[i], READERS);
        }
        fence_mbarrier_init();
    }
    // Blocks of the next launch may take the places of those that end here, and wait there as this one does.
    grid_launch_next();
    grid_wait();
    order.template prepare<LISTED>(stage);
    if (Order::SHARED_KEYS) {
        // The other block's barriers are there too.
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }
    // Of one lane for all, so that the compiler knows that no warp takes both branches.
    u32 group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    if (group == 0) {
        // Whoever reads a plan needs some more.
        registers_give<CONSUMERS == 3 ? 32 : PLANNED ? 40 : 24>();
        if (threadIdx.x == 0) {
            produce<LISTED>(order, stage);
        }
        if (!Order::IN_PARTS && !Order::SHARED_KEYS && cluster_size() > 1) {
            __syncwarp();
            cluster_arrive();
            cluster_wait();
            cluster_arrive();
            cluster_wait();
        }
    } else {
        registers_take<CONSUMERS == 3 ? 160 : PLANNED ? 232 : 240>();
        consume<LISTED>(order, stage, group - 1);
        if (!Order::IN_PARTS && !Order::SHARED_KEYS && cluster_size() > 1) {
            // What all have kept is there, and then stays until all have read it.
            cluster_arrive();
            cluster_wait();
            join_output(order.p.common, (const f32 *)stage.k);
            cluster_arrive();
            cluster_wait();
        }
    }
    if (Order::SHARED_KEYS) {
        // Nothing comes to a block that has ended.
        __syncwarp();
        cluster_arrive();
        cluster_wait();
    }
}

#ifdef PLAN_PARTS
// Only the listed blocks of 128 queries and keys, rows in parts.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_block_parts(const __grid_constant__ PartParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<BLOCKS_OF_128>(Parts(p, tiles), tiles);
}

// Only the listed blocks of 64, by the plan of `attention_pairs`, rows in parts.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_pair_parts(const __grid_constant__ PartParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<BLOCKS_OF_64>(Parts(p, tiles), tiles);
}
#else
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90(const __grid_constant__ TmaParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<EVERY>(Tiles{p}, tiles);
}

// By clusters of two blocks, which share their keys.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_neighbours(const __grid_constant__ TmaParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<EVERY>(Neighbours{p}, tiles);
}

#if CONSUMERS == 2
// Only the listed blocks of 128 queries and keys.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_blocks(const __grid_constant__ TmaParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<BLOCKS_OF_128>(Tiles{p}, tiles);
}

// Only the listed blocks of 64, by the plan of `attention_pairs`.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_pairs(const __grid_constant__ TmaParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<BLOCKS_OF_64>(Tiles{p}, tiles);
}
#endif
#endif
