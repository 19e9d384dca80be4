// Many short sequences end to end: blocks stay, and what the next step reads is on its way while this one multiplies.
//
// A step is a tile of SHORT_ROWS queries of a head and at most SHORT_KEYS of its keys: all of them for most sentences. Its copies are
// all under way together, where a walk in steps of 64 keys waits for K and V in turn; that wait is most of the time of a sequence
// of 128. What a row adds up, and in which order, depends on its own sequence alone, and is as in `sm80.cuh`.
#pragma once

#include "attention/columns.cuh"
#include "attention/short_params.cuh"
#include "attention/sm80.cuh"
#include "ptx/grid.cuh"

constexpr int SHORT_THREADS = SHORT_WARPS * 32;
constexpr int SHORT_ROWS = SHORT_WARPS * 16;
constexpr int SHORT_KEYS = 128;
static_assert(SHORT_ROWS == 128, "a stage holds one head's rows, or those of two or four");
constexpr int SHORT_STAGE = (SHORT_ROWS + 2 * SHORT_KEYS) * PITCH;   // elements: Q, K, V
constexpr int SHORT_STEP_ROWS = SHORT_THREADS / SIDE;                // rows that the threads copy at a time

static_assert(CHUNKS == SIDE && TILES % 4 == 0, "a thread copies 16 bytes of a row, and writes as many");
static_assert(2 * SHORT_STAGE * 2 == SHORT_SHARED_BYTES, "what the host sets aside");

// Where a sequence starts and ends among all queries and all keys.
struct Bounds {
    i32 q_first, q_end, kv_first, kv_end;

    __device__ __forceinline__ i32 q_len() const { return q_end - q_first; }
    __device__ __forceinline__ i32 kv_len() const { return kv_end - kv_first; }
};

// A step: rows of a tile from `row` on, and of keys those from `key` on, of one head; of several, where sequences are short.
struct Task {
    u32 work;   // the number of the tile; past the last there is nothing to do
    u32 head, heads_end;   // heads of this step from `head` on, and one past those of the tile
    u32 narrow;            // a head has 2^narrow rows of Q, K and V in a stage
    i32 row;
    i32 start, key, end;   // the tile's keys, and the step's first
    Bounds bounds;

    __device__ __forceinline__ u32 width() const { return 1u << narrow; }
};

// Of the step that is worked on, the one that is copied, and the one that a thread works out meanwhile.
constexpr u32 TASKS = 3;

// Tiles: `band` heads of SHORT_ROWS queries each.
__device__ __forceinline__ u32 groups_of(const AttentionParams &p) { return (u32(p.heads) + p.band - 1) / p.band; }

// The first step of the first tile from `work` on that has rows.
__device__ __forceinline__ Task first_task(const ShortParams &params, u32 work) {
    const AttentionParams &p = params.common;
    Task task = {work, 0, 0, 0, 0, 0, 0, 0, {}};
    for (; task.work < params.work; task.work += gridDim.x) {
        // In the order of sequences, their rows, their heads, which lie side by side in memory.
        u32 groups = groups_of(p), group = task.work % groups, line = task.work / groups;
        const i32 *q = p.index + line / p.tiles, *kv = q + p.batch + 1;
        task.row = i32(line % p.tiles) * SHORT_ROWS;
        task.bounds = {q[0], q[1], kv[0], kv[1]};
        i32 q_len = task.bounds.q_len(), kv_len = task.bounds.kv_len(), longer = q_len > kv_len ? q_len : kv_len;
        if (task.row < q_len) {
            task.head = group * p.band;
            task.heads_end = task.head + p.band < u32(p.heads) ? task.head + p.band : u32(p.heads);
            task.narrow = longer <= 32 && SHORT_STEP <= 32 ? 5 : longer <= 64 ? 6 : 7;
            ShortMask mask = mask_of(p, q_len, kv_len);
            task.start = task.key = mask.first(task.row) / SHORT_KEYS * SHORT_KEYS;
            task.end = mask.end((task.row + SHORT_ROWS < q_len ? task.row + SHORT_ROWS : q_len) - 1);
            break;
        }
    }
    return task;
}

__device__ __forceinline__ Task task_after(const ShortParams &params, Task task) {
    if (task.work >= params.work) {
        return task;
    }
    task.key += SHORT_KEYS;
    if (task.key < task.end) {
        return task;
    }
    task.key = task.start;
    task.head += SHORT_ROWS >> task.narrow;
    return task.head < task.heads_end ? task : first_task(params, task.work + gridDim.x);
}

// The rows of an operand: of each head `count` from `from` on, and zeros up to row `fill`. `share` heads have the same.
__device__ __forceinline__ void copy_rows(const AttentionParams &p, const Task &task, const element *from, u64 token_stride, u64 head_stride, u32 share,
                                          i32 count, i32 fill, Spot tile) {
    i32 column = i32(threadIdx.x) % SIDE * 8, there = p.head_dim - column;
    u32 bytes = there <= 0 ? 0 : there >= 8 ? 16 : 2 * there;
#pragma unroll
    for (int i = 0; i < SHORT_ROWS; i += SHORT_STEP_ROWS) {
        u32 place = i + threadIdx.x / SIDE, head = task.head + (place >> task.narrow);
        i32 row = i32(place & task.width() - 1);
        if (row < fill && head < task.heads_end) {
            head = share == 1 ? head : head / share;
            bool inside = row < count && bytes != 0;
            const element *source = from + u64(row) * token_stride + head * head_stride + column;
            cp_async_16((tile + (place * PITCH + column)).address, inside ? source : from, inside ? bytes : 0);
        }
    }
}

__device__ __forceinline__ void load_task(const AttentionParams &p, const Task &task, Spot stage) {
    const Bounds &bounds = task.bounds;
    if (task.key == task.start) {
        i32 rows = bounds.q_len() - task.row;
        rows = rows < SHORT_ROWS ? rows : SHORT_ROWS;
        // What lies past the last row stays as it is: no row depends on another.
        copy_rows(p, task, p.q + u64(bounds.q_first + task.row) * p.q_token, p.q_token, p.q_head, 1, rows, rows, stage);
    }
    i32 count = task.end - task.key < SHORT_KEYS ? task.end - task.key : SHORT_KEYS, fill = (count + SHORT_STEP - 1) / SHORT_STEP * SHORT_STEP;
    u64 from = u64(bounds.kv_first + task.key);
    copy_rows(p, task, p.k + from * p.k_token, p.k_token, p.k_head, p.pack, count, fill, stage + SHORT_ROWS * PITCH);
    copy_rows(p, task, p.v + from * p.v_token, p.v_token, p.v_head, p.pack, count, fill, stage + (SHORT_ROWS + SHORT_KEYS) * PITCH);
}

// A warp's 16 rows: Q, and what is summed over their keys.
struct WarpRows {
    u32 q[HEAD_DIM / 16][4];
    f32 most[1][2], total[1][2], o[1][TILES][4];

    __device__ __forceinline__ void begin(u32 q_at) {
        most[0][0] = most[0][1] = -infinity();
        total[0][0] = total[0][1] = 0.0f;
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            o[0][n][0] = o[0][n][1] = o[0][n][2] = o[0][n][3] = 0.0f;
        }
#pragma unroll
        for (int e = 0; e < HEAD_DIM / 16; e++) {
            ldmatrix_x4(q[e], q_at + e * 32);
        }
    }

    // 8·N keys from `key`, of the rows from `row` on.
    template <int N> __device__ __forceinline__ void add_keys(const AttentionParams &p, const Bounds &bounds, i32 row, i32 key, u32 k_at, u32 v_at) {
        f32 s[1][N][4];
#pragma unroll
        for (int n = 0; n < N; n++) {
            s[0][n][0] = s[0][n][1] = s[0][n][2] = s[0][n][3] = 0.0f;
        }
#pragma unroll
        for (int e = 0; e < HEAD_DIM / 16; e++) {
#pragma unroll
            for (int n = 0; n < N; n += 2) {
                u32 k[4];
                ldmatrix_x4(k, k_at + (n * 8 * PITCH + e * 16) * 2);
                u32 low[2] = {k[0], k[1]}, high[2] = {k[2], k[3]};
                mma_m16n8k16<element>(s[0][n], q[e], low);
                mma_m16n8k16<element>(s[0][n + 1], q[e], high);
            }
        }
        i32 q_len = bounds.q_len(), last = row + 15 < q_len ? row + 15 : q_len - 1;
        ShortMask mask = mask_of(p, q_len, bounds.kv_len());
        if (key < mask.first(last) || key + N * 8 > mask.end(row)) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                i32 query = row + r * 8 + i32(threadIdx.x % 32 / 4), low = mask.first(query) - key, high = mask.end(query) - key;
#pragma unroll
                for (int n = 0; n < N; n++) {
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        i32 place = n * 8 + i32(threadIdx.x % 4 * 2) + c;
                        s[0][n][2 * r + c] = place >= low && place < high ? s[0][n][2 * r + c] : -infinity();
                    }
                }
            }
        }
        soften(p.scale * 1.4426950409f, s, most, total, o);
        weigh(v_at, s, o);
    }

    // Writes those of the warp's rows that the sequence has.
    __device__ __forceinline__ void finish(const AttentionParams &p, const Bounds &bounds, u32 head, i32 row) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            f32 sum = total[0][r];
            sum += shuffle_xor(sum, 1);
            sum += shuffle_xor(sum, 2);
            i32 query = row + r * 8 + i32(threadIdx.x % 32 / 4), place = bounds.q_first + query;
            bool there = query < bounds.q_len();
            f32 share = sum > 0.0f ? 1.0f / sum : 0.0f;
            element *to = p.o + u64(place) * p.o_token + head * p.o_head;
#pragma unroll
            for (int n = 0; n < TILES; n += 4) {
                u32 own[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    own[i] = narrow2<element>(o[0][n + i][2 * r] * share, o[0][n + i][2 * r + 1] * share);
                }
                write_eight(to, gather_eight(own), n * 8 + i32(threadIdx.x % 4 * 8), there ? p.head_dim : 0, (u64(to) & 15) == 0);
            }
            if (p.lse && there && threadIdx.x % 4 == 0) {
                f32 natural = 0.69314718056f * (most[0][r] + log2f(sum));
                p.lse[u64(place) + head * p.lse_head] = sum > 0.0f ? natural : -infinity();
            }
        }
    }
};

__device__ __forceinline__ void attend_short(const ShortParams &params, element *shared) {
    const AttentionParams &p = params.common;
    __shared__ Task tasks[TASKS];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, now = 0, stage = 0;
    Spot stages = {shared, shared_address(shared)};
    // Blocks of the next launch may take the places of those that end here, and wait there as this one does.
    grid_launch_next();
    grid_wait();
    // The warp that has no rows where sentences are short.
    bool plans = threadIdx.x == SHORT_THREADS - 32;
    if (plans) {
        tasks[0] = first_task(params, blockIdx.x);
        tasks[1] = task_after(params, tasks[0]);
    }
    __syncthreads();
    if (tasks[0].work < params.work) {
        load_task(p, tasks[0], stages);
    }
    cp_async_commit();

    WarpRows rows;
#pragma unroll 1
    for (; tasks[now].work < params.work; now = now + 1 < TASKS ? now + 1 : 0, stage ^= 1) {
        // This step has come, and everyone is done with the one before: its place is free for the next.
        cp_async_wait<0>();
        __syncthreads();
        u32 next = now + 1 < TASKS ? now + 1 : 0;
        if (tasks[next].work < params.work) {
            load_task(p, tasks[next], stages + (stage ^ 1) * SHORT_STAGE);
        }
        cp_async_commit();
        if (plans) {
            tasks[next + 1 < TASKS ? next + 1 : 0] = task_after(params, tasks[next]);
        }
        __syncwarp();

        const Task &task = tasks[now];
        u32 place = warp * 16 >> task.narrow, head = task.head + place;
        i32 row = task.row + i32(warp * 16 & task.width() - 1), q_len = task.bounds.q_len();
        if (row >= q_len || head >= task.heads_end) {
            continue;
        }
        u32 at = stages.address + stage * SHORT_STAGE * 2;
        if (task.key == task.start) {
            rows.begin(at + ((warp * 16 + lane % 16) * PITCH + lane / 16 * 8) * 2);
        }
        at += place * task.width() * PITCH * 2;
        u32 k_at = at + ((SHORT_ROWS + lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8) * 2;
        u32 v_at = at + ((SHORT_ROWS + SHORT_KEYS + lane % 16) * PITCH + lane / 16 * 8) * 2;
        i32 last = row + 15 < q_len ? row + 15 : q_len - 1;
        ShortMask mask = mask_of(p, q_len, task.bounds.kv_len());
        i32 seen_first = mask.first(row), seen_end = mask.end(last);
        i32 stop = task.key + SHORT_KEYS < seen_end ? task.key + SHORT_KEYS : seen_end;
#pragma unroll 1
        for (i32 key = task.key; key < stop; key += SHORT_STEP, k_at += SHORT_STEP * PITCH * 2, v_at += SHORT_STEP * PITCH * 2) {
            if (key + SHORT_STEP > seen_first) {
                rows.add_keys<SHORT_STEP / 8>(p, task.bounds, row, key, k_at, v_at);
            }
        }
        if (task.key + SHORT_KEYS >= task.end) {
            rows.finish(p, task.bounds, head, row);
        }
    }
}
