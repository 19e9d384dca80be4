// O = softmax(scale·Q·Kᵀ + mask)·V on Hopper's tensor cores, dense, after FlashAttention-3 (Shah et al., 2024, arXiv 2407.08608).
//
// A producer warp copies K and V by TMA into a ring of STAGES. Each consumer warp group holds 64 rows of the scores, of P and of
// O in registers: the scores of the next step are multiplied while P·V of this one runs, and the softmax of one group runs under
// the products of the other (named barriers 1 and 2). Keys are walked from the last to the first, so that masks come early.

#include "attention/sm80.cuh"
#include "attention/tma_params.cuh"
#include "ptx/cluster.cuh"
#include "ptx/wgmma.cuh"

constexpr int CONSUMERS = 2;
constexpr int BLOCK_ROWS = CONSUMERS * 64;
constexpr int BLOCK_KEYS = 128;
constexpr int STAGES = 2;
constexpr int BLOCK_THREADS = (CONSUMERS + 1) * 128;
constexpr int HALVES = HEAD_DIM / 64;                     // a copied row has 64 elements: 128 bytes, swizzled
constexpr u32 ROW_BYTES = 128;
constexpr u32 Q_BYTES = BLOCK_ROWS * HEAD_DIM * 2;
constexpr u32 KV_BYTES = BLOCK_KEYS * HEAD_DIM * 2;
constexpr u32 PATTERN = 8 * ROW_BYTES;                    // of the swizzle

static_assert(HEAD_DIM % 64 == 0 && HEAD_DIM <= 128, "whole halves, and O in registers");
static_assert(Q_BYTES + 2 * STAGES * KV_BYTES + (1 + 4 * STAGES) * 8 == TMA_SHARED_BYTES, "what the host sets aside");

// mbarrier_wait, whose trap costs the consumers the registers that setmaxnreg gives them: a debug build gives up by going on, and
// wrong output shows the fault.
__device__ __forceinline__ void await(u64 *barrier, u32 parity) {
#ifdef TRIFUSE_DEBUG
    for (u32 tries = 0; tries < 1u << 22 && !mbarrier_try_wait(barrier, parity); tries++) {
    }
#else
    while (!mbarrier_try_wait(barrier, parity)) {
    }
#endif
}

struct Ring {
    u64 full[STAGES], empty[STAGES];
};

// Where the tiles and barriers of a block lie.
struct Stage {
    char *q, *k, *v;
    u64 *q_full;
    Ring *k_ring, *v_ring;
};

// The steps of a block: BLOCK_KEYS keys each, from `last` down to `first`.
struct Steps {
    i32 first, last;
};

struct Block {
    u32 batch, head;
    i32 first_row;
    ShortMask mask;
    Steps steps;
};

__device__ __forceinline__ Block block_of(const AttentionParams &p) {
    u32 work = blockIdx.x;
    Block block;
    block.batch = work / p.tiles / u32(p.heads);
    block.head = work / p.tiles % u32(p.heads);
    block.first_row = i32(p.tiles - 1 - work % p.tiles) * BLOCK_ROWS;
    block.mask = mask_of(p, i32(p.q_len), i32(p.kv_len));
    i32 last_row = block.first_row + BLOCK_ROWS < i32(p.q_len) ? block.first_row + BLOCK_ROWS - 1 : i32(p.q_len) - 1;
    i32 first = block.mask.first(block.first_row), end = block.mask.end(last_row);
    block.steps = {first / BLOCK_KEYS, first < end ? (end - 1) / BLOCK_KEYS : first / BLOCK_KEYS - 1};
    return block;
}

// BLOCK_KEYS rows of K or V into a stage of the ring.
__device__ __forceinline__ void fetch(const tensor_map &map, Ring &ring, char *tiles, u32 count, i32 key, u32 head, u32 batch) {
    u32 stage = count % STAGES;
    await(&ring.empty[stage], count / STAGES % 2 ^ 1);
    mbarrier_arrive_expect(&ring.full[stage], KV_BYTES);
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        tma_load_4d(tiles + stage * KV_BYTES + half * BLOCK_KEYS * ROW_BYTES, &map, &ring.full[stage], half * 64, key, head, batch);
    }
}

__device__ __forceinline__ void produce(const TmaParams &p, const Block &block, const Stage &stage) {
    tma_prefetch_map(&p.q);
    tma_prefetch_map(&p.k);
    tma_prefetch_map(&p.v);
    u32 kv_head = block.head / (u32(p.common.heads) / u32(p.common.kv_heads));
    mbarrier_arrive_expect(stage.q_full, Q_BYTES);
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        tma_load_4d(stage.q + half * BLOCK_ROWS * ROW_BYTES, &p.q, stage.q_full, half * 64, block.first_row, block.head, block.batch);
    }
    u32 count = 0;
    for (i32 step = block.steps.last; step >= block.steps.first; step--, count++) {
        fetch(p.k, *stage.k_ring, stage.k, count, step * BLOCK_KEYS, kv_head, block.batch);
        fetch(p.v, *stage.v_ring, stage.v, count, step * BLOCK_KEYS, kv_head, block.batch);
    }
}

typedef f32 Scores[BLOCK_KEYS / 2];
typedef f32 Output[HEAD_DIM / 2];
typedef u32 Weights[BLOCK_KEYS / 16][4];

// Starts S = Q·Kᵀ for the warp group whose rows of Q lie at `q`.
__device__ __forceinline__ void start_scores(Scores &s, u32 q, u32 k) {
#pragma unroll
    for (int e = 0; e < HEAD_DIM / 16; e++) {
        u32 within = e % 4 * 32, half = e / 4;
        u64 left = wgmma_descriptor(q + half * BLOCK_ROWS * ROW_BYTES + within, 16, PATTERN, SWIZZLE_128);
        u64 right = wgmma_descriptor(k + half * BLOCK_KEYS * ROW_BYTES + within, 16, PATTERN, SWIZZLE_128);
        wgmma_ss<element, BLOCK_KEYS>(s, left, right, e != 0);
    }
    wgmma_commit();
}

// Starts O += P·V.
__device__ __forceinline__ void start_output(Output &o, const Weights &weights, u32 v) {
#pragma unroll
    for (int j = 0; j < BLOCK_KEYS / 16; j++) {
        u64 right = wgmma_descriptor(v + j * 16 * ROW_BYTES, BLOCK_KEYS * ROW_BYTES, PATTERN, SWIZZLE_128);
        wgmma_rs<element, HEAD_DIM, 1>(o, weights[j], right, true);
    }
    wgmma_commit();
}

__device__ __forceinline__ void hold(Weights &weights) {
#pragma unroll
    for (int j = 0; j < BLOCK_KEYS / 16; j++) {
        asm volatile("" : "+r"(weights[j][0]), "+r"(weights[j][1]), "+r"(weights[j][2]), "+r"(weights[j][3])::"memory");
    }
}

// This thread's two rows.
struct Rows {
    i32 row[2];
    i32 all_first, all_end;   // keys that every row of the warp group sees
    f32 most[2], total[2], shrink[2];
};

// Scores that a row does not see become -infinity, in steps where there are any.
__device__ __forceinline__ void hide_scores(Scores &s, const Rows &rows, const ShortMask &mask, i32 step) {
    i32 begin = step * BLOCK_KEYS;
    if (begin >= rows.all_first && begin + BLOCK_KEYS <= rows.all_end) {
        return;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        i32 low = mask.first(rows.row[r]) - begin, high = mask.end(rows.row[r]) - begin;
#pragma unroll
        for (int i = 0; i < BLOCK_KEYS / 8; i++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                i32 key = i * 8 + i32(threadIdx.x % 4 * 2) + c;
                f32 &score = s[4 * i + 2 * r + c];
                score = key >= low && key < high ? score : -infinity();
            }
        }
    }
}

// Scores become weights. What was summed before is to shrink by `shrink`.
__device__ __forceinline__ void soften_scores(Scores &s, Rows &rows, f32 factor) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        f32 peak = -infinity();
#pragma unroll
        for (int i = 0; i < BLOCK_KEYS / 8; i++) {
            peak = fmaxf(peak, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
        }
        peak = fmaxf(peak, shuffle_xor(peak, 1));
        peak = fmaxf(peak, shuffle_xor(peak, 2));
        f32 above = fmaxf(rows.most[r], peak * factor);
        // A row that has seen nothing yet: its weights are 2^-infinity.
        f32 base = above == -infinity() ? 0.0f : above;
        rows.shrink[r] = exp2_fast(rows.most[r] - base);
        rows.most[r] = above;
        f32 sum = 0.0f;
#pragma unroll
        for (int i = 0; i < BLOCK_KEYS / 8; i++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                f32 &score = s[4 * i + 2 * r + c];
                score = exp2_fast(fmaf(score, factor, -base));
                sum += score;
            }
        }
        rows.total[r] = rows.total[r] * rows.shrink[r] + sum;
    }
}

__device__ __forceinline__ void pack_weights(Weights &weights, const Scores &s) {
#pragma unroll
    for (int j = 0; j < BLOCK_KEYS / 16; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            weights[j][e] = narrow2<element>(s[8 * j + 2 * e], s[8 * j + 2 * e + 1]);
        }
    }
}

__device__ __forceinline__ void shrink_output(Output &o, const Rows &rows) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++) {
        o[4 * i] *= rows.shrink[0];
        o[4 * i + 1] *= rows.shrink[0];
        o[4 * i + 2] *= rows.shrink[1];
        o[4 * i + 3] *= rows.shrink[1];
    }
}

__device__ __forceinline__ void release(Ring &ring, u32 count) {
    if (threadIdx.x % 32 == 0) {
        mbarrier_arrive(&ring.empty[count % STAGES]);
    }
}

__device__ __forceinline__ void write_output(const AttentionParams &p, const Block &block, const Rows &rows, const Output &o) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        f32 sum = rows.total[r];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        if (rows.row[r] >= i32(p.q_len)) {
            continue;
        }
        f32 share = sum > 0.0f ? 1.0f / sum : 0.0f;
        element *to = p.o + block.batch * p.o_batch + u64(rows.row[r]) * p.o_token + block.head * p.o_head;
        bool whole = (u64(to) & 3) == 0;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            i32 column = i * 8 + i32(threadIdx.x % 4 * 2);
            u32 both = narrow2<element>(o[4 * i + 2 * r] * share, o[4 * i + 2 * r + 1] * share);
            if (whole && column + 1 < p.head_dim) {
                *(u32 *)(to + column) = both;
            } else {
                if (column < p.head_dim) {
                    to[column].bits = u16(both);
                }
                if (column + 1 < p.head_dim) {
                    to[column + 1].bits = u16(both >> 16);
                }
            }
        }
        if (p.lse && threadIdx.x % 4 == 0) {
            f32 natural = 0.69314718056f * (rows.most[r] + log2f(sum));
            p.lse[(u64(block.batch) * p.heads + block.head) * p.q_len + rows.row[r]] = sum > 0.0f ? natural : -infinity();
        }
    }
}

// A warp group's 64 rows; `group` is 0 or 1.
__device__ __forceinline__ void consume(const AttentionParams &p, const Block &block, const Stage &stage, u32 group) {
    Rows rows;
    i32 first = block.first_row + i32(group * 64), last = first + 63 < i32(p.q_len) ? first + 63 : i32(p.q_len) - 1;
    rows.row[0] = first + i32(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
    rows.row[1] = rows.row[0] + 8;
    rows.all_first = block.mask.first(last);
    rows.all_end = block.mask.end(first);
    rows.most[0] = rows.most[1] = -infinity();
    rows.total[0] = rows.total[1] = 0.0f;
    f32 factor = p.scale * 1.4426950409f;
    u32 q = shared_address(stage.q) + group * 64 * ROW_BYTES, k = shared_address(stage.k), v = shared_address(stage.v);

    Output o;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++) {
        o[i] = 0.0f;
    }
    if (block.steps.last >= block.steps.first) {
        Weights weights;
        await(stage.q_full, 0);
        await(&stage.k_ring->full[0], 0);
        {
            Scores s;
            wgmma_fence();
            start_scores(s, q, k);
            wgmma_wait<0>();
            wgmma_hold(s);
            release(*stage.k_ring, 0);
            hide_scores(s, rows, block.mask, block.steps.last);
            soften_scores(s, rows, factor);
            pack_weights(weights, s);
        }
        if (group == 1) {
            // The other group may multiply first.
            named_barrier_arrive(1, 256);
        }
        u32 count = 0;
        for (i32 step = block.steps.last - 1; step >= block.steps.first; step--) {
            Scores s;
            u32 next = count + 1;
            await(&stage.k_ring->full[next % STAGES], next / STAGES % 2);
            named_barrier_sync(1 + group, 256);
            wgmma_fence();
            start_scores(s, q, k + next % STAGES * KV_BYTES);
            await(&stage.v_ring->full[count % STAGES], count / STAGES % 2);
            wgmma_fence();
            start_output(o, weights, v + count % STAGES * KV_BYTES);
            if (group == 0 || step != block.steps.first) {
                named_barrier_arrive(2 - group, 256);
            }
            wgmma_wait<1>();
            wgmma_hold(s);
            release(*stage.k_ring, next);
            hide_scores(s, rows, block.mask, step);
            soften_scores(s, rows, factor);
            wgmma_wait<0>();
            wgmma_hold(o);
            hold(weights);
            release(*stage.v_ring, count);
            pack_weights(weights, s);
            shrink_output(o, rows);
            count = next;
        }
        await(&stage.v_ring->full[count % STAGES], count / STAGES % 2);
        wgmma_fence();
        start_output(o, weights, v + count % STAGES * KV_BYTES);
        wgmma_wait<0>();
        wgmma_hold(o);
        hold(weights);
    }
    write_output(p, block, rows, o);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90(const __grid_constant__ TmaParams p) {
    extern __shared__ __align__(1024) char tiles[];
    Stage stage;
    stage.q = tiles;
    stage.k = stage.q + Q_BYTES;
    stage.v = stage.k + STAGES * KV_BYTES;
    stage.k_ring = (Ring *)(stage.v + STAGES * KV_BYTES);
    stage.v_ring = stage.k_ring + 1;
    stage.q_full = (u64 *)(stage.v_ring + 1);
    if (threadIdx.x == 0) {
        mbarrier_init(stage.q_full, 1);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&stage.k_ring->full[i], 1);
            mbarrier_init(&stage.v_ring->full[i], 1);
            // A lane of each consumer warp.
            mbarrier_init(&stage.k_ring->empty[i], CONSUMERS * 4);
            mbarrier_init(&stage.v_ring->empty[i], CONSUMERS * 4);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    Block block = block_of(p.common);
    // Of one lane for all, so that the compiler knows that no warp takes both branches.
    u32 group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    if (group == 0) {
        registers_give<24>();
        if (threadIdx.x == 0) {
            produce(p, block, stage);
        }
    } else {
        registers_take<240>();
        consume(p.common, block, stage, group - 1);
    }
}

// Operands that TMA cannot read: rows that do not start on a multiple of 16 bytes.
extern "C" __global__ void __launch_bounds__(WARP_THREADS, TOGETHER) attention_sm80_narrow(const AttentionParams p) {
    extern __shared__ __align__(16) element shared[];
    attend<false, true, 1>(p, shared);
}
