// Attention of a server's step on the tensor cores of Ampere and later: queries in numbers of their own over keys in pages, f16 and bf16.
//
// The tile of tile.cuh, whose rows are all heads that share keys. A block walks over its keys from a multiple of KEYS on, so that a query's bits
// depend on itself and its keys, and on nothing else that is in the step. Keys are not divided among blocks for the same reason.

#include "attention/ragged_pages.cuh"
#include "attention/sm80/tile.cuh"
#include "ptx/grid.cuh"

static_assert((ROWS<1> + 2 * KEYS) * Swizzled::PITCH * 2 == SHARED_BYTES, "what the host sets aside");

// The first slot of a sequence: up to the next one's there are as many slots as it has tiles, or one more. Number p.batch are the spare queries.
__device__ __forceinline__ u32 first_slot(const AttentionParams &p, u32 batch) { return u32(u64(p.index[batch]) * p.pack / ROWS<1>) + batch; }

// The sequence of a slot: the last one that does not begin behind it. A warp looks at 32 places at once.
__device__ __forceinline__ u32 sequence_at(const AttentionParams &p, u32 slot) {
    u32 low = 0, left = u32(p.batch);
    while (left > 0) {
        u32 step = (left + 31) / 32, behind = step * (threadIdx.x % 32 + 1);
        u32 passed = step * count_ones(lanes_where(behind <= left && first_slot(p, low + behind) <= slot));
        low += passed;
        left = left - passed < step - 1 ? left - passed : step - 1;
    }
    return low;
}

// The tile of this block, which is of sequence `batch`; of a sequence the last queries come first. p.tiles: slots of a head.
__device__ __forceinline__ Piece ragged_piece(const AttentionParams &p, u32 batch) {
    Piece piece;
    u32 work = u32(opaque(i32(blockIdx.x))), kv_head = work / p.tiles, slot = work % p.tiles;
    piece.batch = batch;
    piece.first_head = kv_head * p.pack;
    piece.s = ragged_sequence(p, batch);
    piece.s.k = sum_of_terms(piece.s.k + kv_head * p.k_head);
    piece.s.v = sum_of_terms(piece.s.v + kv_head * p.v_head);
    piece.rows = i32(piece.s.q_len) * i32(p.pack);
    piece.first_row = ((piece.rows + ROWS<1> - 1) / ROWS<1> - 1 - i32(slot - first_slot(p, batch))) * ROWS<1>;
    piece.mask = mask_of(p, i32(piece.s.q_len), i32(piece.s.kv_len));
    return piece;
}

// ALIGNED: every row of Q, K and V starts on a multiple of 16 bytes.
template <bool ALIGNED> __device__ __forceinline__ void attend_ragged(const AttentionParams &p, element *shared) {
    Spot q_tile = {shared, shared_address(shared)}, k_tile = q_tile + ROWS<1> * Swizzled::PITCH, v_tile = k_tile + KEYS * Swizzled::PITCH;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 q_at = (q_tile + Swizzled::place(warp * 16 + lane % 16, lane / 16)).address;
    u32 k_at = (k_tile + Swizzled::place(lane % 8 + lane / 16 * 8, lane / 8 % 2)).address;
    u32 v_at = (v_tile + Swizzled::place(lane % 16, lane / 16)).address;
    f32 factor = p.scale == 0.0f ? 1.0f : fabsf(p.scale) * 1.4426950409f;

    u32 batch = sequence_at(p, blockIdx.x % p.tiles);
    Piece piece = ragged_piece(p, batch);
    if (piece.first_row < 0) {
        return;
    }
    const element *k = piece.s.k, *v = piece.s.v;
    const i32 *pages = piece.s.pages;
    i32 last_row = piece.first_row + ROWS<1> < piece.rows ? piece.first_row + ROWS<1> - 1 : piece.rows - 1;
    i32 first_query = i32(u32(piece.first_row) / p.pack), last_query = i32(u32(last_row) / p.pack);
    // Keys that some row sees, and those that every row sees.
    i32 first = first_of_steps(piece.mask.first(first_query), KEYS), end = piece.mask.end(last_query);
    i32 all_first = piece.mask.first(last_query), all_end = piece.mask.end(first_query);

    f32 most[1][2], total[1][2], o[1][TILES][4];
    most[0][0] = most[0][1] = -infinity();
    total[0][0] = total[0][1] = 0.0f;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        o[0][n][0] = o[0][n][1] = o[0][n][2] = o[0][n][3] = 0.0f;
    }

    if (first < end) {
        load_queries<ALIGNED, 1>(p, piece.s.q, piece.first_row, piece.rows, piece.first_head, q_tile);
        load_keys<ALIGNED>(p, pages, k, p.k_batch, p.k_token, first, end, k_tile);
        cp_async_commit();
        if (!(p.scale > 0.0f)) {
            cp_async_wait<0>();
            __syncthreads();
            turn_queries<1>(p.scale, q_tile.start);
        }
    }
#pragma unroll 1
    for (; first < end; first += KEYS) {
        // K has come, and everyone is done with V.
        cp_async_wait<0>();
        __syncthreads();
        load_keys<ALIGNED>(p, pages, v, p.v_batch, p.v_token, first, end, v_tile);
        cp_async_commit();
        f32 scores[1][KEYS / 8][4];
        score<Swizzled>(q_at, k_at, scores);
        if (first < all_first || first + KEYS > all_end) {
            mask_rows(p, ragged_piece(p, batch), threadIdx.x / 32 * 16, {first, first + KEYS < end ? first + KEYS : end, -1, 0}, scores);
        }
        // V has come, and everyone is done with K.
        cp_async_wait<0>();
        __syncthreads();
        if (first + KEYS < end) {
            load_keys<ALIGNED>(p, pages, k, p.k_batch, p.k_token, first + KEYS, end, k_tile);
        }
        cp_async_commit();
        softmax(factor, scores, most, total, o);
        weigh<Swizzled>(v_at, scores, o);
    }

    piece = ragged_piece(p, batch);
    u32 place = u32(opaque(i32(threadIdx.x))) / 32 * 16;
    join_lanes(total);
    __syncwarp();
    leave_rows(total, o, place, shared, [](int n) { return n; });
    write_lse(p, piece, place, most, total);
    __syncwarp();
    write_rows(p, piece, place, place + 16, shared);
}

#ifdef COMPILE_attention_sm80_ragged
extern "C" __global__ void __launch_bounds__(WARP_THREADS, TOGETHER) attention_sm80_ragged(const AttentionParams p) {
    extern __shared__ __align__(128) element shared[];
    grid_wait();
    attend_ragged<true>(p, shared);
}
#endif

#ifdef COMPILE_attention_sm80_ragged_narrow
// Rows that start anywhere.
extern "C" __global__ void __launch_bounds__(WARP_THREADS, TOGETHER) attention_sm80_ragged_narrow(const AttentionParams p) {
    extern __shared__ __align__(128) element shared[];
    grid_wait();
    attend_ragged<false>(p, shared);
}
#endif
