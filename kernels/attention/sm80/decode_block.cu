// O = softmax(scale·Q·Kᵀ + mask)·V of one query a sequence over a short cache: a block has all keys of a sequence and a head of keys, so that nothing is
// joined between blocks.
//
// K and V come from device memory to registers, 16 bytes a thread: of K the second operand of a product as it is, with elements of a head in an order of
// their own, of V after 8 × 8 elements are transposed between lanes. Each warp has 16 keys at a time, and its own maxima and sums. Where the host sees what
// under way writes of the cache (`early`), the first keys come before the wait: all but the `late` last of each sequence, which may only now be written.
//
// The host defines HEAD_DIM (a multiple of 32), and BLOCK_AHEAD: how many times 16 keys of a warp are under way together.

#include "ptx/grid.cuh"
#include "ptx/mma.cuh"
#include "attention/partial.cuh"
#include "attention/decode_block_params.cuh"

constexpr u32 BLOCK_WARPS = 8, BLOCK_THREADS = BLOCK_WARPS * 32, BLOCK_ROWS = 8, BLOCK_KEYS = 16;
// Sixteen bytes of a row that a lane has: each of four lanes has every fourth eight elements.
constexpr u32 PARTS = HEAD_DIM / 32;
constexpr u32 STEP_KEYS = BLOCK_WARPS * BLOCK_KEYS, PITCH = HEAD_DIM + 4;

// 16 keys or values of a warp: rows g and g + 8 of lane 4g + t.
struct Rows {
    uint4 part[2][PARTS];
};

// Words of a line by number.
__device__ __forceinline__ u32 word_of(const uint4 &line, u32 number) { return number == 0 ? line.x : number == 1 ? line.y : number == 2 ? line.z : line.w; }

struct Keys {
    const AttentionParams &p;
    const Sequence &s;
    u32 head, begin, end;   // of keys and values; the keys that the query sees

    // The first of a warp's 16 keys.
    __device__ __forceinline__ u32 first(u32 step) const { return begin + step * STEP_KEYS + threadIdx.x / 32 * BLOCK_KEYS; }

    // K and V of a step, from key `from` on and before `to`; others stay as they are.
    __device__ __forceinline__ void load(u32 step, u32 from, u32 to, Rows &k, Rows &v) const {
        u32 high = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 key = first(step) + half * 8 + high;
            if (key < from || key >= to) {
                continue;
            }
            u64 row = 0, token = key;
            if (p.form == PAGED) {
                u32 page = key / u32(p.page);
                row = u64(s.pages[page]);
                token = key - page * u32(p.page);
            }
            const element *at_k = s.k + row * p.k_batch + token * p.k_token + head * p.k_head + quad * 8;
            const element *at_v = s.v + row * p.v_batch + token * p.v_token + head * p.v_head + quad * 8;
#pragma unroll
            for (u32 part = 0; part < PARTS; part++) {
                k.part[half][part] = *(const uint4 *)(at_k + part * 32);
                v.part[half][part] = *(const uint4 *)(at_v + part * 32);
            }
        }
    }
};

// Rows of Q, with maxima, sums and O of a warp. Lane 4g + t has row g: of scores keys 2t and 2t + 1, of O two columns of each eight.
struct Attended {
    uint4 q[PARTS];
    f32 most = -infinity(), total = 0.0f, o[HEAD_DIM / 8][4] = {};

    __device__ __forceinline__ void add(const Keys &keys, u32 step, f32 factor, const Rows &k, const Rows &v) {
        u32 quad = threadIdx.x % 4;
        f32 score[2][4] = {};
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
#pragma unroll
            for (u32 part = 0; part < PARTS; part++) {
#pragma unroll
                for (u32 w = 0; w < 4; w += 2) {
                    u32 rows[4] = {word_of(q[part], w), 0, word_of(q[part], w + 1), 0};
                    u32 of_keys[2] = {word_of(k.part[half][part], w), word_of(k.part[half][part], w + 1)};
                    mma_m16n8k16<element>(score[half], rows, of_keys);
                }
            }
        }
        f32 above = most;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
#pragma unroll
            for (u32 e = 0; e < 2; e++) {
                bool seen = keys.first(step) + half * 8 + quad * 2 + e < keys.end;
                score[half][e] = seen ? score[half][e] * factor : -infinity();
                above = max_or_nan(above, score[half][e]);
            }
        }
        above = max_or_nan(above, shuffle_xor(above, 1));
        above = max_or_nan(above, shuffle_xor(above, 2));
        // Of a row that has seen nothing yet.
        f32 base = above == -infinity() ? 0.0f : above, rescale = exp2_fast(most - base), sum = 0.0f;
        most = above;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
#pragma unroll
            for (u32 e = 0; e < 2; e++) {
                score[half][e] = exp2_fast(score[half][e] - base);
                sum += score[half][e];
            }
        }
        total = total * rescale + sum;
        u32 weights[4] = {narrow2<element>(score[0][0], score[0][1]), 0, narrow2<element>(score[1][0], score[1][1]), 0};
#pragma unroll
        for (u32 part = 0; part < PARTS; part++) {
#pragma unroll
            for (u32 w = 0; w < 4; w++) {
                f32 (&own)[4] = o[part * 4 + w];
                own[0] *= rescale;
                own[1] *= rescale;
                u32 values[2] = {transpose_8x8(word_of(v.part[0][part], w)), transpose_8x8(word_of(v.part[1][part], w))};
                mma_m16n8k16<element>(own, weights, values);
            }
        }
    }

    // Leaves a row's part where all warps' are joined: O, maximum and sum. All lanes take part, also those of rows that there are not.
    __device__ __forceinline__ void leave(bool there, f32 *to) {
        u32 quad = threadIdx.x % 4;
        total += shuffle_xor(total, 1);
        total += shuffle_xor(total, 2);
        if (!there) {
            return;
        }
#pragma unroll
        for (u32 part = 0; part < PARTS; part++) {
#pragma unroll
            for (u32 w = 0; w < 4; w++) {
                *(float2 *)(to + part * 32 + quad * 8 + w * 2) = {o[part * 4 + w][0], o[part * 4 + w][1]};
            }
        }
        if (quad == 0) {
            *(float2 *)(to + HEAD_DIM) = {most, total};
        }
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm80_decode_block(const DecodeBlockParams params) {
    extern __shared__ __align__(16) f32 left[];
    const AttentionParams &p = params.common;
    u32 high = threadIdx.x % 32 / 4, quad = threadIdx.x % 4, warp = threadIdx.x / 32;
    u32 kv_heads = u32(p.kv_heads), batch = blockIdx.x / kv_heads, group = blockIdx.x - batch * kv_heads, rows = p.pack;
    grid_launch_next();
    if (!params.early) {
        grid_wait();
    }
    Sequence s = sequence_of(p, batch);
    i64 hidden = p.window < 0 || s.kv_len - 1 < p.window ? 0 : s.kv_len - 1 - p.window;
    Keys keys = {p, s, group, u32(hidden), u32(s.kv_len)};
    u32 known = u32(s.kv_len) > params.late ? u32(s.kv_len) - params.late : 0, soon = known < keys.end ? known : keys.end;
    Rows k[BLOCK_AHEAD] = {}, v[BLOCK_AHEAD] = {};
    if (params.early) {
#pragma unroll
        for (u32 ahead = 0; ahead < BLOCK_AHEAD; ahead++) {
            keys.load(ahead, keys.begin, soon, k[ahead], v[ahead]);
        }
        grid_wait();
    }
    Attended attended;
    const element *q = s.q + u64(group * rows + high) * p.q_head + quad * 8;
#pragma unroll
    for (u32 part = 0; part < PARTS; part++) {
        attended.q[part] = high < rows ? *(const uint4 *)(q + part * 32) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (u32 ahead = 0; ahead < BLOCK_AHEAD; ahead++) {
        keys.load(ahead, params.early ? soon : keys.begin, keys.end, k[ahead], v[ahead]);
    }
    // In units of the exponential's base, 2.
    f32 factor = p.scale * 1.4426950409f;
#pragma unroll 1
    for (u32 step = 0; keys.begin + step * STEP_KEYS < keys.end; step += BLOCK_AHEAD) {
#pragma unroll
        for (u32 ahead = 0; ahead < BLOCK_AHEAD; ahead++) {
            if (keys.first(step + ahead) < keys.end) {
                attended.add(keys, step + ahead, factor, k[ahead], v[ahead]);
            }
            // What lies past the last key has no weight, and must be a number.
            v[ahead] = {};
            keys.load(step + ahead + BLOCK_AHEAD, keys.begin, keys.end, k[ahead], v[ahead]);
        }
    }
    attended.leave(high < rows, left + (warp * BLOCK_ROWS + high) * PITCH);
    __syncthreads();
    for (u32 place = threadIdx.x; place < rows * (HEAD_DIM / 4); place += BLOCK_THREADS) {
        u32 row = place / (HEAD_DIM / 4), column = place % (HEAD_DIM / 4) * 4;
        Partial sum = no_keys();
#pragma unroll
        for (u32 of = 0; of < BLOCK_WARPS; of++) {
            const f32 *from = left + (of * BLOCK_ROWS + row) * PITCH;
            float2 sums = *(const float2 *)(from + HEAD_DIM);
            sum.join({sums.x, sums.y, *(const float4 *)(from + column)});
        }
        finish(p, s, group * rows + row, 0, i32(column), sum);
    }
}
