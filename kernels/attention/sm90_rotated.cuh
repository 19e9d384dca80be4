// Rows that do not start on multiples of 16 bytes, of K and V whose tokens lie multiples of 16 bytes apart, and of any Q.
//
// TMA starts a box on a multiple of 16 bytes: up to seven elements before a head's first, and as many in all rows of the head. So
// rows arrive with other heads' elements before and behind their own, and with up to seven of their own past column HEAD_DIM. Those go to
// the first columns, and K's other columns become zero: element e then lies in column (e + shift) % HEAD_DIM. One warp mends K and V so,
// 16 bytes at either end of a row, while the step before is multiplied. Two more bring Q in the columns that K has: by TMA where its heads start
// as late, else by ordinary loads. What V has in columns of no element comes to columns of O that nobody writes.
#pragma once

#include "attention/heads_params.cuh"
#include "attention/tma_params.cuh"
#include "attention/rotated_params.cuh"
#include "attention/sm90_producer.cuh"

constexpr u32 NO_STEP = ~0u;     // for the warp that mends

// Where TMA finds a head: the first column, and elements from there to the head's first.
struct HeadPlace {
    i32 column;
    u32 head, shift;
};

__device__ __forceinline__ HeadPlace place_of_head(const HeadsParams &p, u32 head) {
    u32 at = p.over + head * p.inside;
    return {i32(at & ~7u), p.inside ? 0 : head, at & 7};
}

__device__ __forceinline__ u32 kv_head_of(const AttentionParams &p, u32 head) {
    return p.heads == p.kv_heads ? head : head / (u32(p.heads) / u32(p.kv_heads));
}

// The tiles of `Tiles` or `Neighbours`.
template <class Order> struct Rotated : Order {
    const RotatedParams &rotated;

    __device__ __forceinline__ void put(const Stage &, const Block &block, u32, Rows &rows, Output &o, u32, char *) const {
        const AttentionParams &p = rotated.tiles.common;
        write_output(p, block, rows, o, i32(place_of_head(rotated.v, kv_head_of(p, block.head)).shift));
    }
};

// Where those columns of a row lie in a tile of ROWS_THERE, whose last panel has rows of TAIL bytes.
template <u32 ROWS_THERE, u32 TAIL> __device__ __forceinline__ uint4 *chunk_at(char *tile, u32 row, u32 chunk) {
    char *panel = tile + chunk / 8 * ROWS_THERE * ROW_BYTES;
    if (TAIL < ROW_BYTES && chunk / 8 == PANELS - 1) {
        return (uint4 *)(panel + row * TAIL + (chunk ^ row / 2) % 4 * 16);
    }
    return (uint4 *)(panel + row * ROW_BYTES + (chunk ^ row) % 8 * 16);
}

// The first `count` of eight elements; zeros behind.
__device__ __forceinline__ uint4 first_of(uint4 eight, i32 count) {
    auto word = [count](u32 bits, i32 first) { return count >= first + 2 ? bits : count > first ? bits & 0xffff : 0; };
    return {word(eight.x, 0), word(eight.y, 2), word(eight.z, 4), word(eight.w, 6)};
}

__device__ __forceinline__ uint4 either(uint4 a, uint4 b) { return {a.x | b.x, a.y | b.y, a.z | b.z, a.w | b.w}; }
__device__ __forceinline__ uint4 without(uint4 a, uint4 b) { return {a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w}; }

// Rows `row` to `end` of a tile of ROWS_THERE, each `shift` elements late. `beyond` gives what lies behind HEAD_DIM columns of one. CLEARED: no
// column is left with what is no element of the row.
template <u32 ROWS_THERE, u32 TAIL, bool CLEARED, class Beyond>
__device__ __forceinline__ void mend_rows(char *tile, u32 first, u32 end, i32 shift, i32 head_dim, Beyond beyond) {
    i32 columns = shift + head_dim, around = columns - HEAD_DIM;
    if (shift > 0 && (CLEARED || around > 0)) {
#pragma unroll 2
        for (u32 row = first + threadIdx.x % 32; row < end; row += 32) {
            uint4 *at = chunk_at<ROWS_THERE, TAIL>(tile, row, 0), own = *at;
            own = without(own, first_of(own, shift));
            *at = around > 0 ? either(own, first_of(beyond(row), around)) : own;
        }
    }
    if (CLEARED && around < 0) {
        for (i32 chunk = columns / 8; chunk < CHUNKS; chunk++) {
            i32 kept = columns - chunk * 8;
#pragma unroll 2
            for (u32 row = first + threadIdx.x % 32; row < end; row += 32) {
                uint4 *at = chunk_at<ROWS_THERE, TAIL>(tile, row, u32(chunk));
                *at = kept > 0 ? first_of(*at, kept) : uint4{};
            }
        }
    }
}

__device__ __forceinline__ char *beyond_of_k(const Stage &stage) { return (char *)stage.shared + SHARED_TAIL; }
__device__ __forceinline__ char *beyond_of_v(const Stage &stage) { return beyond_of_k(stage) + K_BEYOND * BEYOND_BYTES; }

// The rows of a step of K or V. BEYOND: what lies behind HEAD_DIM columns has a place of its own.
template <u32 TAIL, bool BEYOND, bool CLEARED> __device__ __forceinline__ void mend_step(char *tile, char *beyond, u32 shift, i32 head_dim) {
    mend_rows<BLOCK_KEYS, TAIL, CLEARED>(tile, 0, BLOCK_KEYS, i32(shift), head_dim, [&](u32 row) {
        return BEYOND ? *(uint4 *)(beyond + row * 16) : *chunk_at<BLOCK_KEYS, TAIL>(tile, row, CHUNKS);
    });
}

// The warp that mends what the ring has, step after step.
__device__ __forceinline__ void mend_steps(const RotatedParams &p, const Stage &stage) {
    Shared &shared = *stage.shared;
    i32 head_dim = p.tiles.common.head_dim;
    for (u32 count = 0;; count++) {
        u32 at = count % STAGES, round = count / STAGES % 2;
        await(&shared.k_ring.full[at], round);
        // By the lane that says when they may be written again, for all.
        Shifts shifts = {};
        if (threadIdx.x % 32 == 0) {
            shifts = shared.shifts[at];
        }
        shifts = {shuffle_from(shifts.k, 0), shuffle_from(shifts.v, 0)};
        if (shifts.k == NO_STEP) {
            return;
        }
        mend_step<TAIL_BYTES, K_BEYOND, true>(stage.k + at * K_BYTES, beyond_of_k(stage), shifts.k, head_dim);
        fence_proxy_async();
        __syncwarp();
        leave(&shared.k_ready[at]);
        await(&shared.v_ring.full[at], round);
        mend_step<ROW_BYTES, V_BEYOND, false>(stage.v + at * V_BYTES, beyond_of_v(stage), shifts.v, head_dim);
        fence_proxy_async();
        __syncwarp();
        leave(&shared.v_ready[at]);
    }
}

// Q of a tile, as a warp brings the rows of one group.
struct Queries {
    const element *from;   // the head's first row
    u64 begin, end;        // of all Q
    i32 first_row;         // of the group
    u32 row;               // of the tile, that this is
    i32 shift;             // of K

    // Up to eight elements of a row of the tile from element `first` on, and zeros.
    __device__ __forceinline__ uint4 read(const AttentionParams &p, u32 at, i32 first) const {
        i32 query = first_row + i32(at - row), count = query < i32(p.q_len) ? p.head_dim - first : 0;
        const element *eight = from + u64(query) * p.q_token + first;
        Straddled words = {{}, {}, true};
        if (count > 0) {
            words = read_straddled(eight, begin, end);
        }
        return eight_of(words, eight, count);
    }
};

// Where Q's rows start as late as K's: by TMA, and mended.
__device__ __forceinline__ void bring_by_boxes(const RotatedParams &p, char *tile, const Told &told, const Queries &queries, const HeadPlace &place, u64 *full, u32 parity) {
    const AttentionParams &all = p.tiles.common;
    if (threadIdx.x % 32 == 0) {
        mbarrier_arrive_expect(full, 64 * PANELS * ROW_BYTES);
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) {
            tma_load_4d(tile + (panel * BLOCK_ROWS + queries.row) * ROW_BYTES, &p.tiles.q, full, place.column + panel * 64, queries.first_row, place.head, told.batch);
        }
    }
    __syncwarp();
    // What lies behind HEAD_DIM columns comes meanwhile, by ordinary loads.
    uint4 last[2] = {};
    if (queries.shift + all.head_dim > HEAD_DIM) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            last[i] = queries.read(all, queries.row + threadIdx.x % 32 + i * 32, HEAD_DIM - queries.shift);
        }
    }
    await(full, parity);
    mend_rows<BLOCK_ROWS, ROW_BYTES, true>(tile, queries.row, queries.row + 64, queries.shift, all.head_dim, [&](u32 row) { return row & 32 ? last[1] : last[0]; });
}

// Lanes side by side on a row of Q.
constexpr u32 Q_SIDE = CHUNKS > 16 ? 32 : CHUNKS > 8 ? 16 : CHUNKS > 4 ? 8 : 4;

// Where they start elsewhere: 16 bytes of a row for each lane, and of the next rows.
__device__ __forceinline__ void bring_by_loads(const RotatedParams &p, char *tile, const Queries &queries) {
    const AttentionParams &all = p.tiles.common;
    u32 lane = threadIdx.x % 32, chunk = lane % Q_SIDE;
    i32 first = chunk == 0 ? 0 : i32(chunk * 8) - queries.shift, around = queries.shift + all.head_dim - HEAD_DIM;
    if (chunk >= CHUNKS) {
        return;
    }
#pragma unroll 2
    for (u32 row = queries.row + lane / Q_SIDE; row < queries.row + 64; row += 32 / Q_SIDE) {
        uint4 eight = queries.read(all, row, first);
        if (chunk == 0 && queries.shift > 0) {
            // A row's first elements behind its last ones, where these come around.
            eight = eight_across(uint4{}, eight, u32(8 - queries.shift));
            if (around > 0) {
                eight = either(eight, queries.read(all, row, HEAD_DIM - queries.shift));
            }
        }
        *chunk_at<BLOCK_ROWS, ROW_BYTES>(tile, row, chunk) = eight;
    }
}

// The warp that brings a group's rows of the tiles that are asked for.
__device__ __forceinline__ void bring_queries(const RotatedParams &p, const Stage &stage, u32 group) {
    Shared &shared = *stage.shared;
    const AttentionParams &all = p.tiles.common;
    u32 boxes = 0;
    for (u32 turn = 0;; turn++) {
        u32 place = turn % Q_STAGES, work;
        await(&shared.q_asked[place], turn / Q_STAGES % 2);
        work = shared.work[turn % TOLD_TILES];
        if (work != ~0u) {
            Told told = shared.told[turn % TOLD_TILES];
            HeadPlace own = place_of_head(p.q, told.head);
            Queries queries = {all.q + told.batch * all.q_batch + told.head * all.q_head, u64(all.q), u64(p.q_end), told.first_row + i32(group * 64), group * 64,
                               i32(place_of_head(p.k, kv_head_of(all, told.head)).shift)};
            char *tile = stage.q + place * Q_BYTES;
            if (p.q_boxes && i32(own.shift) == queries.shift) {
                bring_by_boxes(p, tile, told, queries, own, &shared.q_there[group], boxes++ % 2);
            } else {
                bring_by_loads(p, tile, queries);
            }
            fence_proxy_async();
        }
        __syncwarp();
        leave(&shared.q_full[place][group]);
        if (work == ~0u) {
            return;
        }
    }
}

// Starts copying a step's rows, or this block's half of them for both blocks of a cluster.
template <class Order, u32 TAIL>
__device__ __forceinline__ void fetch_rotated(const tensor_map &map, const tensor_map &tail, char *to, u64 *full, const HeadPlace &place, i32 row, u32 batch) {
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
        const tensor_map &own = TAIL < ROW_BYTES && panel == PANELS - 1 ? tail : map;
        char *rows = to + panel * BLOCK_KEYS * ROW_BYTES;
        i32 column = place.column + panel * 64;
        if constexpr (Order::SHARED_KEYS) {
            i32 half = i32(cluster_rank()) * (BLOCK_KEYS / 2), row_bytes = panel == PANELS - 1 ? TAIL : ROW_BYTES;
            tma_load_4d_multicast(rows + half * row_bytes, &own, full, column, row + half, place.head, batch, 3);
        } else {
            tma_load_4d(rows, &own, full, column, row, place.head, batch);
        }
    }
}

template <class Order> __device__ __forceinline__ void produce_rotated(const Order &order, const Stage &stage) {
    const RotatedParams &all = order.rotated;
    const TmaParams &p = all.tiles;
    Shared &shared = *stage.shared;
    u32 total = order.total(), count = 0, turn = 0;
    auto ask = [&](u32 work, const Block &block) {
        u32 place = turn % Q_STAGES;
#pragma unroll
        for (u32 part = 0; part < Q_PARTS; part++) {
            await(&shared.q_empty[place][part], turn / Q_STAGES % 2 ^ 1);
        }
        shared.work[turn % TOLD_TILES] = work;
        shared.told[turn % TOLD_TILES] = {block.batch, block.head, block.first_row, block.steps.first, block.steps.last};
        mbarrier_arrive(&shared.q_asked[place]);
    };
    // What lies beyond the columns has one place: whoever mends is done with that of the step before.
    auto beyond_is_free = [&](u64 *ready) {
        if (count > 0) {
            await(&ready[(count - 1) % STAGES], (count - 1) / STAGES % 2);
        }
    };
    for (u32 work = blockIdx.x / cluster_size(); work < total; turn++) {
        Block block = order.template block<EVERY>(work);
        u32 kv_head = kv_head_of(p.common, block.head);
        HeadPlace k = place_of_head(all.k, kv_head), v = place_of_head(all.v, kv_head);
        bool k_beyond = K_BEYOND && i32(k.shift) + p.common.head_dim > HEAD_DIM, v_beyond = V_BEYOND && i32(v.shift) + p.common.head_dim > HEAD_DIM;
        // Where Q has to wait for the tile before, keys that need not wait come before it.
        bool behind_keys = Q_STAGES == 1 && turn > 0 && block.steps.last > block.steps.first;
        if (!behind_keys) {
            ask(work, block);
        }
        for (i32 step = block.steps.last; step >= block.steps.first; step--, count++) {
            u32 at = count % STAGES, round = count / STAGES % 2 ^ 1;
            u64 *k_full = &shared.k_ring.full[at], *v_full = &shared.v_ring.full[at];
            await(&shared.k_ring.empty[at], round);
            shared.shifts[at] = {k.shift, v.shift};
            mbarrier_arrive_expect(k_full, K_BYTES + (k_beyond ? BEYOND_BYTES : 0));
            fetch_rotated<Order, TAIL_BYTES>(p.k, p.k_tail, stage.k + at * K_BYTES, k_full, k, step * BLOCK_KEYS, block.batch);
            if (k_beyond) {
                beyond_is_free(shared.k_ready);
                tma_load_4d(beyond_of_k(stage), &all.k_beyond, k_full, k.column + HEAD_DIM, step * BLOCK_KEYS, k.head, block.batch);
            }
            if (behind_keys && step == block.steps.last - 1) {
                ask(work, block);
            }
            await(&shared.v_ring.empty[at], round);
            mbarrier_arrive_expect(v_full, V_BYTES + (v_beyond ? BEYOND_BYTES : 0));
            fetch_rotated<Order, ROW_BYTES>(p.v, p.v, stage.v + at * V_BYTES, v_full, v, step * BLOCK_KEYS, block.batch);
            if (v_beyond) {
                beyond_is_free(shared.v_ready);
                tma_load_4d(beyond_of_v(stage), &all.v_beyond, v_full, v.column + HEAD_DIM, step * BLOCK_KEYS, v.head, block.batch);
            }
        }
        work = Order::SHARED_KEYS ? work + gridDim.x / 2 : next_work<Order>(p, total);
    }
    // Nothing is left.
    ask(~0u, Block{});
    u32 at = count % STAGES;
    await(&shared.k_ring.empty[at], count / STAGES % 2 ^ 1);
    shared.shifts[at].k = NO_STEP;
    mbarrier_arrive(&shared.k_ring.full[at]);
}

// What the warps of the first group do.
template <class Order> __device__ __forceinline__ void produce_in_warps(const Order &order, const Stage &stage, u32 warp) {
    if (warp == 0) {
        if (elect_one()) {
            produce_rotated(order, stage);
        }
    } else if (warp == 1) {
        mend_steps(order.rotated, stage);
    } else {
        bring_queries(order.rotated, stage, warp - 2);
    }
}
