// O = softmax(scale·Q·Kᵀ + mask)·V for few queries over a long cache, on Hopper.

#include "attention/sm90/decode.cuh"

// The warps that multiply go over a stretch. `ended` takes what a warp has of an item, after its last step there.
template <class Ended>
__device__ __forceinline__ void multiply_boxes(const DecodeParams &params, const Line &line, const Stretch &stretch, char *slots, BoxBarriers &barriers,
                                               BoxRing &ring, Ended ended) {
    const AttentionParams &p = params.common;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, shares = BOX_WARPS / params.heads, head = warp / shares, share = warp % shares;
    // Of a row's 128 bytes, 16 lie where its number says (swizzle).
    u32 rows_at = shared_address(slots) + warp * BOX_KEYS * BOX_ROW;
    u32 k_at = rows_at + (lane % 8 + lane / 16 * 8) * BOX_ROW + (lane / 8 % 2 ^ lane % 8) * 16;
    u32 v_at = rows_at + lane % 16 * BOX_ROW + (lane / 16 ^ lane % 8) * 16;
    f32 factor = p.scale == 0.0f ? 1.0f : fabsf(p.scale) * 1.4426950409f;
    auto await = [&] { mbarrier_wait(&barriers.full[ring.slot], ring.phase); };
    auto release = [&] {
        __syncwarp();
        if (lane == 0) {
            mbarrier_arrive(&barriers.empty[ring.slot]);
        }
        ring.advance();
    };
    u32 at = stretch.begin;
    for (Item item = stretch.item; at < stretch.end; to_next_item(p, line, item)) {
        Sequence s = sequence_of(p, item.batch);
        u32 rows = u32(s.q_len) * p.pack;
        ShortMask mask = mask_of(p, i32(s.q_len), i32(s.kv_len));
        Span span = span_of(p, s);
        // Keys that every row sees.
        i32 all_first = mask.first(i32(s.q_len) - 1), all_end = mask.end(0);
        u32 stop = item.start + item.steps < stretch.end ? item.start + item.steps : stretch.end;
        HeldQueries held;
        await();
        held.load(p, slots + ring.slot * SLOT_BYTES, rows, head, params.heads);
        release();
        held.turn(p.scale);

        f32 most[1][2] = {{-infinity(), -infinity()}}, total[1][2] = {{0.0f, 0.0f}}, o[1][TILES][4];
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            o[0][n][0] = o[0][n][1] = o[0][n][2] = o[0][n][3] = 0.0f;
        }
        for (; at < stop; at++) {
            i32 first = span.first + i32((at - item.start) * line.keys + share * BOX_KEYS);
            bool seen = first < span.end;
            f32 scores[1][2][4];
            await();
            if (seen) {
                held.score(k_at + ring.slot * SLOT_BYTES, scores);
            }
            release();
            if (seen) {
                if (first < all_first || first + i32(BOX_KEYS) > all_end) {
                    mask_box(mask, p.pack, first, scores);
                }
                softmax(factor, scores, most, total, o);
            }
            await();
            if (seen) {
                if (first + i32(BOX_KEYS) > span.end) {
                    clear_rows(slots + ring.slot * SLOT_BYTES + warp * BOX_KEYS * BOX_ROW, span.end - first);
                }
                weigh_box(v_at + ring.slot * SLOT_BYTES, scores, o);
            }
            release();
        }
        ended(item, most, total, o);
    }
}

// Every four columns of an item's rows, over the threads that multiply: `joined` gives what its row has by its number in a part.
template <class Joined, class Use>
__device__ __forceinline__ void each_place(u32 rows, Joined joined, Use use) {
    for (u32 place = threadIdx.x; place < rows * (HEAD_DIM / 4); place += BOX_JOINED) {
        u32 row = place / (HEAD_DIM / 4), column = place % (HEAD_DIM / 4) * 4;
        use(row, column, joined(row, column));
    }
}

extern "C" __global__ void __launch_bounds__(BOX_JOINED + 32, BOX_RESIDENT) attention_sm90_decode(const __grid_constant__ DecodeParams params) {
    extern __shared__ __align__(1024) char slots[];
    __shared__ BoxBarriers barriers;
    const AttentionParams &p = params.common;
    u32 block = gridDim.x - 1 - blockIdx.x, warp = threadIdx.x / 32, shares = BOX_WARPS / params.heads;
    Line line = {u32(p.kv_heads) / params.heads, shares * BOX_KEYS, BOX_LEAST};
    if (threadIdx.x == BOX_JOINED) {
        for (u32 i = 0; i < BOX_SLOTS; i++) {
            mbarrier_init(&barriers.full[i], 1);
            mbarrier_init(&barriers.empty[i], BOX_WARPS);
        }
        fence_mbarrier_init();
        if (knows_first(params, block)) {
            ask_first(params, line, block, slots, barriers);
        }
    }
    __syncthreads();
    // The block that joins an item waits for those behind it on the line, and they begin before it does. Lengths and pages are read at once:
    // only copies write them, which no launch overtakes.
    Turns turns(p, line, block, gridDim.x);
    BoxRing ring;
    if (!params.early) {
        grid_wait();
    }
    // Not before: what the next launch reads early is written by none before this one.
    grid_launch_next();
    if (warp == BOX_WARPS) {
        if (threadIdx.x % 32 == 0) {
            bool ahead = params.early;
            u32 asked = knows_first(params, block) ? 2 : 0;
            for (u32 turn = 0; turn <= turns.whole; turn++) {
                bring_boxes(params, line, turns.of(line, turn, block, gridDim.x), slots, barriers, ring, ahead, asked);
            }
        }
        return;
    }
    f32 *left = (f32 *)(slots + BOX_SLOTS * SLOT_BYTES);
    for (u32 turn = 0; turn <= turns.whole; turn++) {
        Stretch stretch = turns.of(line, turn, block, gridDim.x);
        multiply_boxes(params, line, stretch, slots, barriers, ring,
                       [&](const Item &item, const f32(&most)[1][2], const f32(&total)[1][2], const f32(&o)[1][TILES][4]) {
            // Worked out anew: registers are full before.
            Sequence s = sequence_of(p, u32(opaque(i32(item.batch))));
            u32 rows = u32(s.q_len) * p.pack, opening = item.start / stretch.each, closing = (item.start + item.steps - 1) / stretch.each;
            bool whole = stretch.begin <= item.start && item.start + item.steps <= stretch.end;
            // Of a block's items only the first can begin before it.
            u64 most_places = u64(params.heads * u32(p.q_len) * p.pack) * (HEAD_DIM / 4);
            auto published_by = [&](u32 other, u32 row, u32 column) { return (Published *)params.parts + other * most_places + row * (HEAD_DIM / 4) + column / 4; };
            leave_rows(left + warp * rows * PART_ROW, rows, most, total, o);
            named_barrier_sync(1, BOX_JOINED);
            // The launch before may have its own parts where this one's go.
            if (params.early) {
                grid_wait();
            }
            auto of_warps = [&](u32 row, u32 column) {
                Partial sum = no_keys();
                for (u32 share = 0; share < shares; share++) {
                    sum.join(partial_at(left, (row / rows * shares + share) * rows + row % rows, column));
                }
                return sum;
            };
            each_place(params.heads * rows, of_warps, [&](u32 row, u32 column, Partial sum) {
                if (!whole && block != opening) {
                    published_by(block, row, column)->publish(sum);
                    return;
                }
                // In the order of the keys.
                constexpr u32 TOGETHER_PARTS = 4;   // so that their loads are under way together
                for (u32 other = block + 1; !whole && other <= closing; other += TOGETHER_PARTS) {
                    Partial some[TOGETHER_PARTS];
                    bool all;
                    do {
                        all = true;
#pragma unroll
                        for (u32 i = 0; i < TOGETHER_PARTS; i++) {
                            some[i] = no_keys();
                            all &= other + i > closing || published_by(other + i, row, column)->poll(some[i]);
                        }
                    } while (!all);
#pragma unroll
                    for (u32 i = 0; i < TOGETHER_PARTS; i++) {
                        if (other + i <= closing) {
                            published_by(other + i, row, column)->clear();
                            sum.join(some[i]);
                        }
                    }
                }
                u32 of_head = row % rows;
                finish(p, s, (item.group * params.heads + row / rows) * p.pack + of_head % p.pack, of_head / p.pack, i32(column), sum);
            });
            named_barrier_sync(1, BOX_JOINED);
        });
    }
}
