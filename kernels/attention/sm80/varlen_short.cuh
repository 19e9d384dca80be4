// Many short sequences end to end: blocks stay, and what the next step reads is on its way while this one is multiplied.
//
// A step is a tile of VARLEN_SHORT_ROWS queries of a head and at most VARLEN_SHORT_KEYS of its keys: all of them for most sentences. Its copies are
// all under way together, where a walk in steps of 64 keys waits for K and V in turn. With heads of 32 a tile is some two thousand
// cycles, in which instructions are what is scarce: a warp of its own works out what a step reads and where (`Task`), and copies it.
// What a row adds up, and in which order, depends on its own sequence alone.
#pragma once

#include "attention/sm80/tile.cuh"
#include "attention/varlen_short_params.cuh"
#include "ptx/cluster.cuh"
#include "ptx/grid.cuh"

constexpr int VARLEN_SHORT_THREADS = (VARLEN_SHORT_WARPS + 1) * 32;                // the last warp copies
constexpr int VARLEN_SHORT_HIGH = 2;   // times 16 rows of a warp: what it reads of K and V, and all that is worked out once a step, serve both
constexpr int VARLEN_SHORT_ROWS = VARLEN_SHORT_WARPS * VARLEN_SHORT_HIGH * 16;
constexpr int VARLEN_SHORT_KEYS = 128;                                      // of a stage
constexpr int VARLEN_SHORT_STEP = 32;                                       // that are multiplied at a time
constexpr int VARLEN_SHORT_STAGE = (VARLEN_SHORT_ROWS + 2 * VARLEN_SHORT_KEYS) * PITCH;   // elements: Q, K, V
constexpr int VARLEN_SHORT_STEP_ROWS = 32 / SIDE;                           // rows that a warp copies at a time

constexpr bool KEEP_Q = HEAD_DIM <= 32;                              // in registers: else it comes with every step

static_assert(VARLEN_SHORT_ROWS == 128 && VARLEN_SHORT_KEYS == 128, "a stage holds one head's rows, or those of two or four");
static_assert(CHUNKS == SIDE && TILES % 4 == 0, "a thread copies 16 bytes of a row, and writes as many");
static_assert(2 * VARLEN_SHORT_STAGE * 2 == VARLEN_SHORT_SHARED_BYTES, "what the host sets aside");

// A step: rows of a tile, and of the keys that they see those from `key` on, of one head; of several, where sequences are short.
struct alignas(16) Task {
    const element *q, *k, *v;   // the first row of each, of the first head
    element *o;
    u32 work;     // the number of the tile; past the last there is nothing to do
    u32 head;
    u32 heads;    // of the tile from `head` on: the step takes as many as fit
    u32 narrow;   // a head has 2^narrow rows of Q, K and V in a stage
    i32 row, q_len, kv_len;
    i32 token;    // of the first query among all
    i32 start, key, end;   // the tile's keys, and the step's first

    __device__ __forceinline__ bool first() const { return key == start; }
    __device__ __forceinline__ bool last() const { return key + VARLEN_SHORT_KEYS >= end; }
};

// Keys from `first` to before `end`.
struct KeyRange {
    i32 first, end;
};

// The first step of the first tile from `work` on that has rows. Tiles, of `band` heads each, are in the order of sequences, their rows,
// their heads, which lie side by side in memory.
__device__ __forceinline__ Task first_task(const VarlenShortParams &params, u32 work) {
    const AttentionParams &p = params.common;
    Task task = {};
    for (task.work = work; task.work < params.work; task.work += gridDim.x) {
        u32 line = task.work / params.groups, group = task.work - line * params.groups, batch = p.tiles == 1 ? line : line / p.tiles;
        const i32 *q = p.index + batch, *kv = q + p.batch + 1;
        i32 q_first = q[0], kv_first = kv[0];
        task.row = i32(line - batch * p.tiles) * VARLEN_SHORT_ROWS;
        task.q_len = q[1] - q_first;
        task.kv_len = kv[1] - kv_first;
        if (task.row < task.q_len) {
            task.head = group * p.band;
            task.heads = u32(p.heads) - task.head < p.band ? u32(p.heads) - task.head : p.band;
            i32 longer = task.q_len > task.kv_len ? task.q_len : task.kv_len;
            task.narrow = longer <= 32 ? 5 : longer <= 64 ? 6 : 7;
            ShortMask mask = mask_of(p, task.q_len, task.kv_len);
            task.start = task.key = mask.first(task.row) / VARLEN_SHORT_KEYS * VARLEN_SHORT_KEYS;
            task.end = mask.end((task.row + VARLEN_SHORT_ROWS < task.q_len ? task.row + VARLEN_SHORT_ROWS : task.q_len) - 1);
            task.token = q_first + task.row;
            u32 kv_head = p.pack == 1 ? task.head : task.head / p.pack;
            task.q = p.q + u64(task.token) * p.q_token + task.head * p.q_head;
            task.o = p.o + u64(task.token) * p.o_token + task.head * p.o_head;
            task.k = p.k + u64(kv_first + task.key) * p.k_token + kv_head * p.k_head;
            task.v = p.v + u64(kv_first + task.key) * p.v_token + kv_head * p.v_head;
            break;
        }
    }
    return task;
}

__device__ __forceinline__ Task task_after(const VarlenShortParams &params, Task task) {
    const AttentionParams &p = params.common;
    if (task.work >= params.work) {
        return task;
    }
    u32 taken = VARLEN_SHORT_ROWS >> task.narrow;
    if (!task.last()) {
        task.key += VARLEN_SHORT_KEYS;
        task.k += VARLEN_SHORT_KEYS * p.k_token;
        task.v += VARLEN_SHORT_KEYS * p.v_token;
    } else if (taken < task.heads) {
        // Where a tile has several heads, each has keys of its own.
        task.k += taken * p.k_head - u64(task.key - task.start) * p.k_token;
        task.v += taken * p.v_head - u64(task.key - task.start) * p.v_token;
        task.q += taken * p.q_head;
        task.o += taken * p.o_head;
        task.key = task.start;
        task.head += taken;
        task.heads -= taken;
    } else {
        return first_task(params, task.work + gridDim.x);
    }
    return task;
}

// Starts the copies of a step, by one warp: 16 bytes of a row by each lane.
__device__ __forceinline__ void load_task(const AttentionParams &p, const Task &task, Spot stage) {
    i32 line = i32(threadIdx.x % 32) / SIDE, column = i32(threadIdx.x) % SIDE * 8, there = p.head_dim - column;
    u32 bytes = there <= 0 ? 0 : there >= 8 ? 16 : 2 * there, heads = VARLEN_SHORT_ROWS >> task.narrow;
    i32 rows = task.q_len - task.row < VARLEN_SHORT_ROWS ? task.q_len - task.row : VARLEN_SHORT_ROWS;
    i32 keys = task.end - task.key < VARLEN_SHORT_KEYS ? task.end - task.key : VARLEN_SHORT_KEYS, fill = (keys + VARLEN_SHORT_STEP - 1) / VARLEN_SHORT_STEP * VARLEN_SHORT_STEP;
    rows = task.first() || !KEEP_Q ? rows : 0;
    heads = heads < task.heads ? heads : task.heads;
    u64 q_stride = VARLEN_SHORT_STEP_ROWS * p.q_token, k_stride = VARLEN_SHORT_STEP_ROWS * p.k_token, v_stride = VARLEN_SHORT_STEP_ROWS * p.v_token;
#pragma unroll 1
    for (u32 beside = 0; beside < heads; beside++) {
        const element *q = task.q + (beside * p.q_head + line * p.q_token + column);
        const element *k = task.k + (beside * p.k_head + line * p.k_token + column);
        const element *v = task.v + (beside * p.v_head + line * p.v_token + column);
        Spot to = stage + (((beside << task.narrow) + line) * PITCH + column);
#pragma unroll 4
        for (i32 row = line; row < (rows > fill ? rows : fill); row += VARLEN_SHORT_STEP_ROWS) {
            // Rows of Q past the last stay as they are: no row depends on another. Scores of keys past the last are hidden.
            if (row < rows) {
                cp_async_16(to.address, q, bytes);
            }
            if (row < keys) {
                cp_async_16((to + VARLEN_SHORT_ROWS * PITCH).address, k, bytes);
                cp_async_16((to + (VARLEN_SHORT_ROWS + VARLEN_SHORT_KEYS) * PITCH).address, v, bytes);
            } else if (row < fill) {
                // A weight of 0 would not make 0 of what is not a number.
                *(uint4 *)(to + (VARLEN_SHORT_ROWS + VARLEN_SHORT_KEYS) * PITCH).start = {0, 0, 0, 0};
            }
            q += q_stride, k += k_stride, v += v_stride, to = to + VARLEN_SHORT_STEP_ROWS * PITCH;
        }
    }
}

// A warp's rows: Q, and what is summed over their keys. EXACT: weights are summed as they are, which the LSE needs. Else as they are
// multiplied with V, rounded, by the same instruction.
template <bool EXACT> struct WarpRows {
    static constexpr int N = VARLEN_SHORT_STEP / 8;

    u32 q[VARLEN_SHORT_HIGH][KEEP_Q ? HEAD_DIM / 16 : 1][4];
    f32 most[VARLEN_SHORT_HIGH][2], total[VARLEN_SHORT_HIGH][4], o[VARLEN_SHORT_HIGH][TILES][4];

    __device__ __forceinline__ void begin(u32 q_at) {
#pragma unroll
        for (int i = 0; i < VARLEN_SHORT_HIGH; i++) {
            most[i][0] = most[i][1] = -infinity();
            total[i][0] = total[i][1] = total[i][2] = total[i][3] = 0.0f;
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                o[i][n][0] = o[i][n][1] = o[i][n][2] = o[i][n][3] = 0.0f;
            }
#pragma unroll
            for (int e = 0; KEEP_Q && e < HEAD_DIM / 16; e++) {
                ldmatrix_x4(q[i][e], q_at + (i * 16 * PITCH + e * 16) * 2);
            }
        }
    }

    // VARLEN_SHORT_STEP keys. Row `i` sees those in `seen(i)`, unless every row sees all.
    template <class Seen> __device__ __forceinline__ void add_keys(f32 scale, bool all, u32 q_at, u32 k_at, u32 v_at, Seen seen) {
        f32 s[VARLEN_SHORT_HIGH][N][4];
#pragma unroll
        for (int i = 0; i < VARLEN_SHORT_HIGH; i++) {
#pragma unroll
            for (int n = 0; n < N; n++) {
                s[i][n][0] = s[i][n][1] = s[i][n][2] = s[i][n][3] = 0.0f;
            }
        }
#pragma unroll
        for (int e = 0; e < HEAD_DIM / 16; e++) {
            int held = KEEP_Q ? e : 0;
#pragma unroll
            for (int i = 0; !KEEP_Q && i < VARLEN_SHORT_HIGH; i++) {
                ldmatrix_x4(q[i][0], q_at + (i * 16 * PITCH + e * 16) * 2);
            }
#pragma unroll
            for (int n = 0; n < N; n += 2) {
                u32 k[4];
                ldmatrix_x4(k, k_at + (n * 8 * PITCH + e * 16) * 2);
                u32 low[2] = {k[0], k[1]}, high[2] = {k[2], k[3]};
#pragma unroll
                for (int i = 0; i < VARLEN_SHORT_HIGH; i++) {
                    mma_m16n8k16<element>(s[i][n], q[i][held], low);
                    mma_m16n8k16<element>(s[i][n + 1], q[i][held], high);
                }
            }
        }
        if (!all) {
#pragma unroll
            for (int i = 0; i < VARLEN_SHORT_HIGH; i++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    KeyRange range = seen(i * 16 + r * 8 + i32(threadIdx.x % 32 / 4));
                    i32 from = i32(threadIdx.x % 4 * 2), low = range.first - from, high = range.end - from;
#pragma unroll
                    for (int n = 0; n < N; n++) {
#pragma unroll
                        for (int c = 0; c < 2; c++) {
                            s[i][n][2 * r + c] = n * 8 + c >= low && n * 8 + c < high ? s[i][n][2 * r + c] : -infinity();
                        }
                    }
                }
            }
        }
        softmax_rows(scale * 1.4426950409f, s);
        weigh(v_at, s, o);
        if (!EXACT) {
            u32 one = narrow2<element>(1.0f, 1.0f), ones[2] = {one, one};
#pragma unroll
            for (int n = 0; n < N; n += 2) {
#pragma unroll
                for (int i = 0; i < VARLEN_SHORT_HIGH; i++) {
                    const f32(&left)[4] = s[i][n], (&right)[4] = s[i][n + 1];
                    u32 weights[4] = {narrow2<element>(left[0], left[1]), narrow2<element>(left[2], left[3]), narrow2<element>(right[0], right[1]),
                                      narrow2<element>(right[2], right[3])};
                    mma_m16n8k16<element>(total[i], weights, ones);
                }
            }
        }
    }

    // One step of the online softmax, as `softmax`, with all rows side by side and one branch for them.
    __device__ __forceinline__ void softmax_rows(f32 factor, f32 (&s)[VARLEN_SHORT_HIGH][N][4]) {
        f32 base[VARLEN_SHORT_HIGH][2], rescale[VARLEN_SHORT_HIGH][2];
        bool moved = false;
#pragma unroll
        for (int i = 0; i < VARLEN_SHORT_HIGH; i++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                f32 peak = fmaxf(s[i][0][2 * r], s[i][0][2 * r + 1]);
#pragma unroll
                for (int n = 1; n < N; n++) {
                    peak = fmaxf(peak, fmaxf(s[i][n][2 * r], s[i][n][2 * r + 1]));
                }
                peak = fmaxf(peak, shuffle_xor(peak, 1));
                peak = fmaxf(peak, shuffle_xor(peak, 2));
                f32 above = fmaxf(most[i][r], peak * factor);
                // A row that has seen nothing yet: its weights are 2^-infinity.
                base[i][r] = above == -infinity() ? 0.0f : above;
                rescale[i][r] = exp2_fast(most[i][r] - base[i][r]);
                moved = moved || rescale[i][r] != 1.0f;
                most[i][r] = above;
            }
        }
        // Maxima soon stay as they are; a product with 1 changes nothing.
        if (any_lane(moved)) {
#pragma unroll
            for (int i = 0; i < VARLEN_SHORT_HIGH; i++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    total[i][c] *= rescale[i][c / 2];
#pragma unroll
                    for (int n = 0; n < TILES; n++) {
                        o[i][n][c] *= rescale[i][c / 2];
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < VARLEN_SHORT_HIGH; i++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                f32 sum = 0.0f;
#pragma unroll
                for (int n = 0; n < N; n++) {
                    s[i][n][c] = exp2_fast(fmaf(s[i][n][c], factor, -base[i][c / 2]));
                    sum += s[i][n][c];
                }
                if (EXACT) {
                    total[i][c] += sum;
                }
            }
        }
    }

    // Writes those of the rows that the sequence has: by way of the warp's rows of Q, that each lane may write 16 bytes.
    __device__ __forceinline__ void finish(const AttentionParams &p, const Task &task, u32 beside, i32 first, Spot tile) {
        u32 lane = threadIdx.x % 32;
        i32 count = task.q_len - task.row - first;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < VARLEN_SHORT_HIGH; i++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                f32 sum = total[i][2 * r];
                if (EXACT) {
                    sum += total[i][2 * r + 1];
                    sum += shuffle_xor(sum, 1);
                    sum += shuffle_xor(sum, 2);
                }
                f32 share = sum > 0.0f ? reciprocal_fast(sum) : 0.0f;
                i32 row = i * 16 + r * 8 + i32(lane / 4);
                Spot to = tile + (row * PITCH + lane % 4 * 2);
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    *(u32 *)(to + n * 8).start = narrow2<element>(o[i][n][2 * r] * share, o[i][n][2 * r + 1] * share);
                }
                total[i][2 * r] = sum;
            }
        }
        __syncwarp();
        if (EXACT && p.lse && lane % 4 == 0) {
            f32 *lse = p.lse + (u64(task.token + first) + (task.head + beside) * p.lse_head);
#pragma unroll
            for (int at = 0; at < VARLEN_SHORT_HIGH * 2; at++) {
                i32 row = at * 8 + i32(lane / 4);
                f32 sum = total[at / 2][at % 2 * 2], natural = 0.69314718056f * (most[at / 2][at % 2] + log2f(sum));
                if (row < count) {
                    lse[row] = sum == 0.0f ? -infinity() : natural;
                }
            }
        }
        i32 column = i32(lane % CHUNKS * 8);
        element *to = task.o + (beside * p.o_head + (first + lane / CHUNKS) * p.o_token + column);
        bool whole = p.head_dim == HEAD_DIM && ((u64(task.o) | p.o_token * 2 | p.o_head * 2) & 15) == 0;
#pragma unroll
        for (int i = 0; i < VARLEN_SHORT_HIGH * 16; i += 32 / CHUNKS, to += 32 / CHUNKS * p.o_token) {
            i32 row = i + i32(lane / CHUNKS);
            uint4 eight = *(const uint4 *)(tile + (row * PITCH + column)).start;
            if (row < count) {
                if (whole) {
                    store_16(to, eight);
                } else {
                    write_eight(to - column, eight, column, p.head_dim, false);
                }
            }
        }
    }
};

// All warps of a block. By its number: the warps come from two places of the program, where `__syncthreads` wants one.
__device__ __forceinline__ void meet() { named_barrier_sync(1, VARLEN_SHORT_THREADS); }

// The warp that copies: a step ahead of those that multiply.
__device__ __forceinline__ void produce_tasks(const VarlenShortParams &params, Spot stages, Task (&tasks)[2]) {
    Task task = first_task(params, blockIdx.x);
#pragma unroll 1
    for (u32 turn = 0;; turn ^= 1) {
        bool there = task.work < params.work;
        tasks[turn] = task;
        if (there) {
            load_task(params.common, task, stages + turn * VARLEN_SHORT_STAGE);
        }
        cp_async_commit();
        if (there) {
            task = task_after(params, task);
        }
        cp_async_wait<0>();
        // The step has come, and everyone is done with the one before: its place is free.
        meet();
        if (!there) {
            return;
        }
    }
}

// The warps that multiply. GENERAL: causal, with a window, or with the LSE.
template <bool GENERAL> __device__ __forceinline__ void consume_tasks(const VarlenShortParams &params, Spot stages, const Task (&tasks)[2], u32 warp) {
    const AttentionParams &p = params.common;
    u32 lane = threadIdx.x % 32, place = warp * VARLEN_SHORT_HIGH * 16;
    u32 q_lane = (lane % 16 * PITCH + lane / 16 * 8) * 2, k_lane = ((lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8) * 2;
    WarpRows<GENERAL> rows;
    meet();
#pragma unroll 1
    for (u32 turn = 0; tasks[turn].work < params.work; turn ^= 1, meet()) {
        const Task &task = tasks[turn];
        u32 beside = place >> task.narrow;
        i32 first = i32(place & (1u << task.narrow) - 1), row = task.row + first, q_len = task.q_len, start = task.key;
        if (row >= q_len || beside >= task.heads) {
            continue;
        }
        Spot q = stages + (turn * VARLEN_SHORT_STAGE + place * PITCH);
        if (task.first()) {
            rows.begin(q.address + q_lane);
        }
        u32 keys = stages.address + (turn * VARLEN_SHORT_STAGE + (VARLEN_SHORT_ROWS + (beside << task.narrow)) * PITCH) * 2;
        u32 k_at = keys + k_lane, v_at = keys + VARLEN_SHORT_KEYS * PITCH * 2 + q_lane;
        // What any of the rows sees, and what all do.
        ShortMask mask = mask_of(p, q_len, task.kv_len);
        KeyRange any = {0, task.kv_len}, all = any;
        if (GENERAL) {
            i32 last = row + VARLEN_SHORT_HIGH * 16 < q_len ? row + VARLEN_SHORT_HIGH * 16 - 1 : q_len - 1;
            any = {mask.first(row), mask.end(last)};
            all = {mask.first(last), mask.end(row)};
        }
        i32 stop = start + VARLEN_SHORT_KEYS < any.end ? start + VARLEN_SHORT_KEYS : any.end;
#pragma unroll 1
        for (i32 key = start; key < stop; key += VARLEN_SHORT_STEP, k_at += VARLEN_SHORT_STEP * PITCH * 2, v_at += VARLEN_SHORT_STEP * PITCH * 2) {
            if (GENERAL && key + VARLEN_SHORT_STEP <= any.first) {
                continue;
            }
            auto seen = [&](i32 place) { return GENERAL ? KeyRange{mask.first(row + place) - key, mask.end(row + place) - key} : KeyRange{0, all.end - key}; };
            rows.add_keys(p.scale, key >= all.first && key + VARLEN_SHORT_STEP <= all.end, q.address + q_lane, k_at, v_at, seen);
        }
        if (task.last()) {
            rows.finish(p, task, beside, first, q);
        }
    }
}

template <bool GENERAL> __device__ __forceinline__ void attend_varlen_short(const VarlenShortParams &params, element *shared) {
    __shared__ Task tasks[2];
    Spot stages = {shared, shared_address(shared)};
    // Blocks of the next launch may take the places of those that end here, and wait there as this one does.
    grid_launch_next();
    grid_wait();
    // Of one lane for all, so that the compiler knows that no warp takes both branches.
    u32 warp = shuffle_from(threadIdx.x / 32, 0);
    if (warp == VARLEN_SHORT_WARPS) {
        produce_tasks(params, stages, tasks);
    } else {
        consume_tasks<GENERAL>(params, stages, tasks, warp);
    }
}
