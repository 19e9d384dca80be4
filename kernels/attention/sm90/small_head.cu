// O = softmax(scale·Q·Kᵀ + mask)·V on Hopper, dense, by four warpgroups an SM.
//
// `sm90` has two groups, each with the scores of a step, the weights of the one before and O in 240 registers, and both products of a group
// under way at once. Here each group has 128: its weights lie where its scores lay, and its products and its softmax follow one another. What
// keeps the tensor cores busy meanwhile are the other three. There is no group that copies: the first warp asks for keys.

#include "attention/sm90/mask.cuh"
#include "attention/sm90/schedule.cuh"

// From the host: RESIDENT, blocks of an SM.
static_assert(STAGES >= 2, "a step's keys are asked for while those before are multiplied");

struct SmallHeadBarriers {
    u64 q_full, k_full[STAGES], v_full[STAGES], empty[STAGES];
};

static_assert(sizeof(SmallHeadBarriers) <= SHARED_TAIL, "what the host sets aside");

// Where the keys of a block lie, and whose they are.
struct SmallHeadKeys {
    const TmaParams &p;
    char *k, *v;
    SmallHeadBarriers &barriers;
    u32 head, batch;

    // Starts copying those of a step.
    __device__ __forceinline__ void bring(u32 at, i32 step) const {
        mbarrier_arrive_expect(&barriers.k_full[at], K_BYTES);
        fetch<BLOCK_KEYS>(p.k, k + at * K_BYTES, &barriers.k_full[at], step * BLOCK_KEYS, head, batch);
        mbarrier_arrive_expect(&barriers.v_full[at], V_BYTES);
        fetch<BLOCK_KEYS>(p.v, v + at * V_BYTES, &barriers.v_full[at], step * BLOCK_KEYS, head, batch);
    }
};

extern "C" __global__ void __launch_bounds__(CONSUMERS * 128, RESIDENT) attention_sm90_small_head(const __grid_constant__ TmaParams p) {
    extern __shared__ __align__(1024) char tiles[];
    char *q = tiles, *k = q + Q_BYTES, *v = k + STAGES * K_BYTES;
    SmallHeadBarriers &barriers = *(SmallHeadBarriers *)(v + STAGES * V_BYTES);
    const AttentionParams &all = p.common;
    // Of one lane for all, so that the compiler knows that no warp takes both branches.
    u32 warp = shuffle_from(threadIdx.x / 32, 0), group = warp / 4;
    SingleTile order = {p};
    Block block = order.block<EVERY>(0);
    SmallHeadKeys keys = {p, k, v, barriers, kv_head_of(all, block), block.batch};
    i32 last_step = block.steps.last;
    if (warp == 0 && elect_one()) {
        mbarrier_init(&barriers.q_full, 1);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&barriers.k_full[i], 1);
            mbarrier_init(&barriers.v_full[i], 1);
            mbarrier_init(&barriers.empty[i], CONSUMERS * 4);
        }
        fence_mbarrier_init();
    }
    // Blocks of the next launch may take the places of those that end here, and wait there as this one does.
    grid_launch_next();
    grid_wait();
    if (warp == 0 && elect_one()) {
        mbarrier_arrive_expect(&barriers.q_full, Q_BYTES);
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) {
#pragma unroll
            for (int g = 0; g < CONSUMERS; g++) {
                tma_load_4d(q + (panel * BLOCK_ROWS + g * 64) * ROW_BYTES, &p.q, &barriers.q_full, panel * 64, block.first_row + g * 64, block.head, block.batch);
            }
        }
        if (last_step >= 0) {
            keys.bring(0, last_step);
        }
    }
    __syncthreads();

    u64 q_rows = wgmma_uniform(wgmma_descriptor(shared_address(q) + group * 64 * ROW_BYTES, 16, PATTERN, SWIZZLE_128));
    u64 k_tiles = wgmma_uniform(wgmma_descriptor(shared_address(k), 16, PATTERN, SWIZZLE_128));
    u64 v_tiles = wgmma_uniform(wgmma_descriptor(shared_address(v), BLOCK_KEYS * ROW_BYTES, PATTERN, SWIZZLE_128));
    f32 factor = all.scale * 1.4426950409f;
    Rows rows = rows_from(all, block, block.first_row + i32(group * 64));
    Output o;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++) {
        o[i] = 0.0f;
    }
    await(&barriers.q_full, 0);
    u32 count = 0;
#pragma unroll 1
    for (i32 step = last_step; step >= 0; step--, count++) {
        u32 at = count % STAGES, round = count / STAGES % 2;
        Scores s;
        await(&barriers.k_full[at], round);
        wgmma_fence();
        start_scores<false>(s, q_rows, wgmma_moved(k_tiles, at * K_BYTES), nullptr, 0);
        // Behind the first step all that there is room for, so that nobody's first keys wait for them. Then the next one, to where the step before
        // lay: the other groups are done with that, as a rule.
        if (warp == 0 && count == 0 && elect_one()) {
            for (i32 i = 1; i < STAGES && i <= step; i++) {
                keys.bring(i, step - i);
            }
        }
        if (warp == 0 && count > 0 && step >= STAGES - 1) {
            u32 left = (count - 1) % STAGES;
            await(&barriers.empty[left], (count - 1) / STAGES % 2);
            if (elect_one()) {
                keys.bring(left, step - (STAGES - 1));
            }
        }
        wgmma_wait<0>();
        wgmma_hold(s);
        if (step * BLOCK_KEYS + BLOCK_KEYS > rows.all_end) {
            mask_behind(s, rows, block.mask, step * BLOCK_KEYS);
        }
        softmax_scores(s, rows, factor);
        rescale_output(o, rows);
        Weights weights;
        pack_weights(weights, s);
        await(&barriers.v_full[at], round);
        wgmma_fence();
        start_output(o, weights, wgmma_moved(v_tiles, at * V_BYTES), [] {});
        wgmma_wait<0>();
        wgmma_hold(o);
        release(&barriers.empty[at]);
    }
    send_output(p, block, rows, o, q + (group * 64 + threadIdx.x / 32 % 4 * 16) * ROW_BYTES);
}
