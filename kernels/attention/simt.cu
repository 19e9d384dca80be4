// O = softmax(scale·Q·Kᵀ + mask)·V on the ordinary cores: every form, size and stride, f32 as well.
//
// A block takes ROWS rows of the score matrix and walks over the keys that any of them sees, KEYS at a time, with a
// running maximum and sum. A row is a query and a head: the heads that share keys are rows of one tile (`pack` of them),
// so that K and V are read once for all. Eight threads share a row; they keep its maximum and sum each for itself.

#include "tile/attention_mask.cuh"
#include "attention/ragged_pages.cuh"
#include "attention/simt_tile.cuh"

static_assert((ROWS * PITCH + KEYS * PITCH + ROWS * SCORES) * sizeof(f32) == SHARED_BYTES, "what the host sets aside");

// KEYS rows of K or V, from key `first`, widened; zeros past `end` and past the head.
__device__ __forceinline__ void load_keys(const AttentionParams &p, const Sequence &s, const element *base, u64 page_stride, u64 token_stride,
                                          i64 first, i64 end, f32 *tile) {
    for (int at = threadIdx.x; at < KEYS * HEAD_DIM_MAX; at += THREADS) {
        int row = at / HEAD_DIM_MAX, column = at % HEAD_DIM_MAX;
        i64 key = first + row;
        bool inside = key < end && column < p.head_dim;
        tile[row * PITCH + column] = inside ? widen(base[any_token_offset(p, s, key, page_stride, token_stride) + column]) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_simt(const AttentionParams p) {
    extern __shared__ f32 shared[];
    f32 *q_tile = shared, *kv_tile = q_tile + ROWS * PITCH, *scores = kv_tile + KEYS * PITCH;

    u32 row = threadIdx.x / SHARE, part = threadIdx.x % SHARE;
    u64 groups = p.heads / p.pack, tiles = (p.q_len * p.pack + ROWS - 1) / ROWS;
    for (u64 work = blockIdx.x; work < all_sequences(p) * groups * tiles; work += gridDim.x) {
        u64 batch = work / tiles / groups, group = work / tiles % groups;
        i64 first_row = i64(work % tiles * ROWS);
        Sequence s = any_sequence(p, batch);
        i64 rows = s.q_len * p.pack;
        if (first_row >= rows) {
            continue;
        }
        Mask mask = {s.kv_len - s.q_len, s.kv_len, p.window, p.causal != 0};
        u64 kv_head = group * p.pack / (p.heads / p.kv_heads);
        const element *k = s.k + kv_head * p.k_head, *v = s.v + kv_head * p.v_head;

        for (int at = threadIdx.x; at < ROWS * HEAD_DIM_MAX; at += THREADS) {
            i64 line = first_row + at / HEAD_DIM_MAX;
            int column = at % HEAD_DIM_MAX;
            bool inside = line < rows && column < p.head_dim;
            u64 from = u64(line / p.pack) * p.q_token + (group * p.pack + line % p.pack) * p.q_head + column;
            q_tile[at / HEAD_DIM_MAX * PITCH + column] = inside ? widen(s.q[from]) : 0.0f;
        }

        // This thread's query and head, and the keys that the tile sees.
        i64 query = (first_row + row) / p.pack;
        u64 head = group * p.pack + (first_row + row) % p.pack;
        i64 last_row = first_row + ROWS < rows ? first_row + ROWS - 1 : rows - 1;
        i64 seen_first = first_of_steps(mask.first(first_row / p.pack), i64(KEYS)), seen_end = mask.end(last_row / p.pack);

        OnlineRow online;

        // One run of keys, or one run a listed block.
        BlockRow listed = {nullptr, nullptr, nullptr, 0, 1};
        if (!RAGGED && p.form == BLOCKS) {
            listed = block_row(p, batch, group * p.pack, u64(first_row / p.pack) / p.block);
        }
        for (i32 place = listed.begin; place < listed.end; place++) {
            i64 begin = seen_first, end = seen_end;
            i32 kind = -1;
            if (!RAGGED && p.form == BLOCKS) {
                i64 block = i64(listed.columns[place]) * p.block;
                kind = listed.kinds[place];
                begin = begin > block ? begin : block;
                end = end < block + p.block ? end : block + p.block;
            }
            for (i64 first = begin; first < end; first += KEYS) {
                // Everyone is done with the tile before.
                __syncthreads();
                load_keys(p, s, k, p.k_batch, p.k_token, first, end, kv_tile);
                __syncthreads();
#pragma unroll
                for (int n = 0; n < KEYS / SHARE; n++) {
                    int c = part + n * SHARE;
                    i64 key = first + c;
                    f32 dot = 0.0f;
                    for (int e = 0; e < HEAD_DIM_MAX; e++) {
                        dot += q_tile[row * PITCH + e] * kv_tile[c * PITCH + e];
                    }
                    bool seen = key < end && mask.sees(query, key);
                    if (kind == -2) {
                        seen = seen && key <= query + mask.offset;
                    } else if (kind >= 0) {
                        u64 i = u64(query) % p.block, j = u64(key) % p.block;
                        u32 word = listed.bits[(u64(kind) * p.block + i) * (p.block / 32) + j / 32];
                        seen = seen && (word >> (j % 32) & 1);
                    }
                    scores[row * SCORES + c] = seen ? dot * p.scale : -infinity();
                }
                __syncthreads();
                load_keys(p, s, v, p.v_batch, p.v_token, first, end, kv_tile);
                f32 above = online.above(scores + row * SCORES);
                // V is in place, and every score has been read.
                __syncthreads();
                if (above == -infinity()) {
                    continue;   // the same for all threads of the row; only they use its scores
                }
                online.add(above, scores + row * SCORES, kv_tile, part);
            }
        }
        // The next piece of work overwrites the tiles.
        __syncthreads();
        if (first_row + row >= rows) {
            continue;
        }
        f32 share = online.share();
        element *o = s.o + u64(query) * p.o_token + head * p.o_head;
#pragma unroll
        for (int n = 0; n < HELD; n++) {
            int column = part + n * SHARE;
            if (column < p.head_dim) {
                o[column] = narrow<element>(online.out[n] * share);
            }
        }
        if (p.lse && part == 0) {
            // Varlen and ragged: [heads, total_q]; else [batch, heads, q_len].
            p.lse[s.lse + head * p.lse_head + u64(query)] = online.lse();
        }
    }
}
