// Few queries over a long cache on Hopper: one thread copies boxes of keys by TMA, four or eight warps multiply.
//
// A box is rows of 64 elements, 16 for each warp: tokens of a head, or of `heads` heads as many fewer as one page holds. The line of all
// steps is `sm80_decode`'s.
//
// With four warps a block takes half of an SM, and the next launch's stands beside it: what begins a launch is over when this one
// ends. Where the host sees what under way writes of that which a launch reads (`early`), its keys come meanwhile: all but the `late` last of
// each sequence, which may only now be written, as Q may (`late_q`).
#pragma once

#include "ptx/cluster.cuh"
#include "attention/partial.cuh"
#include "attention/decode_boxes_params.cuh"
#include "attention/decode_line.cuh"

static_assert(BOX_WARPS == 4 || BOX_WARPS == 8, "that multiply; one more copies");
constexpr u32 BOX_JOINED = BOX_WARPS * 32;         // threads of these
constexpr u32 BOX_KEYS = 16;                       // of a step of a warp
constexpr u32 BOX_ROW = 128;                       // bytes: 64 elements, as wide as the swizzle
constexpr u32 BOX_BYTES = BOX_WARPS * BOX_KEYS * BOX_ROW, BOX_COUNT = (HEAD_DIM + 63) / 64;
constexpr u32 SLOT_BYTES = BOX_COUNT * BOX_BYTES;  // K or V of a step, or Q
constexpr u32 HEAD_BYTES = HEAD_DIM * 2;
constexpr u32 PART_ROW = HEAD_DIM + 4;             // numbers of a row that a warp leaves: O, maximum, sum
constexpr u32 BOX_LEAST = 32 / BOX_WARPS;          // steps of a stretch: shorter ones cost more to join than they save

static_assert(BOX_SLOTS * SLOT_BYTES + BOX_WARPS * BOX_MOST_ROWS * PART_ROW * 4 == BOX_SHARED_BYTES, "what the host sets aside");

// A ring of slots, as one of its users goes round it: Q of an item, then K and V of each step.
struct BoxRing {
    u32 slot = 0, phase = 0;

    __device__ __forceinline__ void advance() {
        if (++slot == BOX_SLOTS) {
            slot = 0;
            phase ^= 1;
        }
    }
};

struct BoxBarriers {
    u64 full[BOX_SLOTS], empty[BOX_SLOTS];
};

// What a block does in turn: a stretch of the first items, which are cut among all blocks, then whole ones. Multicast have neighbouring heads,
// so that together they read long runs of device memory; and what was cut is joined before the end.
struct Turns {
    Stretch first;
    u32 cut_items, whole;   // of all blocks; of each

    __device__ __forceinline__ Turns(const AttentionParams &p, const Line &line, u32 block, u32 blocks) {
        if (varlen_or_paged(p)) {
            first = varlen_stretch(p, line, block, blocks);
            cut_items = whole = 0;
            return;
        }
        u32 items = u32(p.batch) * line.groups, steps = steps_of(p, line, 0);
        whole = items / blocks;
        cut_items = items % blocks;
        first = cut(line, block, blocks, cut_items * steps);
        first.item = at(line, first.begin / steps, steps);
    }

    __device__ __forceinline__ static Item at(const Line &line, u32 index, u32 steps) {
        return {index / line.groups, index % line.groups, index * steps, steps};
    }

    __device__ __forceinline__ Stretch of(const Line &line, u32 turn, u32 block, u32 blocks) const {
        if (turn == 0) {
            return first;
        }
        Item item = at(line, cut_items + (turn - 1) * blocks + block, first.item.steps);
        return {item.start, item.start + item.steps, first.each, item};
    }
};

// Where the rows of a box lie, as TMA counts: their token, and the sequence or the page.
struct BoxPlace {
    i32 token, batch;

    __device__ __forceinline__ BoxPlace(const AttentionParams &p, const Item &item, i32 first, i32 page) : token(first), batch(i32(item.batch)) {
        if (p.form == VARLEN) {
            token += p.index[p.batch + 1 + item.batch];
            batch = 0;
        } else if (p.form == PAGED) {
            token %= i32(p.page);
            batch = page;
        }
    }
};

// K or V of a step, or nothing, to a slot that is free.
__device__ __forceinline__ void ask_for(const DecodeParams &params, u32 half, const BoxPlace &place, u32 head, bool any, char *slots, BoxBarriers &barriers,
                                        u32 slot) {
    CacheHint hint = params.once ? EVICT_FIRST : EVICT_NORMAL;
    mbarrier_arrive_expect(&barriers.full[slot], any ? SLOT_BYTES : 0);
#pragma unroll
    for (u32 box = 0; any && box < BOX_COUNT; box++) {
        tma_load_4d_by(hint, slots + slot * SLOT_BYTES + box * BOX_BYTES, half ? &params.v : &params.k, &barriers.full[slot], i32(box * 64), place.token,
                       i32(head), place.batch);
    }
}

// Whether a block's first step is known before anything is read: it asks for that one's K and V before all else. By the time that the code has come to
// `bring_boxes` 1.3 µs of a cold launch are over.
__device__ __forceinline__ bool knows_first(const DecodeParams &params, u32 block) {
    return params.common.form == DENSE && !params.late && (params.whole > 0 || block * params.each < params.cut_items * params.steps);
}

// Those, to the slots behind that of Q.
__device__ __forceinline__ void ask_first(const DecodeParams &params, const Line &line, u32 block, char *slots, BoxBarriers &barriers) {
    const AttentionParams &p = params.common;
    if (!params.early) {
        grid_wait();
    }
    // Of what is cut, or else of the block's first whole item.
    u32 begin = block * params.each, cut = params.cut_items * params.steps;
    begin = begin < cut ? begin : cut + block * params.steps;
    Item item = Turns::at(line, begin / params.steps, params.steps);
    i32 first = mask_of(p, i32(p.q_len), i32(p.kv_len)).first(0);
    BoxPlace place(p, item, first + i32((begin - item.start) * line.keys), 0);
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        ask_for(params, half, place, item.group * params.heads, true, slots, barriers, 1 + half);
    }
}

// Of one thread: copies all of a stretch, as far ahead as there are slots. `ahead` while the launch before has not been waited for; `asked` slots
// behind the first are on their way already.
__device__ __forceinline__ void bring_boxes(const DecodeParams &params, const Line &line, const Stretch &stretch, char *slots, BoxBarriers &barriers,
                                            BoxRing &ring, bool &ahead, u32 &asked) {
    const AttentionParams &p = params.common;
    auto await_slot = [&] { mbarrier_wait(&barriers.empty[ring.slot], ring.phase ^ 1); };
    auto fall_behind = [&] {
        if (ahead) {
            grid_wait();
            ahead = false;
        }
    };
    u32 step = stretch.begin;
    for (Item item = stretch.item; step < stretch.end; to_next_item(p, line, item)) {
        Sequence s = sequence_of(p, item.batch);
        Span span = span_of(p, s);
        bool any = span.first < span.end;
        u32 stop = item.start + item.steps < stretch.end ? item.start + item.steps : stretch.end, head = item.group * params.heads;
        auto token_at = [&](u32 at) { return span.first + i32((at - item.start) * line.keys); };
        auto page_at = [&](u32 at) { return p.form == PAGED && any ? s.pages[u32(token_at(at)) / u32(p.page)] : 0; };
        i32 page = page_at(step), early_end = i32(s.kv_len) - i32(params.late);

        // Q comes as the keys do: an ordinary load would wait for all that the SM has asked for before. Where it may not be there yet
        // its slot stays open until the keys behind it have filled all others.
        u32 bytes = params.heads * p.pack * HEAD_BYTES, q_slot = ring.slot;
        await_slot();
        mbarrier_arrive_expect(&barriers.full[q_slot], u32(s.q_len) * bytes);
        auto bring_queries = [&] {
            for (u32 query = 0; query < u32(s.q_len); query++) {
                bulk_load(slots + q_slot * SLOT_BYTES + query * bytes, s.q + query * p.q_token + head * p.pack * p.q_head, bytes, &barriers.full[q_slot]);
            }
        };
        bool owed = ahead && params.late_q;
        if (!owed) {
            bring_queries();
        }
        ring.advance();
        for (; step < stop; step++) {
            BoxPlace place(p, item, token_at(step), page);
            // Looked up a step ahead: the answer takes as long as a copy.
            page = step + 1 < stop ? page_at(step + 1) : 0;
            if (params.late && token_at(step) + i32(line.keys) > early_end) {
                fall_behind();
            }
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                if (owed && (ring.slot == q_slot || !ahead)) {
                    fall_behind();
                    bring_queries();
                    owed = false;
                }
                if (asked > 0) {
                    asked--;
                } else {
                    await_slot();
                    ask_for(params, half, place, head, any, slots, barriers, ring.slot);
                }
                ring.advance();
            }
        }
        if (owed) {
            fall_behind();
            bring_queries();
        }
    }
}

// Q of a head as the first operand of the products; zeros past its last row.
struct HeldQueries {
    u32 q[HEAD_DIM / 16][4];

    // From a slot, where the rows of each query lie as in device memory.
    __device__ __forceinline__ void load(const AttentionParams &p, const char *slot, u32 rows, u32 head, u32 heads) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 row = r * 8 + lane / 4;
            bool inside = row < rows;
            const char *from = slot + ((row / p.pack * heads + head) * p.pack + row % p.pack) * HEAD_BYTES + lane % 4 * 4;
#pragma unroll
            for (int e = 0; e < HEAD_DIM / 16; e++) {
                q[e][r] = inside ? *(const u32 *)(from + e * 32) : 0;
                q[e][2 + r] = inside ? *(const u32 *)(from + e * 32 + 16) : 0;
            }
        }
    }

    // A negative scale turns Q over, so that the factor of the softmax is positive; a scale of 0 clears Q.
    __device__ __forceinline__ void turn(f32 scale) {
        if (scale > 0.0f) {
            return;
        }
#pragma unroll
        for (int e = 0; e < HEAD_DIM / 16; e++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                q[e][i] = scale < 0.0f ? q[e][i] ^ 0x80008000u : 0;
            }
        }
    }

    __device__ __forceinline__ void score(u32 k_at, f32 (&s)[1][2][4]) const {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            s[0][n][0] = s[0][n][1] = s[0][n][2] = s[0][n][3] = 0.0f;
        }
#pragma unroll
        for (int e = 0; e < HEAD_DIM; e += 16) {
            u32 k[4];
            ldmatrix_x4(k, (k_at ^ (e % 64 * 2)) + e / 64 * BOX_BYTES);
            u32 low[2] = {k[0], k[1]}, high[2] = {k[2], k[3]};
            mma_m16n8k16<element>(s[0][0], q[e / 16], low);
            mma_m16n8k16<element>(s[0][1], q[e / 16], high);
        }
    }
};

// Scores that a row does not see become -infinity.
__device__ __forceinline__ void mask_box(const ShortMask &mask, u32 pack, i32 first, f32 (&s)[1][2][4]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        i32 query = i32((r * 8 + threadIdx.x % 32 / 4) / pack);
        i32 low = mask.first(query) - first, high = mask.end(query) - first;
#pragma unroll
        for (int n = 0; n < 2; n++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                i32 key = n * 8 + i32(threadIdx.x % 4 * 2) + c;
                s[0][n][2 * r + c] = key >= low && key < high ? s[0][n][2 * r + c] : -infinity();
            }
        }
    }
}

// What lies past the last key may be no number, and a weight of zero times that is none: rows of V from `count` on become zero.
__device__ __forceinline__ void clear_rows(char *rows, i32 count) {
    for (u32 at = threadIdx.x % 32; at < BOX_COUNT * BOX_KEYS * 8; at += 32) {
        u32 row = at / 8 % BOX_KEYS;
        if (i32(row) >= count) {
            *(uint4 *)(rows + at / (8 * BOX_KEYS) * BOX_BYTES + row * BOX_ROW + at % 8 * 16) = {0, 0, 0, 0};
        }
    }
    fence_proxy_async();
    __syncwarp();
}

// O += P·V, P rounded to the operands' type.
__device__ __forceinline__ void weigh_box(u32 v_at, const f32 (&s)[1][2][4], f32 (&o)[1][TILES][4]) {
    const f32(&left)[4] = s[0][0], (&right)[4] = s[0][1];
    u32 weights[4] = {narrow2<element>(left[0], left[1]), narrow2<element>(left[2], left[3]), narrow2<element>(right[0], right[1]),
                      narrow2<element>(right[2], right[3])};
#pragma unroll
    for (int e = 0; e < HEAD_DIM; e += 16) {
        u32 v[4];
        ldmatrix_x4_transposed(v, (v_at ^ (e % 64 * 2)) + e / 64 * BOX_BYTES);
        u32 low[2] = {v[0], v[1]}, high[2] = {v[2], v[3]};
        mma_m16n8k16<element>(o[0][e / 8], weights, low);
        mma_m16n8k16<element>(o[0][e / 8 + 1], weights, high);
    }
}

// Leaves a warp's rows: O, maximum and sum of each.
__device__ __forceinline__ void leave_rows(f32 *part, u32 rows, const f32 (&most)[1][2], const f32 (&total)[1][2], const f32 (&o)[1][TILES][4]) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        f32 sum = total[0][r];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        u32 row = r * 8 + lane / 4;
        if (row < rows) {
            f32 *to = part + row * PART_ROW;
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                *(float2 *)(to + n * 8 + lane % 4 * 2) = {o[0][n][2 * r], o[0][n][2 * r + 1]};
            }
            if (lane % 4 == 0) {
                *(float2 *)(to + HEAD_DIM) = {most[0][r], sum};
            }
        }
    }
}

// Four columns of a row that a warp left.
__device__ __forceinline__ Partial partial_at(const f32 *left, u32 row, u32 column) {
    const f32 *from = left + row * PART_ROW;
    float2 sums = *(const float2 *)(from + HEAD_DIM);
    return {sums.x, sums.y, *(const float4 *)(from + column)};
}

// Where a block tells four columns of a row to the block that joins them.
struct Published {
    float4 o, sums;

    __device__ __forceinline__ void publish(const Partial &sum) {
        publish_16(&o, sum.o);
        publish_16(&sums, {sum.most, sum.total, 0.0f, 0.0f});
    }

    // False while they have not come.
    __device__ __forceinline__ bool poll(Partial &sum) const {
        float4 pair;
        bool all = poll_16(&o, sum.o) & poll_16(&sums, pair);
        sum.most = pair.x;
        sum.total = pair.y;
        return all;
    }

    // For the next launch.
    __device__ __forceinline__ void clear() { o = sums = {0.0f, 0.0f, 0.0f, 0.0f}; }
};
