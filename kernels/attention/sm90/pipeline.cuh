// What a block of threads does with its tiles, whatever the order that it takes them in: a warp that copies, and warpgroups that multiply.
//
// A producer warp copies K and V by TMA into a ring of STAGES. Each consumer warpgroup holds 64 rows of the scores, of P and of
// O in registers: the scores of the next step are multiplied while P·V of this one runs, and the softmax of one group runs under
// the products of the other (named barriers 1 and 2). Keys are walked from the last to the first, so that masks come early.
//
// Blocks stay and take one tile after the other, the next from a counter in device memory: what ends and begins a tile runs
// under the products of its neighbours. Where tiles are few each block has one (`SingleTile`, `CausalPaired`), in a quarter of the code. Where there are
// fewer than SMs the blocks of a cluster share the keys of one (`join_output`).
#pragma once

#include "attention/sm90/mask.cuh"
#include "attention/sm90/producer.cuh"
#include "attention/sm90/schedule.cuh"

// This warp is done with keys, which `empty` guards in every block that they were brought to.
template <class Order> __device__ __forceinline__ void release_keys(u64 *empty) {
    if constexpr (Order::SHARED_KEYS) {
        if (threadIdx.x % 32 < 2) {
            mbarrier_arrive_remote_relaxed(empty, threadIdx.x % 32);
        }
    } else {
        release(empty);
    }
}

// Keys of the step in a stage, for warpgroup `group`.
template <Lists LISTED> __device__ __forceinline__ auto keys_of(const Shared &shared, u32 stage, i32 step, u32 group) {
    if constexpr (LISTED == BLOCKS_OF_64) {
        const PairKeys &keys = shared.pairs[stage];
        return GroupKeys{{keys.first[0], keys.first[1]}, {keys.kind[group][0], keys.kind[group][1]}};
    } else {
        return LISTED ? shared.keys[stage] : Keys{step * BLOCK_KEYS, -1};
    }
}

template <Lists LISTED, class K>
__device__ __forceinline__ void mask_rows(const AttentionParams &p, Scores &s, const Rows &rows, const ShortMask &mask, const K &keys) {
    if constexpr (LISTED == BLOCKS_OF_64) {
        mask_pair(p, s, rows, mask, keys);
    } else {
        mask_scores<LISTED>(p, s, rows, mask, keys);
    }
}

// Goes past a step whose keys this group does not see.
template <Lists LISTED> __device__ __forceinline__ void pass_keys(Shared &shared, u32 count) {
    u32 at = count % STAGES, round = count / STAGES % 2;
    await(shared.k_there(at), round);
    if (HALVED_KEYS<LISTED>) {
        await(&shared.k_rest[at], round);
    }
    release(&shared.k_ring.empty[at]);
    await(shared.v_there(at), round);
    release(&shared.v_ring.empty[at]);
}

// The tiles of a warpgroup: 64 rows of each; `group` counts from 0.
template <Lists LISTED, class Order> __device__ __forceinline__ void consume(const Order &order, const Stage &stage, u32 group) {
    const AttentionParams &p = order.p.common;
    Shared &shared = *stage.shared;
    f32 factor = p.scale * 1.4426950409f;
    // Where the group's rows begin in a tile.
    u32 own_rows = group * 64;
    u64 q_tiles = wgmma_descriptor(shared_address(stage.q) + own_rows * ROW_BYTES, 16, PATTERN, SWIZZLE_128);
    u64 k_tiles = wgmma_descriptor(shared_address(stage.k), 16, PATTERN, SWIZZLE_128);
    u64 v_tiles = wgmma_descriptor(shared_address(stage.v), BLOCK_KEYS * ROW_BYTES, PATTERN, SWIZZLE_128);
    u32 count = 0;

#pragma unroll 1
    for (u32 turn = 0;; turn++) {
        u32 place = turn % Q_STAGES;
        await(&shared.q_full[place][group], turn / Q_STAGES % 2);
        // Read by the lane alone that says later (`release`) that the next may be written: that orders the two.
        u32 work = ONE_TILE<Order> ? 0 : shuffle_from(threadIdx.x % 32 == 0 ? shared.work[turn % PUBLISHED_TILES] : 0, 0);
        if (work == ~0u) {
            return;
        }
        Block block;
        if constexpr (ONE_TILE<Order>) {
            block = order.template block<LISTED>(0);
        } else if constexpr (!Order::BLOCK_SPARSE) {
            Published published = {};
            if (threadIdx.x % 32 == 0) {
                published = shared.published[turn % PUBLISHED_TILES];
            }
            block.batch = shuffle_from(published.batch, 0);
            block.head = shuffle_from(published.head, 0);
            block.first_row = i32(shuffle_from(u32(published.first_row), 0));
            block.steps = {i32(shuffle_from(u32(published.first), 0)), i32(shuffle_from(u32(published.last), 0))};
            block.mask = mask_of(p, i32(p.q_len), i32(p.kv_len));
            if constexpr (IS_VARLEN) {
                order.published_span(block, shared.spans[turn % PUBLISHED_TILES]);
            }
        } else {
            block = order.template block<LISTED>(work);
            block.steps = {i32(shuffle_from(u32(block.steps.first), 0)), i32(shuffle_from(u32(block.steps.last), 0))};
        }
        if constexpr (UNALIGNED) {
            order.turn_queries(block, stage.q + place * Q_BYTES + (own_rows + threadIdx.x / 32 % 4 * 16) * ROW_BYTES, group);
        }
        u64 *q_empty = &shared.q_empty[place][Q_PARTS > 1 ? group : 0];
        u64 q = wgmma_uniform(wgmma_moved(q_tiles, place * Q_BYTES)), k = wgmma_uniform(k_tiles), v = wgmma_uniform(v_tiles);
        // Steps after the first that both groups multiply, in turn.
        i32 turns = block.steps.last - block.steps.first, first = block.first_row + i32(own_rows);
        if constexpr (CAUSAL_PAIRED<Order>) {
            i32 early = CausalPaired::early_row(p, block.first_row), own = SingleTile::last_step(p, block.mask, early + 64);
            first = group > 0 ? early : block.first_row;
            turns = own < turns ? own : turns;
            for (; group > 0 && block.steps.last > own; block.steps.last--, count++) {
                pass_keys<LISTED>(shared, count);
            }
        }
        Rows rows = rows_from(p, block, first);

        Output o;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) {
            o[i] = 0.0f;
        }
        if (MASKS_ONCE<Order> || block.steps.last >= block.steps.first) {
            Weights weights;
            await(shared.k_there(count % STAGES), count / STAGES % 2);
            // The first group's product comes first: its softmax then runs under that of the next. Without a second step nothing would keep
            // a group from being a tile ahead, and arriving twice.
            bool in_line = HEAD_DIM > 64 && TAKES_TURNS<Order> && block.steps.last > block.steps.first;
            if (in_line && group > 0) {
                named_barrier_sync(4 + group, 256);
            }
            {
                Scores s;
                wgmma_fence();
                start_scores<HALVED_KEYS<LISTED>>(s, q, wgmma_moved(k, count % STAGES * K_BYTES), &shared.k_rest[count % STAGES], count / STAGES % 2);
                if (in_line && group < CONSUMERS - 1) {
                    named_barrier_arrive(5 + group, 256);
                }
                if (group == CONSUMERS - 1 && turns > 0) {
                    // The first group may multiply again, as soon as its softmax is done.
                    named_barrier_arrive(1, 256);
                }
                wgmma_wait<0>();
                wgmma_hold(s);
                auto keys = keys_of<LISTED>(shared, count % STAGES, block.steps.last, group);
                if (LISTED) {
                    __syncwarp();
                }
                release_keys<Order>(&shared.k_ring.empty[count % STAGES]);
                if constexpr (!MASKS_ONCE<Order>) {
                    mask_rows<LISTED>(p, s, rows, block.mask, keys);
                } else if (block.steps.last * BLOCK_KEYS + BLOCK_KEYS > rows.all_end) {
                    mask_behind(s, rows, block.mask, block.steps.last * BLOCK_KEYS);
                }
                softmax_scores(s, rows, factor);
                pack_weights(weights, s);
            }
            if constexpr (IS_VARLEN) {
                i32 there = block.span.kv_len - block.steps.last * BLOCK_KEYS;
                if (there < BLOCK_KEYS) {
                    await(shared.v_there(count % STAGES), count / STAGES % 2);
                    order.clear_values(stage.v + count % STAGES * V_BYTES, there, group);
                }
            }
            for (i32 step = block.steps.last - 1; step >= block.steps.first; step--) {
                Scores s;
                u32 next = count + 1;
                await(shared.k_there(next % STAGES), next / STAGES % 2);
                // Where the other group is behind, or done, nobody waits for it.
                bool in_turn = TAKES_TURNS<Order> || step - block.steps.first < turns;
                if (in_turn) {
                    named_barrier_sync(1 + group, 256);
                }
                wgmma_fence();
                start_scores<HALVED_KEYS<LISTED>>(s, q, wgmma_moved(k, next % STAGES * K_BYTES), &shared.k_rest[next % STAGES], next / STAGES % 2);
                await(shared.v_there(count % STAGES), count / STAGES % 2);
                wgmma_fence();
                start_output(o, weights, wgmma_moved(v, count % STAGES * V_BYTES), [&] {
                    if (in_turn && (group < CONSUMERS - 1 || step != block.steps.first)) {
                        named_barrier_arrive(group < CONSUMERS - 1 ? 2 + group : 1, 256);
                    }
                });
                wgmma_wait<1>();
                wgmma_hold(s);
                auto keys = keys_of<LISTED>(shared, next % STAGES, step, group);
                if (LISTED) {
                    __syncwarp();
                }
                release_keys<Order>(&shared.k_ring.empty[next % STAGES]);
                if (!MASKS_ONCE<Order>) {
                    mask_rows<LISTED>(p, s, rows, block.mask, keys);
                }
                softmax_scores(s, rows, factor);
                wgmma_wait<0>();
                wgmma_hold(o);
                hold(weights);
                release_keys<Order>(&shared.v_ring.empty[count % STAGES]);
                pack_weights(weights, s);
                rescale_output(o, rows);
                count = next;
            }
            if (!BY_WAY_OF_Q) {
                release(q_empty);
            }
            await(shared.v_there(count % STAGES), count / STAGES % 2);
            wgmma_fence();
            start_output(o, weights, wgmma_moved(v, count % STAGES * V_BYTES), [] {});
            wgmma_wait<0>();
            wgmma_hold(o);
            hold(weights);
            release_keys<Order>(&shared.v_ring.empty[count % STAGES]);
            count++;
        } else if (!BY_WAY_OF_Q) {
            release(q_empty);
        }
        if (Order::BLOCK_SPARSE) {
            // Their output does not go by way of Q.
            release(q_empty);
        }
        order.put(stage, block, work, rows, o, group, stage.q + place * Q_BYTES + (own_rows + threadIdx.x / 32 % 4 * 16) * ROW_BYTES);
        if (ONE_TILE<Order>) {
            return;
        }
        if (!Order::BLOCK_SPARSE && BY_WAY_OF_Q) {
            // What the warp has written there comes before Q of the tile after the next.
            fence_proxy_async();
            __syncwarp();
            release(q_empty);
        }
    }
}

// Registers of a thread of the group that copies, in which whoever reads a plan or mends rows needs some more, and of one that multiplies.
constexpr int GIVEN = UNALIGNED ? (HEAD_DIM > 240 ? 56 : 72) : CONSUMERS == 3 ? 32 : AHEAD ? 56 : 40;
constexpr int TAKEN = UNALIGNED ? (HEAD_DIM > 240 ? 224 : 216) : CONSUMERS == 3 ? 160 : AHEAD ? 224 : 232;

static_assert(GIVEN + CONSUMERS * TAKEN <= (1 << 16) / BLOCK_THREADS / 8 * 8 * (CONSUMERS + 1), "a launch has so many: of more, a group would wait for ever");

template <Lists LISTED, class Order> __device__ __forceinline__ void attend_tma(Order order, char *tiles) {
    constexpr u32 READERS = CONSUMERS * 4 * (Order::SHARED_KEYS ? 2 : 1);   // warps that read a step's keys
    Stage stage;
    stage.q = tiles;
    stage.k = stage.q + Q_STAGES * Q_BYTES;
    stage.v = stage.k + STAGES * K_BYTES;
    stage.shared = (Shared *)(stage.v + STAGES * V_BYTES);
    Shared &shared = *stage.shared;
    // Of one lane for all, so that the compiler knows that no warp takes both branches.
    u32 warp = shuffle_from(threadIdx.x / 32, 0), group = warp / 4;
    if (warp == 0 && elect_one()) {
        if constexpr (UNALIGNED) {
            order.prefetch_maps(place_of(order.p.common, blockIdx.x / cluster_size()).head);
        } else {
            tma_prefetch_map(&order.p.q);
            tma_prefetch_map(&order.p.k);
            if (K_TAIL) {
                tma_prefetch_map(&order.p.k_tail);
            }
            tma_prefetch_map(&order.p.v);
        }
        for (int i = 0; i < Q_STAGES; i++) {
            for (int g = 0; g < CONSUMERS; g++) {
                // Every lane that mends rows says for itself that they may be read.
                mbarrier_init(&shared.q_full[i][g], UNALIGNED ? 32 : 1);
            }
            for (int part = 0; part < Q_PARTS; part++) {
                // A lane of each consumer warp.
                mbarrier_init(&shared.q_empty[i][part], CONSUMERS * 4 / Q_PARTS);
            }
        }
        if (UNALIGNED) {
            for (int g = 0; g < CONSUMERS; g++) {
                mbarrier_init(&shared.q_there[g], 1);
            }
            for (int i = 0; i < PUBLISHED_TILES; i++) {
                mbarrier_init(&shared.published_ring.full[i], 1);
                mbarrier_init(&shared.published_ring.empty[i], 1);
            }
        }
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&shared.k_ring.full[i], 1);
            mbarrier_init(&shared.k_rest[i], 1);
            mbarrier_init(&shared.v_ring.full[i], 1);
            mbarrier_init(&shared.k_ring.empty[i], READERS);
            mbarrier_init(&shared.v_ring.empty[i], READERS);
            if (UNALIGNED) {
                mbarrier_init(&shared.k_ready[i], 1);
                mbarrier_init(&shared.v_ready[i], 1);
            }
        }
        fence_mbarrier_init();
        if constexpr (ASKS_FIRST<Order>) {
            grid_launch_next();
            grid_wait();
            ask_first<LISTED>(order, stage);
        }
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
        // Whoever copies waits for nobody.
        if (warp == 0) {
            __syncwarp();
            named_barrier_arrive(7, BLOCK_THREADS);
        } else {
            named_barrier_sync(7, BLOCK_THREADS);
        }
    }
    if (group == 0) {
        registers_give<GIVEN>();
        if constexpr (UNALIGNED) {
            produce_in_warps(order, stage, warp);
        } else if (warp == 0 && elect_one()) {
            produce<LISTED>(order, stage);
        }
        if (JOINED<Order> && cluster_size() > 1) {
            __syncwarp();
            cluster_arrive();
            cluster_wait();
            cluster_arrive();
            cluster_wait();
        }
    } else {
        registers_take<TAKEN>();
        consume<LISTED>(order, stage, group - 1);
        if constexpr (JOINED<Order>) {
            if (cluster_size() > 1) {
                // What all have kept is there, and then stays until all have read it.
                cluster_arrive();
                cluster_wait();
                order.join(stage);
                cluster_arrive();
                cluster_wait();
            }
        }
    }
    if (Order::SHARED_KEYS) {
        // Nothing comes to a block that has ended.
        __syncwarp();
        cluster_arrive();
        cluster_wait();
    }
}
