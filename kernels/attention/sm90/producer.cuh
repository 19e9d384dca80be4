// The warp of `attention/sm90/pipeline.cuh` that copies: Q of each tile, and the keys of its steps into the ring.
#pragma once

#include "attention/sm90/schedule.cuh"

// Whether K's first panel and the rest come behind barriers of their own, so that the product starts when the first is there.
template <Lists LISTED> constexpr bool HALVED_KEYS = LISTED == EVERY && PANELS > 1 && !UNALIGNED;

// Whether Q and the first K are asked for before all else, and the rest when those have come: all blocks begin at once, and what none can begin
// without would come later if all asked for the rest too.
template <class Order> constexpr bool ASKS_FIRST = MASKS_ONCE<Order>;

// Whether V of a step is asked for behind K of the next one. V's place is free half a step later than K's, which has longer to come then: copies of
// wide rows that lie on no multiple of 32 bytes take so long. And of the first steps K is wanted before V.
template <Lists LISTED, class Order> constexpr bool LATE_VALUES = LISTED == EVERY && (HEAD_DIM > 128 || ASKS_FIRST<Order>);

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

// One panel of K.
template <class Order> __device__ __forceinline__ void fetch_part(int panel, const tensor_map &map, char *to, u64 *full, i32 row, u32 head, u32 batch) {
    if constexpr (Order::SHARED_KEYS) {
        i32 half = i32(cluster_rank()) * (BLOCK_KEYS / 2), row_bytes = panel == PANELS - 1 ? TAIL_BYTES : ROW_BYTES;
        tma_load_4d_multicast(to + panel * BLOCK_KEYS * ROW_BYTES + half * row_bytes, &map, full, panel * 64, row + half, head, batch, 3);
    } else {
        tma_load_4d(to + panel * BLOCK_KEYS * ROW_BYTES, &map, full, panel * 64, row, head, batch);
    }
}

// Starts copying a warpgroup's 64 rows of Q to where all of the tile's lie from `to` on.
template <class Order> __device__ __forceinline__ void fetch_queries(const TmaParams &p, char *to, u64 *full, const Block &block, u32 group) {
    i32 row = CAUSAL_PAIRED<Order> && group ? CausalPaired::early_row(p.common, block.first_row) : block.first_row + i32(group * 64);
    row = IS_VARLEN ? block.span.q_begin + row : row;
    mbarrier_arrive_expect(full, Q_BYTES / CONSUMERS);
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
        tma_load_4d(to + (panel * BLOCK_ROWS + group * 64) * ROW_BYTES, &p.q, full, panel * 64, row, block.head, block.batch);
    }
}

// Starts copying K of a step to its stage.
template <Lists LISTED, class Order> __device__ __forceinline__ void fetch_step_keys(const TmaParams &p, const Stage &stage, u32 at, i32 key, u32 head, u32 batch) {
    char *to = stage.k + at * K_BYTES;
    u64 *full = &stage.shared->k_ring.full[at], *rest = &stage.shared->k_rest[at];
    if constexpr (HALVED_KEYS<LISTED>) {
        mbarrier_arrive_expect(full, BLOCK_KEYS * ROW_BYTES);
        fetch_part<Order>(0, p.k, to, full, key, head, batch);
        mbarrier_arrive_expect(rest, K_BYTES - BLOCK_KEYS * ROW_BYTES);
#pragma unroll
        for (int panel = 1; panel < PANELS; panel++) {
            const tensor_map &map = K_TAIL && panel == PANELS - 1 ? p.k_tail : p.k;
            fetch_part<Order>(panel, map, to, rest, key, head, batch);
        }
    } else {
        mbarrier_arrive_expect(full, K_BYTES);
        fetch_keys<Order>(p.k, to, full, key, head, batch);
    }
}

// What a row of the block's keys is to TMA.
__device__ __forceinline__ i32 key_row(const Block &block, i32 key) { return IS_VARLEN ? block.span.kv_begin + key : key; }

// Q and the first K of a block's only tile, by the thread that has made the barriers.
template <Lists LISTED, class Order> __device__ __forceinline__ void ask_first(const Order &order, const Stage &stage) {
    const TmaParams &p = order.p;
    Block block = order.template block<LISTED>(0);
    // The other groups' rows come behind the first keys, with which the first group starts.
    fetch_queries<Order>(p, stage.q, &stage.shared->q_full[0][0], block, 0);
    fetch_step_keys<LISTED, Order>(p, stage, 0, block.steps.last * BLOCK_KEYS, kv_head_of(p.common, block), block.batch);
    for (u32 group = 1; group < CONSUMERS; group++) {
        fetch_queries<Order>(p, stage.q, &stage.shared->q_full[0][group], block, group);
    }
}

// The tile after this one; `total` or more where there is none. Whoever asks last of all clears the counter for the next launch.
template <class Order> __device__ __forceinline__ u32 next_work(const TmaParams &p, u32 total) {
    if (Order::BLOCK_SPARSE ? total <= gridDim.x : p.queue == nullptr) {
        return total;
    }
    u32 taken = atomicAdd(p.queue, 1u);
    if (taken + 1 == total) {
        *p.queue = 0;
    }
    return gridDim.x + taken;
}

// V of a step that is to be brought.
struct Values {
    u32 count;
    i32 key;
    u32 head, batch;
    bool waiting;
    i32 there;   // of a sequence in pages: its keys from `key` on
};

template <Lists LISTED, class Order> __device__ __forceinline__ void produce(Order order, const Stage &stage) {
    const TmaParams &p = order.p;
    Shared &shared = *stage.shared;
    u32 total = order.total(), count = 0, turn = 0, work = ONE_TILE<Order> ? 0 : blockIdx.x / cluster_size();
    if constexpr (Order::SHARED_KEYS) {
        work = order.first();
    }
    Values late = {};
    auto fetch_values = [&](const Values &values) {
        u32 at = values.count % STAGES;
        if constexpr (IN_PAGES<Order> && AHEAD && LATE_VALUES<LISTED, Order>) {
            order.look_up(values);
        }
        await(&shared.v_ring.empty[at], values.count / STAGES % 2 ^ 1);
        if constexpr (IN_PAGES<Order>) {
            order.fetch_values(stage.v + at * V_BYTES, &shared.v_ring.full[at], values);
            return;
        }
        mbarrier_arrive_expect(&shared.v_ring.full[at], V_BYTES);
        fetch_keys<Order>(p.v, stage.v + at * V_BYTES, &shared.v_ring.full[at], values.key, values.head, values.batch);
    };
    auto bring_late_values = [&] {
        if (LATE_VALUES<LISTED, Order> && late.waiting) {
            fetch_values(late);
            late.waiting = false;
        }
    };
    for (; work < total; turn++) {
        Block block = order.template block<LISTED>(work);
        u32 kv_head = kv_head_of(p.common, block);
        u32 place = turn % Q_STAGES, brought = ASKS_FIRST<Order> ? CONSUMERS : 0;
        auto bring_queries = [&](u32 groups) {
            for (; brought < groups; brought++) {
                if (!ONE_TILE<Order> && brought < Q_PARTS) {
                    await(&shared.q_empty[place][brought], turn / Q_STAGES % 2 ^ 1);
                }
                if (!ONE_TILE<Order> && brought == 0) {
                    shared.work[turn % PUBLISHED_TILES] = work;
                    if constexpr (!Order::BLOCK_SPARSE) {
                        shared.published[turn % PUBLISHED_TILES] = {block.batch, block.head, block.first_row, block.steps.first, block.steps.last};
                        if (IS_VARLEN) {
                            shared.spans[turn % PUBLISHED_TILES] = block.span;
                        }
                    }
                }
                fetch_queries<Order>(p, stage.q + place * Q_BYTES, &shared.q_full[place][brought], block, brought);
            }
        };
        // The other groups' rows come behind the first keys, with which the first group starts. Where Q has to wait for the tile before, keys that
        // need not wait come before it.
        bool behind_keys = Q_STAGES == 1 && turn > 0;
        i32 queries_at = behind_keys ? block.steps.last - 1 : block.steps.last;
        bring_queries(behind_keys ? 0 : HALVED_KEYS<LISTED> ? 1 : CONSUMERS);
        TilePairs pairs = {};
        if constexpr (LISTED == BLOCKS_OF_64) {
            pairs = pairs_of(p, block);
        }
        // A part is asked for a step earlier than tiles are: its lists are read too, one number after the other, before its keys can come.
        i32 asking = block.steps.last > block.steps.first ? block.steps.first + 1 : block.steps.first;
        u32 next = Order::BLOCK_SPARSE && block.steps.last < block.steps.first ? next_work<Order>(p, total) : 0;
        for (i32 step = block.steps.last; step >= block.steps.first; step--, count++) {
            u32 at = count % STAGES, round = count / STAGES % 2 ^ 1;
            if constexpr (LISTED == BLOCKS_OF_64) {
                PairKeys keys = pair_keys(pairs, step);
                await(&shared.k_ring.empty[at], round);
                shared.pairs[at] = keys;
                mbarrier_arrive_expect(&shared.k_ring.full[at], K_BYTES);
                fetch_pair(p.k, stage.k + at * K_BYTES, &shared.k_ring.full[at], keys.first, kv_head, block.batch);
                if (Order::BLOCK_SPARSE && step == asking) {
                    next = next_work<Order>(p, total);
                }
                await(&shared.v_ring.empty[at], round);
                mbarrier_arrive_expect(&shared.v_ring.full[at], V_BYTES);
                fetch_pair(p.v, stage.v + at * V_BYTES, &shared.v_ring.full[at], keys.first, kv_head, block.batch);
                continue;
            }
            i32 key = LISTED ? block_columns(p.common)[step] * BLOCK_KEYS : step * BLOCK_KEYS;
            i32 kind = LISTED ? block_kinds(p.common)[step] : -1;
            if constexpr (IN_PAGES<Order> && AHEAD) {
                order.look_up({count, key, kv_head, block.batch, false, block.span.kv_len - key});
            }
            if (!ASKS_FIRST<Order> || step < block.steps.last) {
                await(&shared.k_ring.empty[at], round);
                if (LISTED) {
                    shared.keys[at] = {key, kind};
                }
                if constexpr (IN_PAGES<Order>) {
                    order.fetch_keys(stage, at, {count, key, kv_head, block.batch, false, block.span.kv_len - key});
                } else {
                    fetch_step_keys<LISTED, Order>(p, stage, at, key_row(block, key), kv_head, block.batch);
                }
            }
            if (step <= queries_at) {
                bring_queries(CONSUMERS);
            }
            if (Order::BLOCK_SPARSE && step == asking) {
                next = next_work<Order>(p, total);
            }
            if (ASKS_FIRST<Order> && step == block.steps.last) {
                await(&shared.q_full[0][CONSUMERS - 1], 0);
            }
            if (LATE_VALUES<LISTED, Order>) {
                bring_late_values();
                late = {count, IN_PAGES<Order> ? key : key_row(block, key), kv_head, block.batch, true, block.span.kv_len - key};
                continue;
            }
            fetch_values({count, IN_PAGES<Order> ? key : key_row(block, key), kv_head, block.batch, false, block.span.kv_len - key});
        }
        if (ONE_TILE<Order> || block.steps.last < block.steps.first) {
            // No step brings what the one before it waits for.
            bring_late_values();
        }
        if constexpr (ONE_TILE<Order>) {
            return;
        }
        bring_queries(CONSUMERS);
        // Asked for late: a block with a long tile must not keep the next one from others.
        if constexpr (Order::SHARED_KEYS) {
            work = order.after(work, block);
        } else {
            work = Order::BLOCK_SPARSE ? next : next_work<Order>(p, total);
        }
    }
    bring_late_values();
    // Nothing is left.
    for (u32 group = 0; group < CONSUMERS; group++) {
        if (group < Q_PARTS) {
            await(&shared.q_empty[turn % Q_STAGES][group], turn / Q_STAGES % 2 ^ 1);
        }
        if (group == 0) {
            shared.work[turn % PUBLISHED_TILES] = ~0u;
        }
        mbarrier_arrive(&shared.q_full[turn % Q_STAGES][group]);
    }
}
