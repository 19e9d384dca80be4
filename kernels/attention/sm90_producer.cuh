// The warp of `sm90.cu` that copies: Q of each tile, and the keys of its steps into the ring.
#pragma once

#include "attention/sm90_orders.cuh"

// Whether the two panels of K come behind barriers of their own, so that the product starts when the first is there.
template <Lists LISTED> constexpr bool HALVED_KEYS = LISTED == EVERY && PANELS == 2;

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

// One panel.
template <class Order> __device__ __forceinline__ void fetch_part(int panel, const tensor_map &map, char *to, u64 *full, i32 row, u32 head, u32 batch) {
    if constexpr (Order::SHARED_KEYS) {
        i32 half = i32(cluster_rank()) * (BLOCK_KEYS / 2);
        tma_load_4d_multicast(to + (panel * BLOCK_KEYS + half) * ROW_BYTES, &map, full, panel * 64, row + half, head, batch, 3);
    } else {
        tma_load_4d(to + panel * BLOCK_KEYS * ROW_BYTES, &map, full, panel * 64, row, head, batch);
    }
}

// Starts copying a warp group's 64 rows of Q to where all of the tile's lie from `to` on.
template <class Order> __device__ __forceinline__ void fetch_queries(const TmaParams &p, char *to, u64 *full, const Block &block, u32 group) {
    i32 row = IN_HALVES<Order> && group ? Halves::early_row(p.common, block.first_row) : block.first_row + i32(group * 64);
    mbarrier_arrive_expect(full, Q_BYTES / CONSUMERS);
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
        tma_load_4d(to + (panel * BLOCK_ROWS + group * 64) * ROW_BYTES, &p.q, full, panel * 64, row, block.head, block.batch);
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
    u32 total = order.total(), count = 0, turn = 0, work = blockIdx.x / cluster_size();
    for (; work < total; turn++) {
        Block block = order.template block<LISTED>(work);
        u32 kv_head = block.head;
        if (p.common.heads != p.common.kv_heads) {
            kv_head = block.head / (u32(p.common.heads) / u32(p.common.kv_heads));
        }
        u32 place = turn % Q_STAGES;
        await(&shared.q_empty[place], turn / Q_STAGES % 2 ^ 1);
        shared.work[place] = work;
        if constexpr (!Order::IN_PARTS) {
            shared.told[place] = {block.batch, block.head, block.first_row, block.steps.first, block.steps.last};
        }
        char *q = stage.q + place * Q_BYTES;
        for (u32 group = 0; group < (HALVED_KEYS<LISTED> ? 1 : CONSUMERS); group++) {
            fetch_queries<Order>(p, q, &shared.q_full[place][group], block, group);
        }
        // The other groups' rows come behind the first keys, with which the first group starts.
        bool others = HALVED_KEYS<LISTED>;
        auto fetch_others = [&] {
            for (u32 group = 1; others && group < CONSUMERS; group++) {
                fetch_queries<Order>(p, q, &shared.q_full[place][group], block, group);
            }
            others = false;
        };
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
            if constexpr (HALVED_KEYS<LISTED>) {
                mbarrier_arrive_expect(&shared.k_ring.full[at], KV_BYTES / PANELS);
                fetch_part<Order>(0, p.k, stage.k + at * KV_BYTES, &shared.k_ring.full[at], key, kv_head, block.batch);
                mbarrier_arrive_expect(&shared.k_rest[at], KV_BYTES / PANELS);
                fetch_part<Order>(1, p.k, stage.k + at * KV_BYTES, &shared.k_rest[at], key, kv_head, block.batch);
            } else {
                mbarrier_arrive_expect(&shared.k_ring.full[at], KV_BYTES);
                fetch_keys<Order>(p.k, stage.k + at * KV_BYTES, &shared.k_ring.full[at], key, kv_head, block.batch);
            }
            fetch_others();
            if (Order::IN_PARTS && step == asking) {
                next = next_work<Order>(p, total);
            }
            await(&shared.v_ring.empty[at], round);
            mbarrier_arrive_expect(&shared.v_ring.full[at], KV_BYTES);
            fetch_keys<Order>(p.v, stage.v + at * KV_BYTES, &shared.v_ring.full[at], key, kv_head, block.batch);
        }
        fetch_others();
        // Asked for late: a block with a long tile must not keep the next one from others.
        work = Order::SHARED_KEYS ? work + gridDim.x / 2 : Order::IN_PARTS ? next : next_work<Order>(p, total);
    }
    // Nothing is left.
    await(&shared.q_empty[turn % Q_STAGES], turn / Q_STAGES % 2 ^ 1);
    shared.work[turn % Q_STAGES] = ~0u;
    for (u32 group = 0; group < CONSUMERS; group++) {
        mbarrier_arrive(&shared.q_full[turn % Q_STAGES][group]);
    }
}
