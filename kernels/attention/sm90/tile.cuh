// What a block of `attention/sm90/pipeline.cuh` works on, and what its consumers do with a step: the products and the softmax.
#pragma once

#include "attention/block_pairs.cuh"
#include "attention/sm80/tile.cuh"
#include "attention/tma_params.cuh"
#include "ptx/cluster.cuh"
#include "ptx/wgmma.cuh"

// From the host: CONSUMERS, warpgroups that multiply; RING_STAGES, steps whose keys are there, or under way; BLOCK_KEYS of a step; TAIL_BYTES of a row of K's last panel; Q_STAGES, tiles whose
// rows of Q are there, or under way; BARRIER_BYTES behind them all.
constexpr int BLOCK_ROWS = CONSUMERS * 64;
constexpr int STAGES = RING_STAGES;
constexpr int TURN_AT = BLOCK_KEYS / 16;                  // products of P·V under way when the other group may begin
constexpr int BLOCK_THREADS = (CONSUMERS + 1) * 128;
constexpr int PANELS = (HEAD_DIM + 63) / 64;              // a copied row has 64 elements: 128 bytes, swizzled
constexpr u32 ROW_BYTES = 128;
constexpr bool K_TAIL = TAIL_BYTES < ROW_BYTES;           // K's last panel has rows of its own width
constexpr u32 Q_BYTES = BLOCK_ROWS * PANELS * ROW_BYTES;
constexpr u32 V_BYTES = BLOCK_KEYS * PANELS * ROW_BYTES;
constexpr u32 K_BYTES = BLOCK_KEYS * ((PANELS - 1) * ROW_BYTES + TAIL_BYTES);
constexpr u32 RING_BYTES = STAGES * (K_BYTES + V_BYTES);
constexpr u32 PATTERN = 8 * ROW_BYTES;                    // of the swizzle
#ifdef UNALIGNED_ROWS
constexpr bool UNALIGNED = true;                            // rows do not start on multiples of 16 bytes (`attention/sm90/unaligned.cuh`)
#else
constexpr bool UNALIGNED = false;
#endif
#ifdef VARLEN_ROWS
constexpr bool IS_VARLEN = true;                             // sequences have lengths of their own (`attention/sm90/varlen.cuh`)
#else
constexpr bool IS_VARLEN = false;
#endif
#ifdef VARLEN_LOOKAHEAD
constexpr bool AHEAD = true;                              // the candidate of those
#else
constexpr bool AHEAD = false;
#endif

constexpr int MENDED = UNALIGNED ? STAGES : 1;              // stages whose rows are mended
constexpr int PUBLISHED_TILES = UNALIGNED ? 4 : 2;               // tiles that the consumers are told of

static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 256, "whole steps of the product, and O in registers");
constexpr u32 SHARED_TAIL = BARRIER_BYTES;

// Whether O goes out by way of Q's rows. Where there is room for one tile of Q, the next one is to come while O goes out; each group's rows
// then come as soon as that group has multiplied its own for the last time.
constexpr bool BY_WAY_OF_Q = Q_STAGES > 1;
constexpr int Q_PARTS = Q_STAGES > 1 ? 1 : CONSUMERS;     // parts of a tile of Q that are left one by one

// What TMA brings of a row behind HEAD_DIM columns, where panels end with those.
constexpr bool K_BEYOND = UNALIGNED && (PANELS - 1) * 64 + TAIL_BYTES / 2 == HEAD_DIM, V_BEYOND = UNALIGNED && PANELS * 64 == HEAD_DIM;
constexpr u32 BEYOND_BYTES = BLOCK_KEYS * 16;

static_assert(Q_STAGES * Q_BYTES + RING_BYTES + SHARED_TAIL + (K_BEYOND + V_BEYOND) * BEYOND_BYTES == TMA_SHARED_BYTES, "what the host sets aside");

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

// The keys of a step in a stage: the first, and the kind of the block.
struct Keys {
    i32 first, kind;
};

struct PublishedRing {
    u64 full[PUBLISHED_TILES], empty[PUBLISHED_TILES];
};

// Which tiles a kernel walks over, and in which steps.
enum Lists { EVERY = 0, BLOCKS_OF_128 = 1, BLOCKS_OF_64 = 2 };

// The keys of a step of two blocks of 64: the first of each, and their kinds for either warpgroup.
struct PairKeys {
    i32 first[2], kind[CONSUMERS][2];
};

// As one group sees them.
struct GroupKeys {
    i32 first[2], kind[2];
};

// A tile as the producer tells the consumers of it.
struct Published {
    u32 batch, head;
    i32 first_row, first, last;   // of its rows, and of its steps
};

// A sequence of its own length: its queries and keys, and where they begin among those of all.
struct Span {
    i32 q_len, kv_len, q_begin, kv_begin;
};

// Elements that the rows of K and V in a stage start too late.
struct Shifts {
    u32 k[MENDED], v[MENDED];
};

// What a block shares besides its tiles.
struct Shared {
    u64 q_full[Q_STAGES][CONSUMERS], q_empty[Q_STAGES][Q_PARTS];
    Ring k_ring, v_ring;
    u64 k_rest[STAGES];   // the panels of K behind the first
    Keys keys[STAGES];
    PairKeys pairs[STAGES];
    u32 work[PUBLISHED_TILES];   // the tile whose Q is there
    Published published[PUBLISHED_TILES];
    // Of unaligned rows alone: tiles that the warp that brings Q is told of, Q that has come, K and V that are as they should be.
    PublishedRing published_ring;
    u64 q_there[CONSUMERS], k_ready[MENDED], v_ready[MENDED];
    Shifts shifts;
    Span spans[IS_VARLEN ? PUBLISHED_TILES : 1];   // of the tiles that the consumers are told of

    __device__ __forceinline__ u64 *k_there(u32 stage) { return UNALIGNED ? &k_ready[stage] : &k_ring.full[stage]; }
    __device__ __forceinline__ u64 *v_there(u32 stage) { return UNALIGNED ? &v_ready[stage] : &v_ring.full[stage]; }
};

static_assert(sizeof(Shared) <= SHARED_TAIL, "what the host sets aside");

// Where the tiles of a block lie.
struct Stage {
    char *q, *k, *v;
    Shared *shared;
};

// Starts copying ROWS_COPIED rows of a head from `row`.
template <int ROWS_COPIED> __device__ __forceinline__ void fetch(const tensor_map &map, char *to, u64 *full, i32 row, u32 head, u32 batch) {
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
        tma_load_4d(to + panel * ROWS_COPIED * ROW_BYTES, &map, full, panel * 64, row, head, batch);
    }
}

// The same of two blocks of 64 keys, which lie one behind the other then; `map` has boxes of as many.
__device__ __forceinline__ void fetch_pair(const tensor_map &map, char *to, u64 *full, const i32 (&rows)[2], u32 head, u32 batch) {
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            tma_load_4d(to + (panel * BLOCK_KEYS + half * BLOCK_KEYS / 2) * ROW_BYTES, &map, full, panel * 64, rows[half], head, batch);
        }
    }
}

// The steps of a block, from `last` down to `first`: BLOCK_KEYS keys each, or LISTED places in the list of blocks.
struct Steps {
    i32 first, last;
};

struct Block {
    u32 batch, head;
    i32 first_row;
    ShortMask mask;
    Steps steps;
    Span span;   // where sequences have lengths of their own
};

// The queries of a block's sequence.
__device__ __forceinline__ i32 queries_of(const AttentionParams &p, const Block &block) { return IS_VARLEN ? block.span.q_len : i32(p.q_len); }

// This block's share of the steps, where a cluster works on one tile.
__device__ __forceinline__ Steps share_of(Steps all, u32 rank, u32 size) {
    i32 count = all.last + 1 - all.first;
    return {all.first + i32(count * rank / size), all.first + i32(count * (rank + 1) / size) - 1};
}

// The head whose keys a block's queries see.
__device__ __forceinline__ u32 kv_head_of(const AttentionParams &p, const Block &block) {
    return p.heads == p.kv_heads ? block.head : block.head / (u32(p.heads) / u32(p.kv_heads));
}

// Queries and keys of a listed block, but for those of 64.
constexpr i32 LISTED_BLOCK = 128;

// The lists that a block's head has.
__device__ __forceinline__ u32 pattern_of(const AttentionParams &p, const Block &block) {
    return p.patterns == 1 ? 0 : p.patterns == u32(p.heads) ? block.head : block.batch * u32(p.heads) + block.head;
}

// The listed blocks of which a row sees something, or of the part that is asked for.
__device__ __forceinline__ Steps listed_steps(const AttentionParams &p, const Block &block, i32 seen_first, i32 seen_end, u32 part = 0, u32 parts = 1) {
    const i32 *row = p.index + u64(pattern_of(p, block)) * (p.q_blocks + 1) + u32(block.first_row) / LISTED_BLOCK, *columns = block_columns(p);
    Steps steps = {row[0], row[1] - 1};
    steps = parts == 1 ? steps : share_of(steps, part, parts);
    if (p.causal || p.window >= 0) {
        while (steps.last >= steps.first && columns[steps.last] * LISTED_BLOCK >= seen_end) {
            steps.last--;
        }
        while (steps.last >= steps.first && (columns[steps.first] + 1) * LISTED_BLOCK <= seen_first) {
            steps.first++;
        }
    }
    return steps;
}

// The plan's numbers for a tile: where its columns are, and how many.
struct TilePairs {
    PairPlan plan;
    i32 begin, count;
};

__device__ __forceinline__ TilePairs pairs_of(const TmaParams &params, const Block &block) {
    const AttentionParams &p = params.common;
    u32 pattern = pattern_of(p, block), tile = u32(block.first_row) / BLOCK_ROWS;
    PairPlan plan = pair_plan(params.pairs, p.patterns, params.region);
    i32 begin = pair_begin(p.index + u64(pattern) * (p.q_blocks + 1), pattern, params.region, tile);
    return {plan, begin, plan.counts[pattern * p.tiles + tile]};
}

// The keys of step `step`. Where the last has one block, that one is read twice, and not seen the second time.
__device__ __forceinline__ PairKeys pair_keys(const TilePairs &pairs, i32 step) {
    PairKeys keys;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        i32 place = 2 * step + half;
        bool there = place < pairs.count;
        i32 at = pairs.begin + (there ? place : place - 1);
        keys.first[half] = pairs.plan.columns[at] * (BLOCK_KEYS / 2);
        keys.kind[0][half] = there ? pairs.plan.kinds[0][at] : ABSENT;
        keys.kind[1][half] = there ? pairs.plan.kinds[1][at] : ABSENT;
    }
    return keys;
}

// Which tile a block works on, and nothing that has to be read.
__device__ __forceinline__ Block place_of(const AttentionParams &p, u32 work) {
    // In bands of heads whose keys fit L2 together. Late queries of causal sequences have the most to do, and
    // come first in each band.
    u32 heads = u32(p.batch * p.heads), band = 0;
    if (work >= p.tiles * p.band) {
        band = work / (p.tiles * p.band);
    }
    u32 first = band * p.band;
    u32 inside = work - first * p.tiles, width = heads - first < p.band ? heads - first : p.band;
    u32 late = inside / width, head = first + (inside - late * width);
    Block block;
    block.batch = 0;
    if (head >= u32(p.heads)) {
        block.batch = head / u32(p.heads);
    }
    block.head = head - block.batch * u32(p.heads);
    block.first_row = i32(p.tiles - 1 - late) * BLOCK_ROWS;
    block.mask = mask_of(p, i32(p.q_len), i32(p.kv_len));
    block.steps = {};
    return block;
}

template <Lists LISTED> __device__ __forceinline__ Block block_of(const TmaParams &params, u32 work) {
    const AttentionParams &p = params.common;
    Block block = place_of(p, work);
    i32 last_row = block.first_row + BLOCK_ROWS < i32(p.q_len) ? block.first_row + BLOCK_ROWS - 1 : i32(p.q_len) - 1;
    i32 first = block.mask.first(block.first_row), end = block.mask.end(last_row);
    if constexpr (LISTED == BLOCKS_OF_128) {
        block.steps = listed_steps(p, block, first, end);
    } else if constexpr (LISTED == BLOCKS_OF_64) {
        block.steps = {0, (pairs_of(params, block).count + 1) / 2 - 1};
    } else {
        block.steps = {first / BLOCK_KEYS, first < end ? (end - 1) / BLOCK_KEYS : first / BLOCK_KEYS - 1};
    }
    u32 size = cluster_size();
    if (size > 1) {
        block.steps = share_of(block.steps, cluster_rank(), size);
    }
    return block;
}

typedef f32 Scores[BLOCK_KEYS / 2];
typedef f32 Output[HEAD_DIM / 2];
typedef u32 Weights[BLOCK_KEYS / 16][4];

// Starts S = Q·Kᵀ for the warpgroup whose rows of Q `q` describes.
//
// Where HALVED, K's panels behind the first come behind a barrier of their own.
template <bool HALVED> __device__ __forceinline__ void start_scores(Scores &s, u64 q, u64 k, u64 *rest, u32 parity) {
#pragma unroll
    for (int e = 0; e < HEAD_DIM / 16; e++) {
        if (HALVED && e == 4) {
            await(rest, parity);
            wgmma_fence();
        }
        u32 within = e % 4 * 32, panel = e / 4;
        u64 left = wgmma_moved(q, panel * BLOCK_ROWS * ROW_BYTES + within), right = wgmma_moved(k, panel * BLOCK_KEYS * ROW_BYTES + within);
        if (K_TAIL && panel == PANELS - 1) {
            right = wgmma_patterned(right, 8 * TAIL_BYTES, SWIZZLE_64);
        }
        wgmma_ss<element, BLOCK_KEYS>(s, left, right, e != 0);
    }
    wgmma_commit();
}

// Starts O += P·V, and hands the turn to the other group once TURN_AT of the products are under way.
template <class Hand> __device__ __forceinline__ void start_output(Output &o, const Weights &weights, u64 v, Hand hand) {
#pragma unroll
    for (int j = 0; j < BLOCK_KEYS / 16; j++) {
        wgmma_rs<element, HEAD_DIM, 1>(o, weights[j], wgmma_moved(v, j * 16 * ROW_BYTES), true);
        if (j + 1 == TURN_AT) {
            hand();
        }
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
    i32 all_first, all_end;   // keys that every row of the warpgroup sees
    f32 most[2], total[2], rescale[2];
};

// Those of a warpgroup from row `first` on, which have seen no keys yet.
__device__ __forceinline__ Rows rows_from(const AttentionParams &p, const Block &block, i32 first) {
    const ShortMask &mask = block.mask;
    i32 q_len = queries_of(p, block), last = first + 63 < q_len ? first + 63 : q_len - 1;
    Rows rows;
    rows.row[0] = first + i32(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
    rows.row[1] = rows.row[0] + 8;
    rows.all_first = mask.first(last);
    rows.all_end = mask.end(first);
    rows.most[0] = rows.most[1] = -infinity();
    rows.total[0] = rows.total[1] = 0.0f;
    return rows;
}

// The power of two that a weight may reach before what was summed shrinks (FlashAttention-4 does the same). Few steps then need it,
// and f16 goes to 2^16.
constexpr f32 SLACK = 8.0f;

template <class Choose> __device__ __forceinline__ i32 of_quad(i32 value, Choose choose) {
    value = choose(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return choose(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

// Of the scores of one of this thread's rows, and of the lanes that hold the rest of it: what `choose` leaves of their bits.
template <class Choose> __device__ __forceinline__ i32 choose_bits(const Scores &s, int r, Choose choose) {
    i32 bits = __float_as_int(s[2 * r]);
#pragma unroll
    for (int i = 0; i < BLOCK_KEYS / 8; i++) {
        bits = choose(choose(bits, __float_as_int(s[4 * i + 2 * r])), __float_as_int(s[4 * i + 2 * r + 1]));
    }
    return of_quad(bits, choose);
}

// The greatest score of each row; or -infinity where none is above zero, and the row has seen one that is.
//
// One instruction compares three whole numbers, and none three floating-point ones. Bits of numbers that are not negative are
// ordered as they are, and are the greater ones; of negative numbers the greatest has the least bits. Those are asked for only
// where a row's greatest score so far is negative too.
__device__ __forceinline__ void find_peaks(f32 (&peak)[2], const Scores &s, const Rows &rows) {
    auto greater = [](i32 a, i32 b) { return a > b ? a : b; };
    auto lesser = [](i32 a, i32 b) { return a < b ? a : b; };
    i32 bits[2] = {choose_bits(s, 0, greater), choose_bits(s, 1, greater)};
    bool below[2] = {bits[0] < 0, bits[1] < 0};
    if (any_lane((below[0] && rows.most[0] < 0.0f) || (below[1] && rows.most[1] < 0.0f))) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            i32 least = choose_bits(s, r, lesser);
            peak[r] = __int_as_float(below[r] ? least : bits[r]);
        }
    } else {
        peak[0] = below[0] ? -infinity() : __int_as_float(bits[0]);
        peak[1] = below[1] ? -infinity() : __int_as_float(bits[1]);
    }
}

// Scores become weights. What was summed before is to be rescaled by `rescale`.
__device__ __forceinline__ void softmax_scores(Scores &s, Rows &rows, f32 factor) {
    f32 peak[2];
    find_peaks(peak, s, rows);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        f32 above = fmaxf(rows.most[r], peak[r] * factor);
        above = above > rows.most[r] + SLACK ? above : rows.most[r];
        // A row that has seen nothing yet: its weights are 2^-infinity.
        f32 base = above == -infinity() ? 0.0f : above;
        rows.rescale[r] = exp2_fast(rows.most[r] - base);
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
        rows.total[r] = rows.total[r] * rows.rescale[r] + sum;
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

__device__ __forceinline__ void rescale_output(Output &o, const Rows &rows) {
    if (!any_lane(rows.rescale[0] != 1.0f || rows.rescale[1] != 1.0f)) {
        return;
    }
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++) {
        o[4 * i] *= rows.rescale[0];
        o[4 * i + 1] *= rows.rescale[0];
        o[4 * i + 2] *= rows.rescale[1];
        o[4 * i + 3] *= rows.rescale[1];
    }
}

// This warp is done with what `empty` guards.
__device__ __forceinline__ void release(u64 *empty) {
    if (threadIdx.x % 32 == 0) {
        mbarrier_arrive(empty);
    }
}
