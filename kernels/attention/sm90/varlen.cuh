// Sequences of their own lengths, as they lie on the device: end to end, or with keys in pages.
//
// A tile's last rows may be those of the next sequence: their scores are hidden, or never written. Only V is multiplied by what is hidden, and
// whatever lies behind a sequence's keys may be infinite or no number: so the groups make those rows of V zero, in shared memory, in a tile's first step.
#pragma once

#include "attention/sm90/output.cuh"
#include "attention/sm90/producer.cuh"
#include "attention/varlen_params.cuh"

// What a thread says of its sequences: how many tiles of a head they have; and the keys of one.
struct alignas(8) SpanSize {
    i32 keys;
    u32 tiles;
};

// A sequence, and the tiles of a head in those that are taken before.
struct alignas(8) SpanTurn {
    u32 sequence, before;
};

// PLAN_SPANS, from the host: as many as a launch may have.
struct alignas(16) SpanPlan {
    SpanTurn turns[PLAN_SPANS + 1];   // the last one: all tiles
};

static_assert(sizeof(SpanPlan) <= PLAN_BYTES && TMA_SHARED_BYTES % alignof(SpanPlan) == 0, "what the host sets aside");
static_assert(BLOCK_THREADS * sizeof(SpanSize) <= RING_BYTES, "the ring has room to count in");

// The order of the tiles: by sequences, those of most keys first where a thread has no more than one; in each, in bands of heads, late queries first.
template <bool PAGED> struct Varlen {
    static constexpr bool BLOCK_SPARSE = false, SHARED_KEYS = false;
    const VarlenParams &all;
    const TmaParams &p;
    SpanPlan &plan;
    static constexpr int BOXES = PAGED && AHEAD ? BLOCK_KEYS / 16 : 1;
    // Of the thread that copies: its turn; the pages of a step's boxes, and the first one's row in its page.
    u32 at = 0;
    i32 looked_up[BOXES], first_inside;

    __device__ __forceinline__ Varlen(const VarlenParams &params, char *tiles) : all(params), p(params.tiles), plan(*(SpanPlan *)(tiles + TMA_SHARED_BYTES)) {}

    __device__ __forceinline__ Span span(u32 sequence) const {
        const i32 *index = p.common.index;
        if constexpr (PAGED) {
            return {i32(p.common.q_len), index[sequence], 0, 0};
        } else {
            const i32 *keys = index + p.common.batch + 1;
            i32 q = index[sequence], k = keys[sequence];
            return {index[sequence + 1] - q, keys[sequence + 1] - k, q, k};
        }
    }

    static __device__ __forceinline__ u32 tiles(const Span &span) { return u32(span.q_len + BLOCK_ROWS - 1) / BLOCK_ROWS; }

    template <Lists LISTED> __device__ __forceinline__ void prepare(const Stage &stage) const {
        SpanSize *sizes = (SpanSize *)stage.k;
        u32 count = u32(p.common.batch), each = (count + BLOCK_THREADS - 1) / BLOCK_THREADS, own = threadIdx.x;
        u32 first = own * each, end = first + each < count ? first + each : count;
        SpanSize size = {0, 0};
        for (u32 i = first; i < end; i++) {
            Span found = span(i);
            size = {found.kv_len, size.tiles + tiles(found)};
        }
        sizes[own] = size;
        __syncthreads();
        u32 before = 0, turn = 0, threads = count < BLOCK_THREADS ? count : BLOCK_THREADS;
#pragma unroll 4
        for (u32 other = 0; other < threads; other++) {
            SpanSize theirs = sizes[other];
            bool ahead = other < own;
            if (each == 1) {
                ahead = theirs.keys > size.keys || (theirs.keys == size.keys && ahead);
            }
            before += ahead ? theirs.tiles : 0;
            turn += ahead;
        }
        if (each == 1) {
            if (first < end) {
                plan.turns[turn] = {own, before};
            }
        } else {
            u32 passed = before;
            for (u32 i = first; i < end; i++) {
                plan.turns[i] = {i, passed};
                passed += tiles(span(i));
            }
        }
        // To the last thread, or to whoever has the last turn, all others are ahead.
        if (each == 1 ? first < end && turn + 1 == count : own + 1 == BLOCK_THREADS) {
            plan.turns[count] = {0, before + size.tiles};
        }
        // TMA writes next where was counted.
        fence_proxy_async();
        __syncthreads();
    }

    __device__ __forceinline__ u32 total() const { return plan.turns[p.common.batch].before * u32(p.common.heads); }

    // The work of a block of threads comes in rising order.
    template <Lists LISTED> __device__ __forceinline__ Block block(u32 work) {
        const AttentionParams &common = p.common;
        u32 heads = u32(common.heads);
        while (plan.turns[at + 1].before * heads <= work) {
            at++;
        }
        SpanTurn turn = plan.turns[at];
        Block block;
        block.span = span(turn.sequence);
        u32 own = tiles(block.span), inside = work - turn.before * heads;
        u32 most = all.band_keys / (block.span.kv_len > 0 ? u32(block.span.kv_len) : 1), group = heads / u32(common.kv_heads);
        u32 wide = (most > 0 ? most : 1) * group;
        wide = wide < heads ? wide : heads;
        u32 first = inside / (own * wide) * wide, width = heads - first < wide ? heads - first : wide;
        inside -= first * own;
        u32 late = inside / width;
        block.head = first + (inside - late * width);
        block.batch = PAGED ? turn.sequence : 0;
        block.first_row = i32(own - 1 - late) * BLOCK_ROWS;
        block.mask = mask_of(common, block.span.q_len, block.span.kv_len);
        i32 past = block.first_row + BLOCK_ROWS < block.span.q_len ? block.first_row + BLOCK_ROWS : block.span.q_len;
        i32 seen = block.mask.first(block.first_row), end = block.mask.end(past - 1);
        block.steps = {seen / BLOCK_KEYS, seen < end ? (end - 1) / BLOCK_KEYS : seen / BLOCK_KEYS - 1};
        u32 size = AHEAD ? cluster_size() : 1;
        if (AHEAD && CONSUMERS == 2 && size > 1) {
            block.steps = share_of(block.steps, cluster_rank(), size);
        }
        return block;
    }

    // A tile's sequence, as one lane reads it for all.
    __device__ __forceinline__ void published_span(Block &block, const Span &published) const {
        Span span = {};
        if (threadIdx.x % 32 == 0) {
            span = published;
        }
        block.span = {i32(shuffle_from(u32(span.q_len), 0)), i32(shuffle_from(u32(span.kv_len), 0)), i32(shuffle_from(u32(span.q_begin), 0)), 0};
        block.mask = mask_of(p.common, block.span.q_len, block.span.kv_len);
    }

    // Rows of V in a stage, from row `there` on, become zero for this group's product. What comes there next comes after the fence.
    static __device__ __forceinline__ void clear_values(char *values, i32 there, u32 group) {
        u32 bytes = u32(BLOCK_KEYS - there) * ROW_BYTES;
        char *rows = values + there * i32(ROW_BYTES);
#pragma unroll 1
        for (u32 place = threadIdx.x % 128 * 16; place < bytes; place += 128 * 16) {
#pragma unroll
            for (int panel = 0; panel < PANELS; panel++) {
                *(uint4 *)(rows + panel * BLOCK_KEYS * ROW_BYTES + place) = {0, 0, 0, 0};
            }
        }
        fence_proxy_async();
        named_barrier_sync(8 + group, 128);
    }

    // ---- pages ----

    // Reads where the boxes of a step lie, all at once, before there is room for its keys.
    __device__ __forceinline__ void look_up(const Values &step) {
        const AttentionParams &common = p.common;
        u32 rows = u32(common.page), first = u32(step.key) / rows;
        const i32 *page = common.index + common.batch + step.batch * common.pages + first;
        first_inside = step.key - i32(first * rows);
        i32 inside = first_inside, box = i32(all.box_keys);
#pragma unroll
        for (int i = 0; i < BOXES; i++) {
            if (i * box < step.there) {
                looked_up[i] = *page;
            }
            inside += box;
            if (inside == i32(rows)) {
                inside = 0;
                page++;
            }
        }
    }

    // Calls with each box of a step's keys: its first row in the step, the page in the pool, and the row there.
    template <class Bring> __device__ __forceinline__ void each_box(const Values &step, Bring bring) const {
        if constexpr (AHEAD) {
            each_looked_up(step, bring);
            return;
        }
        const AttentionParams &common = p.common;
        const i32 *pages = common.index + common.batch + step.batch * common.pages;
        i32 there = step.there < BLOCK_KEYS ? step.there : BLOCK_KEYS, page_rows = i32(common.page), page = i32(u32(step.key) / u32(page_rows));
        i32 inside = step.key - page * page_rows, box = i32(all.box_keys);
        for (i32 row = 0; row < there; row += box) {
            bring(row, pages[page], inside);
            inside += box;
            if (inside == page_rows) {
                inside = 0;
                page++;
            }
        }
    }

    // The same of the step that was looked up.
    template <class Bring> __device__ __forceinline__ void each_looked_up(const Values &step, Bring bring) const {
        i32 there = step.there < BLOCK_KEYS ? step.there : BLOCK_KEYS, inside = first_inside, box = i32(all.box_keys);
#pragma unroll
        for (int i = 0; i < BOXES; i++) {
            if (i * box < there) {
                bring(i * box, looked_up[i], inside);
            }
            inside += box;
            inside = inside == i32(p.common.page) ? 0 : inside;
        }
    }

    // Bytes of the boxes of a step, of `row_bytes` a row.
    __device__ __forceinline__ u32 brought(const Values &step, u32 row_bytes) const {
        i32 there = step.there < BLOCK_KEYS ? step.there : BLOCK_KEYS, box = i32(all.box_keys);
        return u32((there + box - 1) & -box) * row_bytes;
    }

    __device__ __forceinline__ void fetch_keys(const Stage &stage, u32 at, const Values &step) const {
        char *to = stage.k + at * K_BYTES;
        u64 *full = &stage.shared->k_ring.full[at], *rest = HALVED_KEYS<EVERY> ? &stage.shared->k_rest[at] : full;
        constexpr u32 MORE = (PANELS - 1) * ROW_BYTES + TAIL_BYTES - ROW_BYTES;
        mbarrier_arrive_expect(full, brought(step, ROW_BYTES));
        if (HALVED_KEYS<EVERY>) {
            mbarrier_arrive_expect(rest, brought(step, MORE));
        }
        each_box(step, [&](i32 row, i32 page, i32 inside) {
#pragma unroll
            for (int panel = 0; panel < PANELS; panel++) {
                bool tail = K_TAIL && panel == PANELS - 1;
                char *place = to + panel * BLOCK_KEYS * ROW_BYTES + row * i32(tail ? TAIL_BYTES : ROW_BYTES);
                tma_load_4d(place, tail ? &p.k_tail : &p.k, panel > 0 ? rest : full, panel * 64, inside, step.head, page);
            }
        });
    }

    __device__ __forceinline__ void fetch_values(char *to, u64 *full, const Values &step) const {
        mbarrier_arrive_expect(full, brought(step, PANELS * ROW_BYTES));
        each_box(step, [&](i32 row, i32 page, i32 inside) {
#pragma unroll
            for (int panel = 0; panel < PANELS; panel++) {
                tma_load_4d(to + panel * BLOCK_KEYS * ROW_BYTES + row * i32(ROW_BYTES), &p.v, full, panel * 64, inside, step.head, page);
            }
        });
    }

    // ---- output ----

    __device__ __forceinline__ void put(const Stage &stage, const Block &block, u32, Rows &rows, Output &o, u32 group, char *room) const {
        if (AHEAD && CONSUMERS == 2 && cluster_size() > 1) {
            keep_output((f32 *)stage.k, rows, o, group);
        } else {
            finish_output(p.common, block, rows, o, room);
        }
    }

    // The tile that the blocks of a cluster share.
    __device__ __forceinline__ void join(const Stage &stage) {
        if (blockIdx.x / cluster_size() < total()) {
            join_output(p.common, (const f32 *)stage.k, [this](u32 work) { return block<EVERY>(work); });
        }
    }
};

template <> constexpr bool IN_PAGES<Varlen<true>> = true;
