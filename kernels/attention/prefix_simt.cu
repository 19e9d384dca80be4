// Attention over a prefix in factors on the ordinary cores: every size and type. See src/ops/prefix_attention.rs.
//
// A block takes ROWS rows of a head of keys and one split of the keys, KEYS at a time. A tile of K, then of V, is rebuilt in
// shared memory from RANKS columns of the factors at a time. Eight threads share a row.

#include "attention/prefix_rows.cuh"
#include "attention/simt_tile.cuh"

constexpr int RANKS = 32;
constexpr int RANK_PITCH = RANKS + 1;

static_assert((ROWS * PITCH + KEYS * PITCH + ROWS * SCORES + (KEYS + HEAD_DIM_MAX) * RANK_PITCH) * sizeof(f32) == SHARED_BYTES, "what the host sets aside");

// `rows` rows of a factor from row `first`, columns `rank` to `rank` + RANKS; zeros from row `end` and past the last column.
__device__ __forceinline__ void load_factor(const FactorParams &factor, u64 first, u64 end, int rows, u32 rank, f32 *tile) {
    for (int at = threadIdx.x; at < rows * RANKS; at += THREADS) {
        int row = at % rows, column = at / rows;
        bool inside = first + row < end && rank + column < factor.rank;
        tile[row * RANK_PITCH + column] = inside ? element_of(column_of(factor, 0, rank + column), first + row) : 0.0f;
    }
}

// KEYS rows of K or V from key `first` for one head; zeros from `end` on and past the head. Ends in step.
__device__ __forceinline__ void rebuild(const FactorParams &coefficients, const FactorParams &basis, u64 head, i32 head_dim, u64 first, u64 end, f32 *tile,
                                        f32 *left, f32 *right) {
    for (u32 rank = 0; rank < basis.rank; rank += RANKS) {
        load_factor(coefficients, first, end, KEYS, rank, left);
        load_factor(basis, head * head_dim, (head + 1) * head_dim, HEAD_DIM_MAX, rank, right);
        __syncthreads();
        for (int at = threadIdx.x; at < KEYS * HEAD_DIM_MAX; at += THREADS) {
            int row = at / HEAD_DIM_MAX, column = at % HEAD_DIM_MAX;
            f32 sum = rank ? tile[row * PITCH + column] : 0.0f;
#pragma unroll 8
            for (int j = 0; j < RANKS; j++) {
                sum += left[row * RANK_PITCH + j] * right[column * RANK_PITCH + j];
            }
            tile[row * PITCH + column] = sum;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) prefix_attention_simt(const PrefixParams p) {
    extern __shared__ f32 shared[];
    f32 *q_tile = shared, *kv_tile = q_tile + ROWS * PITCH, *scores = kv_tile + KEYS * PITCH;
    f32 *left = scores + ROWS * SCORES, *right = left + KEYS * RANK_PITCH;
    grid_wait();

    u32 row = threadIdx.x / SHARE, part = threadIdx.x % SHARE;
    for (u64 work = blockIdx.x; work < u64(p.tiles) * p.kv_heads * p.splits; work += gridDim.x) {
        u64 first_row = work % p.tiles * ROWS, kv_head = work / p.tiles % p.kv_heads, split = work / p.tiles / p.kv_heads;
        u64 begin = split * p.split_keys, end = begin + p.split_keys < p.tokens ? begin + p.split_keys : p.tokens;

        for (int at = threadIdx.x; at < ROWS * HEAD_DIM_MAX; at += THREADS) {
            u64 line = first_row + at / HEAD_DIM_MAX;
            int column = at % HEAD_DIM_MAX;
            bool inside = line < head_rows(p) && column < p.head_dim;
            u64 from = inside ? prefix_row(p, kv_head, line).offset(p.q_batch, p.q_token, p.q_head) + column : 0;
            q_tile[at / HEAD_DIM_MAX * PITCH + column] = inside ? widen(p.q[from]) : 0.0f;
        }

        OnlineRow online;
        for (u64 first = begin; first < end; first += KEYS) {
            rebuild(p.key_coefficients, p.key_basis, kv_head, p.head_dim, first, end, kv_tile, left, right);
            for (int c = part; c < KEYS; c += SHARE) {
                f32 dot = 0.0f;
                for (int e = 0; e < p.head_dim; e++) {
                    dot += q_tile[row * PITCH + e] * kv_tile[c * PITCH + e];
                }
                scores[row * SCORES + c] = first + c < end ? dot * p.scale : -infinity();
            }
            // The tile of keys has been read.
            __syncthreads();
            rebuild(p.value_coefficients, p.value_basis, kv_head, p.head_dim, first, end, kv_tile, left, right);
            f32 above = online.above(scores + row * SCORES);
            if (above != -infinity()) {
                online.add(above, scores + row * SCORES, kv_tile, part);
            }
            // The next tile overwrites this one and its scores.
            __syncthreads();
        }
        if (first_row + row >= head_rows(p)) {
            continue;
        }
        u64 number = row_number(p, prefix_row(p, kv_head, first_row + row));
        f32 share = online.share();
        f32 *to = part_values(p, split, number);
#pragma unroll
        for (int n = 0; n < HELD; n++) {
            int column = part + n * SHARE;
            if (column < p.head_dim) {
                to[column] = online.out[n] * share;
            }
        }
        if (part == 0) {
            part_lse(p, split, number) = online.lse();
        }
    }
}
