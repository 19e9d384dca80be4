// Attention over a prefix in factors on the tensor cores of Ampere and later. See src/ops/prefix_attention.rs.
//
// A block takes 16 rows a warp of a head of keys and one split of the keys, KEYS at a time. The head's part of both bases is decoded
// once and stays in shared memory; the coefficients of a tile of keys are decoded as it comes, K and V rebuilt from both by the
// tensor cores. What follows is the step of attention/sm80/tile.cuh, Q in registers.

#include "attention/sm80/prefix_factors.cuh"

constexpr int COLUMNS = HEAD_DIM < 64 ? HEAD_DIM : 64;   // of a piece of the rebuilding
constexpr int PIECES = KEYS / 16 * (HEAD_DIM / COLUMNS);

// Scores of a warp's 16 rows.
__device__ __forceinline__ void score_held(const u32 (&q)[HEAD_DIM / 16][4], u32 k_at, f32 (&s)[1][KEYS / 8][4]) {
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
        s[0][n][0] = s[0][n][1] = s[0][n][2] = s[0][n][3] = 0.0f;
    }
#pragma unroll
    for (int e = 0; e < HEAD_DIM; e += 16) {
#pragma unroll
        for (int n = 0; n < KEYS; n += 16) {
            u32 k[4];
            ldmatrix_x4(k, k_at + (n * PITCH + e) * 2);
            u32 low[2] = {k[0], k[1]}, high[2] = {k[2], k[3]};
            mma_m16n8k16<element>(s[0][n / 8], q[e / 16], low);
            mma_m16n8k16<element>(s[0][n / 8 + 1], q[e / 16], high);
        }
    }
}

// The block's rows of Q, by way of `tile`, which is free again afterwards. A negative scale turns Q over, so that the factor of the
// softmax is positive; a scale of 0 clears it.
template <int BLOCK_WARPS>
__device__ __forceinline__ void load_rows(const PrefixParams &p, u64 kv_head, u64 first_row, Spot tile, u32 (&q)[HEAD_DIM / 16][4]) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    bool whole = ((p.q_batch | p.q_token | p.q_head) % 8 | u64(p.q) % 16) == 0;
    for (u32 at = threadIdx.x; at < BLOCK_WARPS * 16 * CHUNKS; at += BLOCK_WARPS * 32) {
        u32 row = at / CHUNKS, column = at % CHUNKS * 8;
        bool inside = first_row + row < head_rows(p);
        i32 count = inside ? p.head_dim - i32(column) : 0;
        const element *from = count > 0 ? p.q + prefix_row(p, kv_head, first_row + row).offset(p.q_batch, p.q_token, p.q_head) + column : p.q;
        Spot place = tile + (row * PITCH + column);
        if (whole) {
            load_chunk<true>(place, from, count);
        } else {
            load_chunk<false>(place, from, count);
        }
    }
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    u32 q_at = (tile + (warp * 16 + lane % 16) * PITCH + lane / 16 * 8).address, flip = p.scale < 0.0f ? 0x80008000 : 0;
#pragma unroll
    for (int e = 0; e < HEAD_DIM; e += 16) {
        ldmatrix_x4(q[e / 16], q_at + e * 2);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            q[e / 16][i] = p.scale == 0.0f ? 0 : q[e / 16][i] ^ flip;
        }
    }
    __syncthreads();
}

template <int BLOCK_WARPS> __device__ __forceinline__ void attend_prefix(const PrefixParams &p, element *shared) {
    constexpr int BLOCK_THREADS = BLOCK_WARPS * 32;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 work = blockIdx.x;
    u64 first_row = work % p.tiles * (BLOCK_WARPS * 16), kv_head = work / p.tiles % p.kv_heads, split = work / p.tiles / p.kv_heads;
    i32 begin = i32(split * p.split_keys), end = i32(begin + p.split_keys < p.tokens ? begin + p.split_keys : p.tokens);
    f32 factor = p.scale == 0.0f ? 1.0f : fabsf(p.scale) * 1.4426950409f;

    Spot k_tile = {shared, shared_address(shared)}, v_tile = k_tile + KEYS * PITCH, index = v_tile + KEYS * PITCH;
    FactorTile key = open_factor<BLOCK_THREADS>(p.key_coefficients, index.start);
    index = index + index_elements(p.key_coefficients);
    FactorTile value = open_factor<BLOCK_THREADS>(p.value_coefficients, index.start);
    index = index + index_elements(p.value_coefficients);
    Spot key_left = index, value_left = key_left + KEYS * key.pitch;
    Spot key_right = value_left + KEYS * value.pitch, value_right = key_right + HEAD_DIM * key.pitch;

    u32 q[HEAD_DIM / 16][4];
    load_rows<BLOCK_WARPS>(p, kv_head, first_row, k_tile, q);
    // The bases' own tables lie where the coefficients will; both have the pitch of their coefficients.
    FactorTile key_basis = open_factor<BLOCK_THREADS>(p.key_basis, key_left.start);
    FactorTile value_basis = open_factor<BLOCK_THREADS>(p.value_basis, value_left.start);
    __syncthreads();
    u32 head = u32(kv_head) * u32(p.head_dim);
    load_factor<BLOCK_THREADS, HEAD_DIM>(p.key_basis, key_basis, head, p.head_dim, key_right);
    load_factor<BLOCK_THREADS, HEAD_DIM>(p.value_basis, value_basis, head, p.head_dim, value_right);
    cp_async_commit();
    __syncthreads();
    load_factor<BLOCK_THREADS, KEYS>(p.key_coefficients, key, begin, end - begin, key_left);
    load_factor<BLOCK_THREADS, KEYS>(p.value_coefficients, value, begin, end - begin, value_left);
    cp_async_commit();

    f32 most[1][2] = {{-infinity(), -infinity()}}, total[1][2] = {{0.0f, 0.0f}}, o[1][TILES][4];
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        o[0][n][0] = o[0][n][1] = o[0][n][2] = o[0][n][3] = 0.0f;
    }
    u32 k_at = (k_tile + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8).address;
    u32 v_at = (v_tile + lane % 16 * PITCH + lane / 16 * 8).address;

#pragma unroll 1
    for (i32 first = begin; first < end; first += KEYS) {
        // The coefficients are there, and everyone is done with K and V.
        cp_async_wait<0>();
        __syncthreads();
#pragma unroll 1
        for (u32 piece = warp; piece < 2 * PIECES; piece += BLOCK_WARPS) {
            bool of_value = piece >= PIECES;
            u32 row = piece % (KEYS / 16) * 16, column = piece % PIECES / (KEYS / 16) * COLUMNS;
            // Numbers chosen one by one: a choice of whole structs goes through local memory.
            u32 steps = of_value ? value.steps : key.steps, pitch = of_value ? value.pitch : key.pitch;
            u32 left_at = of_value ? value_left.address : key_left.address, right_at = of_value ? value_right.address : key_right.address;
            left_at += ((row + lane % 16) * pitch + lane / 16 * 8) * 2;
            right_at += ((column + lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8) * 2;
            rebuild<COLUMNS>(steps, pitch, left_at, right_at, k_tile.start + ((of_value ? KEYS : 0) + row) * PITCH + column);
        }
        // K and V are whole, and everyone is done with the coefficients.
        __syncthreads();
        if (first + KEYS < end) {
            load_factor<BLOCK_THREADS, KEYS>(p.key_coefficients, key, first + KEYS, end - first - KEYS, key_left);
            load_factor<BLOCK_THREADS, KEYS>(p.value_coefficients, value, first + KEYS, end - first - KEYS, value_left);
        }
        cp_async_commit();
        f32 scores[1][KEYS / 8][4];
        score_held(q, k_at, scores);
        if (first + KEYS > end) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    i32 column = n * 8 + i32(lane % 4 * 2) + c % 2;
                    scores[0][n][c] = first + column < end ? scores[0][n][c] : -infinity();
                }
            }
        }
        softmax(factor, scores, most, total, o);
        weigh(v_at, scores, o);
    }

#pragma unroll
    for (int r = 0; r < 2; r++) {
        f32 sum = total[0][r];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        u64 line = first_row + warp * 16 + r * 8 + lane / 4;
        if (line >= head_rows(p)) {
            continue;
        }
        u64 number = row_number(p, prefix_row(p, kv_head, line));
        f32 share = sum > 0.0f ? 1.0f / sum : 0.0f;
        f32 *to = part_values(p, split, number);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                i32 column = n * 8 + i32(lane % 4 * 2) + c;
                if (column < p.head_dim) {
                    to[column] = o[0][n][2 * r + c] * share;
                }
            }
        }
        if (lane % 4 == 0) {
            part_lse(p, split, number) = sum == 0.0f ? -infinity() : 0.69314718056f * (most[0][r] + log2f(sum));
        }
    }
}

#ifdef COMPILE_prefix_attention_sm80
extern "C" __global__ void __launch_bounds__(128, 2) prefix_attention_sm80(const PrefixParams p) {
    extern __shared__ __align__(16) element shared[];
    grid_wait();
    attend_prefix<4>(p, shared);
}
#endif

// The same with twice the rows: they share every rebuilt tile.
#ifdef COMPILE_prefix_attention_sm80_many
extern "C" __global__ void __launch_bounds__(256, 1) prefix_attention_sm80_many(const PrefixParams p) {
    extern __shared__ __align__(16) element shared[];
    grid_wait();
    attend_prefix<8>(p, shared);
}
#endif
