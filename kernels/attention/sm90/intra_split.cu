// O = softmax(scale·Q·Kᵀ + mask)·V on Hopper where tiles are few, dense and block-sparse: four warpgroups have the same 64 rows.
//
// Tiles of 64 rows are twice as many as those of 128. Of their steps each group takes every fourth one, with keys in a ring of its own. So it
// waits for the others at the end alone, where they add up what each has left in shared memory. There is no group that copies: the first warp of
// each asks for its keys.

#include "attention/sm90/mask.cuh"
#include "attention/sm90/intra_split_join.cuh"
#include "attention/sm90/intra_split_keys.cuh"

// A group's keys on their way. Box 2n is K of its n-th step, box 2n + 1 V.
template <class StepKeys> struct OwnKeys {
    const TmaParams &p;
    StepKeys &steps;
    char *boxes;
    IntraSplitRing &ring;
    u32 head, batch;
    i32 first, last;   // of all steps, and of the group's

    // Of the group's.
    __device__ __forceinline__ bool has_step(u32 number) const { return last - i32(number * GROUPS) >= first; }

    // Starts copying one, where there is such a step, by a whole warp.
    __device__ __forceinline__ void bring(u32 box) const {
        if (!has_step(box / 2)) {
            return;
        }
        i32 key = steps.of(last - i32(box / 2 * GROUPS)).first;
        if (elect_one()) {
            u64 *full = &ring.full[box % OWN_BOXES];
            mbarrier_arrive_expect(full, K_BYTES);
            tma_load_4d(boxes + box % OWN_BOXES * K_BYTES, box % 2 ? &p.v : &p.k, full, 0, key, head, batch);
        }
        __syncwarp();
    }

    // Those of the late group that an early one asks for.
    __device__ __forceinline__ OwnKeys of_late() const { return {p, steps, boxes + GROUPS / 2 * OWN_BYTES, *(&ring + GROUPS / 2), head, batch, first, last - i32(GROUPS / 2)}; }

    // The one that comes to where `box` lies, once the other warps are done with that.
    __device__ __forceinline__ void bring_behind(u32 box) const {
        if (has_step((box + OWN_BOXES) / 2)) {
            await(&ring.empty[box % OWN_BOXES], box / OWN_BOXES % 2);
            bring(box + OWN_BOXES);
        }
    }
};

template <class StepKeys> __device__ __forceinline__ void attend_intra_split(const TmaParams &p, char *tiles) {
    const AttentionParams &all = p.common;
    // Of one lane for all, so that the compiler knows that no warp takes both branches.
    u32 warp = shuffle_from(threadIdx.x / 32, 0), group = warp / 4;
    bool copies = warp % 4 == 0;
    char *q = tiles, *rings = q + Q_BYTES;
    IntraSplitBarriers &barriers = *(IntraSplitBarriers *)(rings + GROUPS * OWN_BYTES);
    IntraSplitRing &ring = barriers.rings[group];
    // By a warp that reads no lists meanwhile.
    bool prepares = warp % 4 == 1;
    if (prepares && elect_one()) {
        if (group == 0) {
            tma_prefetch_map(&p.q);
            mbarrier_init(&barriers.q_full, 1);
        } else if (group == 1) {
            tma_prefetch_map(&p.k);
        } else if (group == 2) {
            tma_prefetch_map(&p.v);
        }
        for (int i = 0; i < OWN_BOXES; i++) {
            mbarrier_init(&ring.full[i], 1);
            mbarrier_init(&ring.empty[i], 4);
        }
        fence_mbarrier_init();
    }
    // Blocks of the next launch may take the places of those that end here, and wait there as this one does.
    grid_launch_next();
    grid_wait();

    Block block = {blockIdx.z, blockIdx.y, i32(blockIdx.x) * BLOCK_ROWS, mask_of(all, i32(all.q_len), i32(all.kv_len)), {}};
    if (prepares && group == 0 && elect_one()) {
        mbarrier_arrive_expect(&barriers.q_full, Q_BYTES);
        tma_load_4d(q, &p.q, &barriers.q_full, 0, block.first_row, block.head, block.batch);
    }
    i32 last_row = block.first_row + 63 < i32(all.q_len) ? block.first_row + 63 : i32(all.q_len) - 1;
    StepKeys steps(all, block, block.mask.first(block.first_row), block.mask.end(last_row));
    OwnKeys<StepKeys> keys = {p, steps, rings + group * OWN_BYTES, ring, kv_head_of(all, block), block.batch, steps.all.first, steps.all.last - i32(group)};
    __syncthreads();
    // What is wanted first comes first: K of the early groups, then what those ask for once it is there: K of the late ones, and all else.
    bool early = group < GROUPS / 2;
    if (copies && early) {
        keys.bring(0);
    }
    __syncthreads();

    u64 q_rows = wgmma_uniform(wgmma_descriptor(shared_address(q), 16, PATTERN, SWIZZLE_128));
    u64 k_tiles = wgmma_uniform(wgmma_descriptor(shared_address(keys.boxes), 16, PATTERN, SWIZZLE_128));
    u64 v_tiles = wgmma_uniform(wgmma_descriptor(shared_address(keys.boxes), BLOCK_KEYS * ROW_BYTES, PATTERN, SWIZZLE_128));
    f32 factor = all.scale * 1.4426950409f;
    Rows rows = rows_from(all, block, block.first_row);
    Output o;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++) {
        o[i] = 0.0f;
    }
    i32 n = 0;
    await(&barriers.q_full, 0);
#pragma unroll 1
    for (i32 step = keys.last; step >= keys.first; step -= i32(GROUPS), n++) {
        u32 k_box = 2 * u32(n), v_box = k_box + 1, k_at = k_box % OWN_BOXES, v_at = v_box % OWN_BOXES;
        Scores s;
        await(&ring.full[k_at], k_box / OWN_BOXES % 2);
        wgmma_fence();
        start_scores<false>(s, q_rows, wgmma_moved(k_tiles, k_at * K_BYTES), nullptr, 0);
        if (copies && n > 0) {
            keys.bring_behind(k_box - 1);
        } else if (copies) {
            if (early) {
                keys.of_late().bring(0);
            }
            for (u32 box = 1; box < OWN_BOXES; box++) {
                keys.bring(box);
            }
        }
        wgmma_wait<0>();
        wgmma_hold(s);
        release(&ring.empty[k_at]);
        mask_scores<StepKeys::LISTED>(all, s, rows, block.mask, steps.of(step));
        softmax_scores(s, rows, factor);
        rescale_output(o, rows);
        Weights weights;
        pack_weights(weights, s);
        if (copies) {
            keys.bring_behind(k_box);
        }
        await(&ring.full[v_at], v_box / OWN_BOXES % 2);
        wgmma_fence();
        start_output(o, weights, wgmma_moved(v_tiles, v_at * K_BYTES), [] {});
        wgmma_wait<0>();
        wgmma_hold(o);
        release(&ring.empty[v_at]);
    }
    join_groups(all, block, rows, o, rings, group);
}

#ifdef COMPILE_attention_sm90_intra_split
extern "C" __global__ void __launch_bounds__(GROUPS * GROUP_THREADS, 1) attention_sm90_intra_split(const __grid_constant__ TmaParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_intra_split<EveryKey>(p, tiles);
}
#endif

#ifdef COMPILE_attention_sm90_intra_split_blocks
// Only the listed blocks of 128 queries and keys.
extern "C" __global__ void __launch_bounds__(GROUPS * GROUP_THREADS, 1) attention_sm90_intra_split_blocks(const __grid_constant__ TmaParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_intra_split<ListedKeys>(p, tiles);
}
#endif
