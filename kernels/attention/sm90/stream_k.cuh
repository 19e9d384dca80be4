// Pairs of neighbouring tiles whose keys a cluster shares (`Multicast`), shared out among the clusters by steps, so that all end at the same time.
//
// Clusters take whole units as long as all have one, and the last one or two of each by steps: a cluster ends in the middle of a tile, and the next
// one has begun its last share with what is left of that tile. What it summed there has long been in device memory when the first one comes to it.
// No tile is in more than two parts. Nobody waits: whoever comes last joins the two.
#pragma once

#include "attention/sm90/schedule.cuh"

// A unit is a pair of tiles; of causal sequences two, the i-th from a head's end and the i-th from its beginning, so that all have as many steps. What
// the blocks take their work by is a step's number among those of all units.
struct StreamK {
    static constexpr bool BLOCK_SPARSE = false, SHARED_KEYS = true;
    static constexpr i32 PAIR_ROWS = 2 * BLOCK_ROWS;
    static constexpr int MOST_CUT = 192;   // of longer heads no tile is cut: the registers are full
    const TmaParams &p;

    // Where the thread that copies is: units that are taken whole; steps of one; those of this one that are done; those that are left of this share.
    // It divides once: what it runs between two tiles has to be fetched each time.
    u32 whole, steps, done, left;

    __device__ __forceinline__ StreamK(const TmaParams &p) : p(p) {}

    template <Lists LISTED> __device__ __forceinline__ void prepare(const Stage &) const {}

    // Of pair `pair` of a head.
    __device__ __forceinline__ i32 pair_steps(i32 pair) const {
        return SingleTile::last_step(p.common, mask_of(p.common, i32(p.common.q_len), i32(p.common.kv_len)), (pair + 1) * PAIR_ROWS) + 1;
    }
    __device__ __forceinline__ u32 clusters() const { return gridDim.x / 2; }
    __device__ __forceinline__ u32 own() const { return blockIdx.x / 2; }
    __device__ __forceinline__ u32 total() const { return p.work; }

    // The first unit.
    __device__ __forceinline__ u32 first() {
        u32 rounds = p.work / clusters();
        whole = !p.parts || rounds * clusters() == p.work ? p.work : (rounds - 1) * clusters();
        steps = u32(pair_steps(0) + (p.common.causal ? pair_steps(2 * i32(p.common.tiles) - 1) : 0));
        done = 0;
        left = steps;
        return own() < whole ? own() : first_shared();
    }

    // That of this cluster's share of what is left for all.
    __device__ __forceinline__ u32 first_shared() {
        u32 all = (p.work - whole) * steps, begin = all * own() / clusters(), end = all * (own() + 1) / clusters(), unit = begin / steps;
        done = begin - unit * steps;
        left = end - begin;
        return left > 0 ? whole + unit : p.work;
    }

    // The unit of the tile behind this one.
    __device__ __forceinline__ u32 after(u32 unit, const Block &block) {
        u32 passed = u32(block.steps.last + 1 - block.steps.first);
        done += passed;
        left -= passed;
        if (left > 0 && done < steps) {
            return unit;
        }
        done = 0;
        if (unit >= whole) {
            return left > 0 ? unit + 1 : p.work;
        }
        left = steps;
        return unit + clusters() < whole ? unit + clusters() : first_shared();
    }

    template <Lists LISTED> __device__ __forceinline__ Block block(u32 unit) const {
        Block block = place_of(p.common, unit);
        i32 pair = block.first_row / BLOCK_ROWS, passed = i32(done);
        if (p.common.causal) {
            pair += i32(p.common.tiles);
            i32 late = pair_steps(pair);
            if (passed >= late) {
                passed -= late;
                pair = 2 * i32(p.common.tiles) - 1 - pair;
            }
        }
        i32 end = pair_steps(pair) - passed;
        block.steps = {end > i32(left) ? end - i32(left) : 0, end - 1};
        block.first_row = pair * PAIR_ROWS + i32(cluster_rank()) * BLOCK_ROWS;
        return block;
    }

    // Whether this warp has the sums over all keys. Of a tile in two parts both leave theirs, but for who finds the other's there.
    __device__ __forceinline__ bool join(const Block &block, Rows &rows, Output &o, u32 group) const {
        bool begun = block.steps.first > 0, ended = block.steps.last + 1 < pair_steps(block.first_row / PAIR_ROWS);
        if (!begun && !ended) {
            return true;
        }
        u32 lane = threadIdx.x % 32, warp = group * 4 + threadIdx.x % 128 / 32;
        u32 slot = ((own() + begun) * 2 + cluster_rank()) * CONSUMERS * 4 + warp;
        f32 *parts = p.parts + u64(slot) * 2 * WARP_FLOATS + lane * 4;
        u32 *counter = p.arrivals + slot, others = 0;
        if (lane == 0 && begun) {
            others = counted(counter);
        }
        if (!shuffle_from(others, 0)) {
            leave_sums(parts + begun * WARP_FLOATS, rows, o);
            __syncwarp();
            if (lane == 0) {
                others = count_arrival(counter);
            }
            if (!shuffle_from(others, 0)) {
                return false;
            }
        }
        if (lane == 0) {
            *counter = 0;   // for the next launch
        }
        add_sums(parts + !begun * WARP_FLOATS, rows, o);
        return true;
    }

    __device__ __forceinline__ void put(const Stage &, const Block &block, u32, Rows &rows, Output &o, u32 group, char *room) const {
        if (HEAD_DIM > MOST_CUT || join(block, rows, o, group)) {
            finish_output(p.common, block, rows, o, room);
        }
    }
};
