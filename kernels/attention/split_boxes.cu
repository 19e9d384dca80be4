// O = softmax(scale·Q·Kᵀ + mask)·V for few queries over a long cache, on Hopper.

#include "attention/narrow.cuh"
#include "attention/split_boxes.cuh"

// The warps that multiply go over a stretch. `ended` takes what a warp has of an item, after its last step there.
template <class Ended>
__device__ __forceinline__ void multiply_boxes(const SplitBoxesParams &params, const Line &line, const Stretch &stretch, char *slots, BoxBarriers &barriers,
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
                    hide_box(mask, p.pack, first, scores);
                }
                soften(factor, scores, most, total, o);
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
        ended(item, s, most, total, o);
    }
}

// An item that other blocks have keys of too.
struct BoxCut {
    Item item;
    u32 opening, closing;   // blocks

    // A block's own place: for the item that starts before its stretch, or with it, and for the one that starts in it.
    __device__ __forceinline__ f32 *part(const SplitBoxesParams &p, u32 block, u32 each) const {
        u32 second = item.start > block * each ? 1 : 0, most_rows = p.heads * u32(p.common.q_len) * p.common.pack;
        return p.parts + u64(block * 2 + second) * most_rows * PART_ROW;
    }
};

// Every four columns of an item's rows, over the threads that multiply: `joined` gives what its row has by its number in a part.
template <class Joined, class Use>
__device__ __forceinline__ void each_place(u32 rows, Joined joined, Use use) {
    for (u32 place = threadIdx.x; place < rows * (HEAD_DIM / 4); place += BOX_JOINED) {
        u32 row = place / (HEAD_DIM / 4), column = place % (HEAD_DIM / 4) * 4;
        use(row, column, joined(row, column));
    }
}

extern "C" __global__ void __launch_bounds__(BOX_JOINED + 32, 1) attention_split_boxes(const __grid_constant__ SplitBoxesParams params) {
    extern __shared__ __align__(1024) char slots[];
    __shared__ BoxBarriers barriers;
    __shared__ BoxCut cuts[2];   // items that others have keys of too
    __shared__ u32 before[2];    // blocks that were counted for them before this one
    const AttentionParams &p = params.common;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < BOX_SLOTS; i++) {
            mbarrier_init(&barriers.full[i], 1);
            mbarrier_init(&barriers.empty[i], BOX_WARPS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    // Blocks of the next launch may take the places of those that end here, and wait there as this one does.
    grid_launch_next();
    grid_wait();
    u32 warp = threadIdx.x / 32, shares = BOX_WARPS / params.heads;
    Line line = {u32(p.kv_heads) / params.heads, shares * BOX_KEYS};
    Turns turns(p, line, blockIdx.x, gridDim.x);
    BoxRing ring;
    if (warp == BOX_WARPS) {
        if (threadIdx.x % 32 == 0) {
            for (u32 turn = 0; turn <= turns.whole; turn++) {
                bring_boxes(params, line, turns.of(line, turn, blockIdx.x, gridDim.x), slots, barriers, ring);
            }
        }
        return;
    }
    auto write = [&](const Item &item, const Sequence &s, u32 row, u32 column, const Partial &sum) {
        u32 rows = u32(s.q_len) * p.pack, of_head = row % rows;
        finish(p, s, (item.group * params.heads + row / rows) * p.pack + of_head % p.pack, of_head / p.pack, i32(column), sum);
    };
    f32 *left = (f32 *)(slots + BOX_SLOTS * SLOT_BYTES);
    u32 cut_items = 0, each = turns.first.each, arrived = 0;
    auto join = [&](u32 which) {
        if (which >= cut_items || before[which] != cuts[which].closing - cuts[which].opening) {
            return;
        }
        BoxCut cut = cuts[which];
        constexpr u32 TOGETHER_PARTS = 8;   // so that their loads are under way together
        Sequence s = sequence_of(p, cut.item.batch);
        auto of_blocks = [&](u32 row, u32 column) {
            Partial sum = no_keys();
            for (u32 block = cut.opening; block <= cut.closing; block += TOGETHER_PARTS) {
                Partial some[TOGETHER_PARTS];
#pragma unroll
                for (u32 i = 0; i < TOGETHER_PARTS; i++) {
                    some[i] = block + i <= cut.closing ? partial_at(cut.part(params, block + i, each), row, column) : no_keys();
                }
#pragma unroll
                for (u32 i = 0; i < TOGETHER_PARTS; i++) {
                    sum.join(some[i]);
                }
            }
            return sum;
        };
        each_place(params.heads * u32(s.q_len) * p.pack, of_blocks, [&](u32 row, u32 column, const Partial &sum) { write(cut.item, s, row, column, sum); });
        if (threadIdx.x == 0) {
            params.arrivals[cut.opening] = 0;   // for the next launch
        }
    };
    for (u32 turn = 0; turn <= turns.whole; turn++) {
        Stretch stretch = turns.of(line, turn, blockIdx.x, gridDim.x);
        multiply_boxes(params, line, stretch, slots, barriers, ring,
                       [&](const Item &item, const Sequence &s, const f32(&most)[1][2], const f32(&total)[1][2], const f32(&o)[1][TILES][4]) {
            BoxCut cut = {item, item.start / each, (item.start + item.steps - 1) / each};
            u32 rows = u32(s.q_len) * p.pack;
            bool whole = stretch.begin <= item.start && item.start + item.steps <= stretch.end;
            f32 *part = cut.part(params, blockIdx.x, each);
            leave_rows(left + warp * rows * PART_ROW, rows, most, total, o);
            named_barrier_sync(1, BOX_JOINED);
            auto of_warps = [&](u32 row, u32 column) {
                Partial sum = no_keys();
                for (u32 share = 0; share < shares; share++) {
                    sum.join(partial_at(left, (row / rows * shares + share) * rows + row % rows, column));
                }
                return sum;
            };
            each_place(params.heads * rows, of_warps, [&](u32 row, u32 column, const Partial &sum) {
                if (whole) {
                    write(item, s, row, column, sum);
                    return;
                }
                *(float4 *)(part + row * PART_ROW + column) = sum.o;
                if (column == 0) {
                    *(float2 *)(part + row * PART_ROW + HEAD_DIM) = {sum.most, sum.total};
                }
            });
            if (!whole) {
                if (threadIdx.x == 0) {
                    cuts[cut_items] = cut;
                }
                cut_items++;
            }
            named_barrier_sync(1, BOX_JOINED);
        });
        // An answer takes microseconds while keys are under way, so that it is looked at a turn later, where there is one. The block that
        // counts last joins the parts in the order of the keys.
        if (turn == 0 && threadIdx.x < cut_items) {
            arrived = count_arrival_early(params.arrivals + cuts[threadIdx.x].opening);
        }
        if (turn == (turns.whole > 0 ? 1 : 0)) {
            if (threadIdx.x < cut_items) {
                fence_device();
                before[threadIdx.x] = arrived;
            }
            named_barrier_sync(1, BOX_JOINED);
            join(0);
            join(1);
        }
    }
}
