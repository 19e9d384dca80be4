// What the consumers of `attention/sm90/pipeline.cuh` do with a tile that is done: O and the LSE to device memory, or joined in a cluster.
#pragma once

#include "attention/columns.cuh"
#include "attention/partial.cuh"
#include "attention/sm90/tile.cuh"
#include "tile/repack.cuh"

// 32 columns of row `r` of O from tile `first`: eight of them for each of the four lanes that hold the row.
__device__ __forceinline__ uint4 gather_columns(const Output &o, int first, int r, f32 share) {
    u32 own[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        int place = first + n < HEAD_DIM / 8 ? 4 * (first + n) + 2 * r : 0;
        own[n] = first + n < HEAD_DIM / 8 ? narrow2<element>(o[place] * share, o[place + 1] * share) : 0;
    }
    return gather_eight(own);
}

// A row that starts `over` elements past a multiple of 16 bytes: each lane writes from as far before its columns, what it has behind
// the last of the lane before. Of four lanes the first one gets that of a turn ago.
__device__ __forceinline__ void write_across(element *to, const Output &o, int r, f32 share, i32 end, i32 first) {
    u32 over = u32(u64(to) & 15) / 2, lane = threadIdx.x % 32, before = (lane & ~3u) | (lane + 3 & 3);
    uint4 kept = {};
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8 + 1; i += 4) {
        uint4 mine = gather_columns(o, i, r, share), given = lane % 4 == 3 ? kept : mine;
        kept = mine;
        uint4 low = {shuffle_from(given.x, before), shuffle_from(given.y, before), shuffle_from(given.z, before), shuffle_from(given.w, before)};
        write_eight(to, over ? eight_across(low, mine, 8 - over) : mine, i * 8 + i32(lane % 4 * 8) - i32(over), end, true, first);
    }
}

// Of short rows there is little to gain by writing 16 bytes where they start anywhere, and the code has to be fetched too.
constexpr bool ACROSS = HEAD_DIM > 64;

// Where a block's sequence begins among the rows of O.
__device__ __forceinline__ i32 first_query(const Block &block) { return IS_VARLEN ? block.span.q_begin : 0; }

// The LSE of this thread's row `r`, whose weights add up to `sum`.
__device__ __forceinline__ void write_lse(const AttentionParams &p, const Block &block, const Rows &rows, int r, f32 sum) {
    if (p.lse && rows.row[r] < queries_of(p, block) && threadIdx.x % 4 == 0) {
        f32 natural = 0.69314718056f * (rows.most[r] + log2f(sum));
        u64 head = IS_VARLEN ? u64(block.batch) * p.heads * p.q_len + block.head * p.lse_head + first_query(block) : (u64(block.batch) * p.heads + block.head) * p.q_len;
        p.lse[head + rows.row[r]] = sum == 0.0f ? -infinity() : natural;
    }
}

// Lanes that write a row, 16 bytes each, and rows that a warp writes at once.
constexpr u32 LANES = HEAD_DIM > 64 ? 16 : 8, TOGETHER_ROWS = 32 / LANES;

// Each warp's 16 rows to `room`, where its rows of Q lay, and the LSE. Chunks of 16 bytes lie in another order in each of eight rows, as TMA has
// them: no two lanes meet in a bank.
__device__ __forceinline__ void lay_rows(const AttentionParams &p, const Block &block, const Rows &rows, const Output &o, char *room) {
    u32 lane = threadIdx.x % 32, row = lane / 4;
    f32 share[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        f32 sum = rows.total[r];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        share[r] = sum > 0.0f ? reciprocal_fast(sum) : 0.0f;
        write_lse(p, block, rows, r, sum);
    }
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++) {
        char *at = room + i / 8 * BLOCK_ROWS * ROW_BYTES + row * ROW_BYTES + (i % 8 ^ row) * 16 + lane % 4 * 4;
        *(u32 *)at = narrow2<element>(o[4 * i] * share[0], o[4 * i + 1] * share[0]);
        *(u32 *)(at + 8 * ROW_BYTES) = narrow2<element>(o[4 * i + 2] * share[1], o[4 * i + 3] * share[1]);
    }
}

// O and the LSE of a tile that is done, by TMA, which leaves out what is past the last row and the last element.
__device__ __forceinline__ void send_output(const TmaParams &p, const Block &block, const Rows &rows, const Output &o, char *room) {
    lay_rows(p.common, block, rows, o, room);
    fence_proxy_async();
    __syncwarp();
    if (elect_one()) {
        i32 first = rows.row[0] - i32(threadIdx.x % 32 / 4);
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) {
            tma_store_4d(&p.o, room + panel * BLOCK_ROWS * ROW_BYTES, panel * 64, first, block.head, block.batch);
        }
        tma_store_commit();
        tma_store_wait_read<0>();
    }
}

// By ordinary stores, so that rows are written whole; nothing where rows do not lie on multiples of 16 bytes, and for the shortest heads, whose
// three groups have no registers for it.
__device__ __forceinline__ bool write_rows(const AttentionParams &p, const Block &block, const Rows &rows, const Output &o, char *room) {
    element *head = p.o + block.batch * p.o_batch + block.head * p.o_head;
    if (IS_VARLEN) {
        head += u64(first_query(block)) * p.o_token;
    }
    if (HEAD_DIM < 64 || ((u64(head) | u64(p.o_token) * 2 | u64(p.head_dim) * 2) & 15) != 0) {
        return false;
    }
    lay_rows(p, block, rows, o, room);
    __syncwarp();
    u32 lane = threadIdx.x % 32, chunk = lane % LANES, own = lane / LANES;
    i32 query = rows.row[0] - i32(lane / 4) + i32(own);
    element *to = head + u64(query) * p.o_token + chunk * 8;
    uint4 all[16 / TOGETHER_ROWS];
#pragma unroll
    for (u32 i = 0; i < 16 / TOGETHER_ROWS; i++) {
        u32 from = i * TOGETHER_ROWS + own;
        all[i] = *(const uint4 *)(room + chunk / 8 * BLOCK_ROWS * ROW_BYTES + from * ROW_BYTES + (chunk % 8 ^ from % 8) * 16);
    }
#pragma unroll
    for (u32 i = 0; i < 16 / TOGETHER_ROWS; i++) {
        if (query + i32(i * TOGETHER_ROWS) < queries_of(p, block) && i32(chunk * 8) < p.head_dim) {
            store_16(to + u64(i * TOGETHER_ROWS) * p.o_token, all[i]);
        }
    }
    return true;
}

// From registers. Element e of a row lies in column (e + `shift`) % HEAD_DIM of O.
__device__ __forceinline__ void write_output(const AttentionParams &p, const Block &block, const Rows &rows, const Output &o, i32 shift = 0) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        f32 sum = rows.total[r];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        bool there = rows.row[r] < queries_of(p, block);
        f32 share = sum > 0.0f ? 1.0f / sum : 0.0f;
        element *to = p.o + block.batch * p.o_batch + u64(rows.row[r] + first_query(block)) * p.o_token + block.head * p.o_head - shift;
        i32 end = there ? shift + p.head_dim : 0, around = end - HEAD_DIM;
        if (UNALIGNED && around > 0) {
            end = HEAD_DIM;
        }
        bool aligned = (u64(to) & 15) == 0;
        if (ACROSS && any_lane(!aligned)) {
            write_across(to, o, r, share, end, shift);
        } else {
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 8; i += 4) {
                write_eight(to, gather_columns(o, i, r, share), i * 8 + i32(threadIdx.x % 4 * 8), end, ACROSS || aligned, shift);
            }
        }
        if (UNALIGNED) {
            // The last elements lie in the first columns.
            u32 two = narrow2<element>(o[2 * r] * share, o[2 * r + 1] * share);
#pragma unroll
            for (int c = 0; c < 2; c++) {
                i32 column = i32(threadIdx.x % 4 * 2) + c;
                if (column < around) {
                    to[HEAD_DIM + column].bits = u16(two >> c * 16);
                }
            }
        }
        write_lse(p, block, rows, r, sum);
    }
}

// O and the LSE of a tile that is done. `room`: where the warp's 16 rows of Q lay, its own now.
__device__ __forceinline__ void finish_output(const AttentionParams &p, const Block &block, const Rows &rows, const Output &o, char *room) {
    if (BY_WAY_OF_Q && write_rows(p, block, rows, o, room)) {
        return;
    }
    write_output(p, block, rows, o);
}

// ---- a tile whose keys are summed in parts ----

constexpr u32 WARP_FLOATS = 32 * (HEAD_DIM / 2 + 4);   // of a warp's part: O, then maxima and sums

// To device memory as the registers hold it. `to`: 16 bytes of this lane, as all that follows.
__device__ __forceinline__ void leave_sums(f32 *to, const Rows &rows, const Output &o) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++) {
        *(float4 *)(to + i * 128) = {o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]};
    }
    *(float4 *)(to + HEAD_DIM / 8 * 128) = {rows.most[0], rows.most[1], rows.total[0], rows.total[1]};
}

// Adds the other part of two. The same bits come out whoever adds whose: both products are rounded.
__device__ __forceinline__ void add_sums(const f32 *from, Rows &rows, Output &o) {
    float4 sums = *(const float4 *)(from + HEAD_DIM / 8 * 128);
    f32 most[2] = {fmaxf(rows.most[0], sums.x), fmaxf(rows.most[1], sums.y)}, theirs[2] = {sums.x, sums.y}, totals[2] = {sums.z, sums.w}, ours[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        f32 base = most[r] == -infinity() ? 0.0f : most[r];
        ours[r] = exp2_fast(rows.most[r] - base);
        theirs[r] = exp2_fast(theirs[r] - base);
        rows.most[r] = most[r];
        rows.total[r] = product_rounded(rows.total[r], ours[r]) + product_rounded(totals[r], theirs[r]);
    }
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++) {
        float4 four = *(const float4 *)(from + i * 128);
        f32 more[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            o[4 * i + e] = product_rounded(o[4 * i + e], ours[e / 2]) + product_rounded(more[e], theirs[e / 2]);
        }
    }
}

// ---- a tile whose keys the blocks of a cluster share ----

constexpr int KEPT_PITCH = HEAD_DIM + 8;                 // of a row of O, where the ring was
constexpr int KEPT_SUMS = BLOCK_ROWS * KEPT_PITCH;       // then the maximum and the sum of each row

static_assert((KEPT_SUMS + BLOCK_ROWS * 2) * 4 <= RING_BYTES, "the ring has room for O");

__device__ __forceinline__ void keep_output(f32 *kept, const Rows &rows, const Output &o, u32 group) {
    // All groups are done with the ring.
    named_barrier_sync(CONSUMERS + 1, CONSUMERS * 128);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        f32 sum = rows.total[r];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        u32 row = group * 64 + threadIdx.x % 128 / 32 * 16 + r * 8 + threadIdx.x % 32 / 4;
        if (threadIdx.x % 4 == 0) {
            kept[KEPT_SUMS + row * 2] = rows.most[r];
            kept[KEPT_SUMS + row * 2 + 1] = sum;
        }
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            *(float2 *)(kept + row * KEPT_PITCH + i * 8 + threadIdx.x % 4 * 2) = {o[4 * i + 2 * r], o[4 * i + 2 * r + 1]};
        }
    }
}

// Where the output of a block's sequence lies, and no more of it.
__device__ __forceinline__ Sequence output_of(const AttentionParams &p, const Block &block) {
    if (!IS_VARLEN) {
        return sequence_of(p, block.batch);
    }
    Sequence s = {};
    s.o = p.o + block.batch * p.o_batch + u64(first_query(block)) * p.o_token;
    s.lse = u64(block.batch) * p.heads * p.q_len + first_query(block);
    return s;
}

// Each block writes some of the rows, joined in the order of the blocks: that of the keys. `find` says which tile one works on.
template <class Find> __device__ __forceinline__ void join_output(const AttentionParams &p, const f32 *kept, Find find) {
    u32 size = cluster_size(), rank = cluster_rank(), share = BLOCK_ROWS / size, own = shared_address(kept);
    Block block = find(blockIdx.x / size);
    Sequence s = output_of(p, block);
    // Several places at a time, so that their loads are under way together.
    constexpr u32 PLACES = 4, READERS = CONSUMERS * 128;
    for (u32 at = threadIdx.x % READERS; at < share * (HEAD_DIM / 4); at += READERS * PLACES) {
        Partial all[PLACES] = {no_keys(), no_keys(), no_keys(), no_keys()};
        for (u32 other = 0; other < size; other++) {
            u32 from = cluster_address(own, other);
            Partial more[PLACES];
#pragma unroll
            for (u32 i = 0; i < PLACES; i++) {
                // Past the end the first place again.
                u32 place = at + i * READERS < share * (HEAD_DIM / 4) ? at + i * READERS : at;
                u32 row = rank * share + place / (HEAD_DIM / 4), column = place % (HEAD_DIM / 4) * 4, sums = from + (KEPT_SUMS + row * 2) * 4;
                more[i] = {cluster_load(sums), cluster_load(sums + 4), cluster_load_16(from + (row * KEPT_PITCH + column) * 4)};
            }
#pragma unroll
            for (u32 i = 0; i < PLACES; i++) {
                all[i].join(more[i]);
            }
        }
#pragma unroll
        for (u32 i = 0; i < PLACES; i++) {
            u32 place = at + i * READERS, query = block.first_row + rank * share + place / (HEAD_DIM / 4);
            if (place < share * (HEAD_DIM / 4) && query < u32(queries_of(p, block))) {
                finish(p, s, block.head, query, i32(place % (HEAD_DIM / 4) * 4), all[i]);
            }
        }
    }
}
