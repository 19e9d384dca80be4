// Rows that do not start on multiples of 16 bytes, of tokens that lie multiples of 16 bytes apart.
//
// TMA starts a box on a multiple of 16 bytes: up to seven elements before a head's first, and as many in all rows of the head. So element e
// of a row arrives in column e + shift, with another head's elements before the first one. Each description is of every eighth head, all of which
// start equally late, and ends where they do: behind the last element there are zeros. Elements past column HEAD_DIM go to the first columns, where the
// other head's were: element e then lies in column (e + shift) % HEAD_DIM. One warp mends K so and one V, 16 bytes of a row, while the steps before are
// multiplied. A third brings Q, which comes in the columns of its own heads: where K's are others, those who multiply it turn it first. What V has in
// columns of no element comes to columns of O that nobody writes.
#pragma once

#include "attention/sm90/producer.cuh"
#include "attention/head_map.cuh"
#include "attention/heads_params.cuh"
#include "attention/unaligned_params.cuh"

constexpr u32 NO_STEP = ~0u;       // for the warps that mend
constexpr i32 PUBLISHED_EARLY = 2;      // steps before a tile's last one, at which the next tile's Q is asked for

// Where TMA finds a head: the description, the head's place in it, and elements there before the head's first.
struct HeadPlace {
    u32 map, head, shift;
};

__device__ __forceinline__ HeadPlace place_of_head(const HeadsParams &p, u32 head) { return {head % 8, head / 8, p.over + head * p.inside & 7}; }

__device__ __forceinline__ u32 kv_head_of(const AttentionParams &p, u32 head) {
    return p.heads == p.kv_heads ? head : head / (u32(p.heads) / u32(p.kv_heads));
}

// Where those columns of a row lie in a tile of ROWS_THERE, whose last panel has rows of TAIL bytes.
template <u32 ROWS_THERE, u32 TAIL> __device__ __forceinline__ uint4 *chunk_at(char *tile, u32 row, u32 chunk) {
    char *panel = tile + chunk / 8 * ROWS_THERE * ROW_BYTES;
    if (TAIL < ROW_BYTES && chunk / 8 == PANELS - 1) {
        return (uint4 *)(panel + row * TAIL + (chunk ^ row / 2) % 4 * 16);
    }
    return (uint4 *)(panel + row * ROW_BYTES + (chunk ^ row) % 8 * 16);
}

// All bits of the first `count` of eight elements.
__device__ __forceinline__ uint4 first_of(i32 count) {
    auto word = [count](i32 first) { return count >= first + 2 ? ~0u : count > first ? 0xffff : 0; };
    return {word(0), word(2), word(4), word(6)};
}

// `eight`, of which `front` takes the place of what `before` has bits of.
__device__ __forceinline__ uint4 with_front(uint4 eight, uint4 before, uint4 front) {
    return {eight.x & ~before.x | front.x, eight.y & ~before.y | front.y, eight.z & ~before.z | front.z, eight.w & ~before.w | front.w};
}

// Lanes side by side on a row of Q or O, and rows that a warp reads and writes at once.
constexpr u32 ABREAST = CHUNKS > 16 ? 32 : 16, ROWS_AT_ONCE = 32 / ABREAST;
// Such rows under way together; of Q few where O and the scores fill the registers.
constexpr u32 O_TURNS = 8, Q_TURNS = CHUNKS > 16 ? 2 : 8;

// O of a tile by way of the warp's rows of Q: 16 bytes of a row for each lane where those lie on a multiple of 16 bytes in device memory, and what is
// left at either end one by one. All rows start equally late behind such a multiple. Element e lies in column (e + shift) % HEAD_DIM.
__device__ __forceinline__ void write_unaligned(const AttentionParams &p, const Block &block, const Rows &rows, const Output &o, char *room, u32 shift) {
    lay_rows(p, block, rows, o, room);
    __syncwarp();
    u32 lane = threadIdx.x % 32, own = lane / ABREAST, place = lane % ABREAST;
    i32 query = rows.row[0] - i32(lane / 4) + i32(own), head_dim = p.head_dim;
    element *to = p.o + block.batch * p.o_batch + block.head * p.o_head + u64(query) * p.o_token;
    i32 first = i32(8 - u32(u64(to) / 2 & 7) & 7), last = first + (head_dim - first & ~7);   // of whole 16 bytes, and behind them
    i32 whole = first + i32(place * 8), one = place < 8 ? i32(place) : last + i32(place - 8);
    bool has_whole = whole < last, has_one = one < (place < 8 ? first : head_dim);
    auto column_of = [shift](i32 e) { return u32(e) + shift < HEAD_DIM ? u32(e) + shift : u32(e) + shift - HEAD_DIM; };
    u32 column = has_whole ? column_of(whole) : 0, chunk = column / 8, next = chunk + 1 < CHUNKS ? chunk + 1 : 0, one_column = has_one ? column_of(one) : 0;
    u32 across = u32(first) + shift & 7;
    auto chunk_of = [room](u32 row, u32 chunk) { return chunk_at<BLOCK_ROWS, ROW_BYTES>(room, row, chunk); };
#pragma unroll
    for (u32 above = 0; above < 16; above += O_TURNS * ROWS_AT_ONCE) {
        uint4 wide[O_TURNS];
        u16 narrow[O_TURNS];
#pragma unroll
        for (u32 i = 0; i < O_TURNS; i++) {
            u32 row = above + i * ROWS_AT_ONCE + own;
            wide[i] = *chunk_of(row, chunk);
            narrow[i] = ((const u16 *)chunk_of(row, one_column / 8))[one_column % 8];
        }
        if (across > 0) {
#pragma unroll
            for (u32 i = 0; i < O_TURNS; i++) {
                wide[i] = eight_across(wide[i], *chunk_of(above + i * ROWS_AT_ONCE + own, next), across);
            }
        }
#pragma unroll
        for (u32 i = 0; i < O_TURNS; i++) {
            u32 row = above + i * ROWS_AT_ONCE;
            if (query + i32(row) < i32(p.q_len)) {
                element *at = to + row * p.o_token;
                if (has_whole) {
                    store_16(at + whole, wide[i]);
                }
                if (has_one) {
                    at[one].bits = narrow[i];
                }
            }
        }
    }
}

// The tiles of `Tiles` or `Multicast`.
template <class Order> struct Unaligned : Order {
    const UnalignedParams &unaligned;

    __device__ __forceinline__ void prefetch_maps(u32 head) const {
        u32 kv_head = kv_head_of(unaligned.tiles.common, head) % 8;
        tma_prefetch_map(&unaligned.q.rows[head % 8].map);
        tma_prefetch_map(&unaligned.k.rows[kv_head].map);
        if (K_TAIL) {
            tma_prefetch_map(&unaligned.k_tail[kv_head].map);
        }
        tma_prefetch_map(&unaligned.v.rows[kv_head].map);
    }

    // Q comes in the columns that its own heads begin in; each warp turns 16 rows from `rows` on to those of K.
    __device__ __forceinline__ void turn_queries(const Block &block, char *rows, u32 group) const {
        u32 shift = place_of_head(unaligned.q, block.head).shift;
        u32 k_shift = place_of_head(unaligned.k, kv_head_of(unaligned.tiles.common, block.head)).shift;
        if (shift == k_shift) {
            return;
        }
        // Worked out anew for each tile: the steps have no registers left for it.
        u32 lane = u32(opaque(i32(threadIdx.x))) % 32, own = lane / ABREAST, chunk = lane % ABREAST;
        u32 high = chunk + (k_shift < shift), low = high > 0 ? high - 1 : CHUNKS - 1;
        high = high < CHUNKS ? high : 0;
        auto chunk_of = [rows](u32 row, u32 chunk) { return chunk_at<BLOCK_ROWS, ROW_BYTES>(rows, row, chunk); };
#pragma unroll 1
        for (u32 first = own; first < 16; first += Q_TURNS * ROWS_AT_ONCE) {
            uint4 turned[Q_TURNS];
            if (chunk < CHUNKS) {
#pragma unroll
                for (u32 i = 0; i < Q_TURNS; i++) {
                    u32 row = first + i * ROWS_AT_ONCE;
                    turned[i] = eight_across(*chunk_of(row, low), *chunk_of(row, high), shift - k_shift & 7);
                }
            }
            __syncwarp();
            if (chunk < CHUNKS) {
#pragma unroll
                for (u32 i = 0; i < Q_TURNS; i++) {
                    *chunk_of(first + i * ROWS_AT_ONCE, chunk) = turned[i];
                }
            }
        }
        fence_proxy_async();
        named_barrier_sync(8 + group, 128);
    }

    __device__ __forceinline__ void put(const Stage &, const Block &block, u32, Rows &rows, Output &o, u32, char *room) const {
        const AttentionParams &p = unaligned.tiles.common;
        u32 shift = place_of_head(unaligned.v, kv_head_of(p, block.head)).shift;
        if (BY_WAY_OF_Q) {
            write_unaligned(p, block, rows, o, room, shift);
        } else {
            write_output(p, block, rows, o, i32(shift));
        }
    }
};

__device__ __forceinline__ char *beyond_of_k(const Stage &stage) { return (char *)stage.shared + SHARED_TAIL; }
__device__ __forceinline__ char *beyond_of_v(const Stage &stage) { return beyond_of_k(stage) + K_BEYOND * BEYOND_BYTES; }

// The rows of a step of K or V, which are `shift` elements late. BEYOND: what lies behind HEAD_DIM columns has a place of its own. CLEARED: the first
// columns are to be zero where no element comes.
template <u32 TAIL, bool BEYOND, bool CLEARED> __device__ __forceinline__ void mend_step(char *tile, char *beyond, i32 shift, i32 head_dim) {
    constexpr u32 TURNS = (BLOCK_KEYS + 31) / 32;
    i32 around = shift + head_dim - HEAD_DIM;
    if (shift == 0 || !CLEARED && around <= 0) {
        return;
    }
    uint4 before = first_of(shift), eight[TURNS], last[TURNS];
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 i = 0; i < TURNS; i++) {
        u32 row = i * 32 + lane;
        bool there = BLOCK_KEYS % 32 == 0 || row < BLOCK_KEYS;
        eight[i] = there ? *chunk_at<BLOCK_KEYS, TAIL>(tile, row, 0) : uint4{};
        last[i] = there && around > 0 ? (BEYOND ? *(uint4 *)(beyond + row * 16) : *chunk_at<BLOCK_KEYS, TAIL>(tile, row, CHUNKS)) : uint4{};
    }
#pragma unroll
    for (u32 i = 0; i < TURNS; i++) {
        u32 row = i * 32 + lane;
        if (BLOCK_KEYS % 32 == 0 || row < BLOCK_KEYS) {
            *chunk_at<BLOCK_KEYS, TAIL>(tile, row, 0) = with_front(eight[i], before, last[i]);
        }
    }
}

// A warp that mends what the ring has, step after step.
template <class Mend> __device__ __forceinline__ void mend_steps(Ring &ring, u64 *ready, u32 *shifts, Mend mend) {
    for (u32 count = 0;; count++) {
        u32 at = count % STAGES;
        await(&ring.full[at], count / STAGES % 2);
        // By the lane that says when it may be written again, for all.
        u32 shift = shuffle_from(threadIdx.x % 32 == 0 ? shifts[at] : 0, 0);
        if (shift == NO_STEP) {
            return;
        }
        mend(at, i32(shift));
        fence_proxy_async();
        __syncwarp();
        release(&ready[at]);
    }
}

// Mends Q of one group, which is 64 rows from `tile` on, `shift` elements late. What lies behind HEAD_DIM columns is read from device memory: there
// may be no place for it.
__device__ __forceinline__ void mend_queries(const UnalignedParams &p, char *tile, const Published &published, u32 group, i32 shift, u64 *there, u32 parity) {
    const AttentionParams &all = p.tiles.common;
    i32 around = shift + all.head_dim - HEAD_DIM;
    uint4 last[2] = {};
    if (around > 0) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            i32 query = published.first_row + i32(group * 64 + i * 32 + threadIdx.x % 32);
            const element *from = all.q + published.batch * all.q_batch + published.head * all.q_head + u64(query) * all.q_token + HEAD_DIM - shift;
            Straddled words = {{}, {}, true};
            if (query < i32(all.q_len)) {
                words = read_straddled(from, u64(all.q), u64(p.q_end));
            }
            last[i] = eight_of(words, from, query < i32(all.q_len) ? around : 0);
        }
    }
    await(there, parity);
    uint4 before = first_of(shift);
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        uint4 *at = chunk_at<BLOCK_ROWS, ROW_BYTES>(tile, group * 64 + i * 32 + threadIdx.x % 32, 0);
        *at = with_front(*at, before, last[i]);
    }
    fence_proxy_async();
    __syncwarp();
}

// The warp that brings Q of the tiles that it is told of, each group's rows as soon as there is room for them.
__device__ __forceinline__ void bring_queries(const UnalignedParams &p, const Stage &stage) {
    Shared &shared = *stage.shared;
    for (u32 turn = 0;; turn++) {
        u32 place = turn % Q_STAGES, slot = turn % PUBLISHED_TILES;
        await(&shared.published_ring.full[slot], turn / PUBLISHED_TILES % 2);
        bool none = shared.work[slot] == ~0u;
        Published published = shared.published[slot];
        HeadPlace own = place_of_head(p.q, published.head);
        char *tile = stage.q + place * Q_BYTES;
        for (u32 group = 0; group < CONSUMERS; group++) {
            if (group < Q_PARTS) {
                await(&shared.q_empty[place][group], turn / Q_STAGES % 2 ^ 1);
            }
            if (threadIdx.x % 32 == 0 && !none) {
                mbarrier_arrive_expect(&shared.q_there[group], 64 * PANELS * ROW_BYTES);
#pragma unroll
                for (int panel = 0; panel < PANELS; panel++) {
                    tma_load_4d(tile + (panel * BLOCK_ROWS + group * 64) * ROW_BYTES, &p.q.rows[own.map].map, &shared.q_there[group], panel * 64,
                                published.first_row + i32(group * 64), own.head, published.batch);
                }
            }
            __syncwarp();
        }
        if (turn >= Q_STAGES) {
            // Whoever was told of the tile whose place this is has left it.
            release(&shared.published_ring.empty[(turn - Q_STAGES) % PUBLISHED_TILES]);
        }
        for (u32 group = 0; group < CONSUMERS; group++) {
            if (!none) {
                mend_queries(p, tile, published, group, i32(own.shift), &shared.q_there[group], turn % 2);
            }
            mbarrier_arrive(&shared.q_full[place][group]);
        }
        if (none) {
            return;
        }
    }
}

// Starts copying a step's rows, or this block's half of them for both blocks of a cluster.
template <class Order, u32 TAIL>
__device__ __forceinline__ void fetch_unaligned(const HeadMap *maps, const HeadMap *tails, char *to, u64 *full, const HeadPlace &place, i32 row, u32 batch) {
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
        const tensor_map &own = (TAIL < ROW_BYTES && panel == PANELS - 1 ? tails : maps)[place.map].map;
        char *rows = to + panel * BLOCK_KEYS * ROW_BYTES;
        if constexpr (Order::SHARED_KEYS) {
            i32 half = i32(cluster_rank()) * (BLOCK_KEYS / 2), row_bytes = panel == PANELS - 1 ? TAIL : ROW_BYTES;
            tma_load_4d_multicast(rows + half * row_bytes, &own, full, panel * 64, row + half, place.head, batch, 3);
        } else {
            tma_load_4d(rows, &own, full, panel * 64, row, place.head, batch);
        }
    }
}

// V of a step, which is asked for behind K of the next one.
struct LateStep {
    HeadPlace place;
    i32 row;
    u32 batch;
};

template <class Order> __device__ __forceinline__ void produce_unaligned(const Order &order, const Stage &stage) {
    const UnalignedParams &all = order.unaligned;
    const TmaParams &p = all.tiles;
    Shared &shared = *stage.shared;
    u32 total = order.total(), count = 0, v_count = 0, published = 0;
    LateStep late = {};
    auto publish = [&](u32 work, const Block &block) {
        u32 slot = published % PUBLISHED_TILES;
        await(&shared.published_ring.empty[slot], published / PUBLISHED_TILES % 2 ^ 1);
        shared.work[slot] = work;
        shared.published[slot] = {block.batch, block.head, block.first_row, block.steps.first, block.steps.last};
        mbarrier_arrive(&shared.published_ring.full[slot]);
        published++;
    };
    // What lies beyond the columns has one place: whoever mends is done with that of the step before.
    auto beyond_is_free = [&](u64 *ready, u32 steps) {
        if (steps > 0) {
            await(&ready[(steps - 1) % STAGES], (steps - 1) / STAGES % 2);
        }
    };
    auto fetch_k = [&](const HeadPlace &place, i32 row, u32 batch) {
        u32 at = count % STAGES;
        u64 *full = &shared.k_ring.full[at];
        bool beyond = K_BEYOND && i32(place.shift) + p.common.head_dim > HEAD_DIM;
        await(&shared.k_ring.empty[at], count / STAGES % 2 ^ 1);
        shared.shifts.k[at] = place.shift;
        mbarrier_arrive_expect(full, K_BYTES + (beyond ? BEYOND_BYTES : 0));
        fetch_unaligned<Order, TAIL_BYTES>(all.k.rows, all.k_tail, stage.k + at * K_BYTES, full, place, row, batch);
        if (beyond) {
            beyond_is_free(shared.k_ready, count);
            tma_load_4d(beyond_of_k(stage), &all.k_beyond[place.map].map, full, HEAD_DIM, row, place.head, batch);
        }
        count++;
    };
    auto fetch_v = [&](const LateStep &step) {
        u32 at = v_count % STAGES;
        u64 *full = &shared.v_ring.full[at];
        bool beyond = V_BEYOND && i32(step.place.shift) + p.common.head_dim > HEAD_DIM;
        await(&shared.v_ring.empty[at], v_count / STAGES % 2 ^ 1);
        shared.shifts.v[at] = step.place.shift;
        mbarrier_arrive_expect(full, V_BYTES + (beyond ? BEYOND_BYTES : 0));
        fetch_unaligned<Order, ROW_BYTES>(all.v.rows, all.v.rows, stage.v + at * V_BYTES, full, step.place, step.row, step.batch);
        if (beyond) {
            beyond_is_free(shared.v_ready, v_count);
            tma_load_4d(beyond_of_v(stage), &all.v_beyond[step.place.map].map, full, HEAD_DIM, step.row, step.place.head, step.batch);
        }
        v_count++;
    };
    u32 work = blockIdx.x / cluster_size();
    Block block = {};
    // The next tile, a few steps before this one ends, so that its Q is there by then.
    auto publish_next = [&](u32 next) {
        work = next;
        if (work < total) {
            block = order.template block<EVERY>(work);
            order.prefetch_maps(block.head);
        }
        publish(work < total ? work : ~0u, block);
    };
    publish_next(work);
    while (work < total) {
        Steps steps = block.steps;
        u32 kv_head = kv_head_of(p.common, block.head), batch = block.batch;
        HeadPlace k = place_of_head(all.k, kv_head), v = place_of_head(all.v, kv_head);
        i32 publishing = steps.first + PUBLISHED_EARLY < steps.last ? steps.first + PUBLISHED_EARLY : steps.last;
        auto next = [&] { return Order::SHARED_KEYS ? work + gridDim.x / 2 : next_work<Order>(p, total); };
        for (i32 step = steps.last; step >= steps.first; step--) {
            fetch_k(k, step * BLOCK_KEYS, batch);
            if (count > v_count + 1) {
                fetch_v(late);
            }
            late = {v, step * BLOCK_KEYS, batch};
            if (step == publishing) {
                publish_next(next());
            }
        }
        if (steps.last < steps.first) {
            // No step of this tile brings what the one before it waits for.
            if (count > v_count) {
                fetch_v(late);
            }
            publish_next(next());
        }
    }
    if (count > v_count) {
        fetch_v(late);
    }
    // Nothing is left.
    u32 at = count % STAGES, parity = count / STAGES % 2 ^ 1;
    await(&shared.k_ring.empty[at], parity);
    shared.shifts.k[at] = NO_STEP;
    mbarrier_arrive(&shared.k_ring.full[at]);
    await(&shared.v_ring.empty[at], parity);
    shared.shifts.v[at] = NO_STEP;
    mbarrier_arrive(&shared.v_ring.full[at]);
}

// What the warps of the first group do.
template <class Order> __device__ __forceinline__ void produce_in_warps(const Order &order, const Stage &stage, u32 warp) {
    Shared &shared = *stage.shared;
    i32 head_dim = order.unaligned.tiles.common.head_dim;
    if (warp == 0) {
        if (elect_one()) {
            produce_unaligned(order, stage);
        }
    } else if (warp == 1) {
        mend_steps(shared.k_ring, shared.k_ready, shared.shifts.k, [&](u32 at, i32 shift) {
            mend_step<TAIL_BYTES, K_BEYOND, true>(stage.k + at * K_BYTES, beyond_of_k(stage), shift, head_dim);
        });
    } else if (warp == 2) {
        mend_steps(shared.v_ring, shared.v_ready, shared.shifts.v, [&](u32 at, i32 shift) {
            mend_step<ROW_BYTES, V_BEYOND, false>(stage.v + at * V_BYTES, beyond_of_v(stage), shift, head_dim);
        });
    } else {
        bring_queries(order.unaligned, stage);
    }
}
