// Listed rows cut into parts of at most `length` steps, the longest taken first.
//
// Every block of threads looks at the lists for itself, as they lie on the device. Where no row is to be cut, and none would keep others
// waiting, that is all: tiles are taken as `sm90` takes them. Else each makes the same plan: a counting sort of the rows by the length
// of their parts. So there is no launch more, and no block waits for another. How a row is cut depends on its own length and on
// `length`, which the host takes from the operation's shape: its output has the same bits whatever the other rows list.
//
// What a warp summed over a part of its 16 rows goes to device memory as its registers hold it. The warp that comes last to those rows
// joins the parts in the order of the keys, and writes the output: warps wait for nobody here either.
#pragma once

#include "attention/sm90/output.cuh"
#include "attention/block_sparse_params.cuh"

constexpr u32 RUN = BLOCK_THREADS / 32;    // warps of a block; and what a lane adds up of the threads of a block
constexpr u32 KINDS = RUN - 1;             // of lengths, told apart no closer than that: a warp for each, and one for the slots
constexpr u32 PART_WARPS = CONSUMERS * 4;
constexpr u32 UNLIKE = 4;                  // steps that the length of a row differs from the first one's, for a plan to be worth its time

// One part of a row.
struct alignas(8) Part {
    u16 row;            // of all patterns
    u16 index, count;   // which of the row's parts, and how many there are
    u16 slot;           // of the row's first part, where there are several
};

// PLAN_PARTS, from the host: as many as the lists may have.
struct alignas(16) PartPlan {
    u32 wanted[RUN];         // what the rows say that each warp looked at; read 16 bytes at a time, in which nothing lies that changes meanwhile
    Part list[PLAN_PARTS];
    u32 totals[KINDS + 1];   // parts of each kind, longest first; then those that need a slot
    u32 total;               // none where there is no plan
};

// Of each kind, and of slots, the parts in the rows of each thread; then those in the rows before.
typedef u16 PartCells[KINDS + 1][BLOCK_THREADS];

static_assert(sizeof(PartPlan) <= PLAN_BYTES && TMA_SHARED_BYTES % alignof(PartPlan) == 0, "what the host sets aside");
static_assert(sizeof(PartCells) <= RING_BYTES, "the ring has room to count in");

// The order of the parts.
struct Parts {
    static constexpr bool BLOCK_SPARSE = true, SHARED_KEYS = false;
    const PartParams &all;
    const TmaParams &p;
    PartPlan &plan;

    __device__ __forceinline__ Parts(const PartParams &params, char *tiles) : all(params), p(params.tiles), plan(*(PartPlan *)(tiles + TMA_SHARED_BYTES)) {}

    __device__ __forceinline__ u32 copies() const { return u32(p.common.batch * p.common.heads) / p.common.patterns; }
    __device__ __forceinline__ bool planned() const { return plan.total != 0; }
    __device__ __forceinline__ u32 total() const { return planned() ? plan.total * copies() : p.work; }

    // How a row is cut: into how many parts, and of which kind the longest is.
    struct Cut {
        u32 count, kind;
    };

    template <Lists LISTED> __device__ __forceinline__ u32 steps_of(u32 row) const {
        if constexpr (LISTED == BLOCKS_OF_64) {
            return (u32(pair_plan(p.pairs, p.common.patterns, p.region).counts[row]) + 1) / 2;
        }
        // A pattern has one place more than rows. Most often there is one: no division then.
        const i32 *at = p.common.index + row + (p.common.patterns == 1 ? 0 : row / p.common.tiles);
        return u32(at[1] - at[0]);
    }

    template <Lists LISTED> __device__ __forceinline__ Cut cut(u32 row) const {
        u32 steps = steps_of<LISTED>(row), count = steps > all.length ? (steps + all.length - 1) / all.length : 1;
        return {count, KINDS - 1 - (steps + count - 1) / count * KINDS / (all.length + 1)};
    }

    // Whether some row is to be cut; or rows are of different lengths, and their order matters: blocks take several.
    template <Lists LISTED> __device__ __forceinline__ bool wants_plan(u32 rows) const {
        bool wanted = false;
        u32 usual = steps_of<LISTED>(0), apart = p.work > gridDim.x ? UNLIKE : ~0u;
        // Most lists have no more rows than a block threads: what is not fetched is not waited for.
#pragma unroll 1
        for (u32 row = threadIdx.x; row < rows; row += BLOCK_THREADS) {
            u32 steps = steps_of<LISTED>(row), off = steps > usual ? steps - usual : usual - steps;
            wanted |= steps > all.length || off >= apart;
        }
        wanted = any_lane(wanted);
        if (threadIdx.x % 32 == 0) {
            plan.wanted[threadIdx.x / 32] = wanted;
        }
        __syncthreads();
        u32 by = 0;
#pragma unroll
        for (u32 warp = 0; warp < RUN; warp++) {
            by |= plan.wanted[warp];
        }
        return by != 0;
    }

    template <Lists LISTED> __device__ __forceinline__ void prepare(const Stage &stage) const {
        PartCells &cells = *(PartCells *)stage.k;
        u32 rows = p.common.patterns * p.common.tiles, each = (rows + BLOCK_THREADS - 1) / BLOCK_THREADS;
        u32 first = threadIdx.x * each, end = first + each < rows ? first + each : rows, lane = threadIdx.x % 32;
        if (threadIdx.x == BLOCK_THREADS - 1) {
            tma_prefetch_map(&p.q);
            tma_prefetch_map(&p.k);
            tma_prefetch_map(&p.v);
        }
        if (LISTED == BLOCKS_OF_128 && threadIdx.x * 32 < p.common.capacity) {
            // What is read next, but for the longest of lists.
            prefetch_line(block_columns(p.common) + threadIdx.x * 32);
            prefetch_line(block_kinds(p.common) + threadIdx.x * 32);
        }
        if (!wants_plan<LISTED>(rows)) {
            if (threadIdx.x == 0) {
                plan.total = 0;
            }
            return;
        }
        for (u32 kind = 0; kind <= KINDS; kind++) {
            cells[kind][threadIdx.x] = 0;
        }
        for (u32 row = first; row < end; row++) {
            Cut found = cut<LISTED>(row);
            cells[found.kind][threadIdx.x] += u16(found.count);
            cells[KINDS][threadIdx.x] += u16(found.count > 1 ? found.count : 0);
        }
        __syncthreads();
        u16 *own = cells[threadIdx.x / 32] + lane * RUN;
        u32 mine = 0;
        for (u32 i = 0; i < RUN; i++) {
            mine += own[i];
        }
        u32 up_to = mine;
#pragma unroll
        for (u32 far = 1; far < 32; far *= 2) {
            u32 below = shuffle_up(up_to, far);
            up_to += lane >= far ? below : 0;
        }
        mine = up_to - mine;
        for (u32 i = 0; i < RUN; i++) {
            u32 count = own[i];
            own[i] = u16(mine);
            mine += count;
        }
        if (lane == 31) {
            plan.totals[threadIdx.x / 32] = up_to;
        }
        __syncthreads();
        for (u32 row = first; row < end; row++) {
            Cut found = cut<LISTED>(row);
            u32 at = cells[found.kind][threadIdx.x], slot = cells[KINDS][threadIdx.x];
            cells[found.kind][threadIdx.x] += u16(found.count);
            cells[KINDS][threadIdx.x] += u16(found.count > 1 ? found.count : 0);
            for (u32 kind = 0; kind < found.kind; kind++) {
                at += plan.totals[kind];
            }
            for (u32 i = 0; i < found.count; i++) {
                plan.list[at + i] = {u16(row), u16(i), u16(found.count), u16(slot)};
            }
        }
        if (threadIdx.x == 0) {
            u32 total = 0;
            for (u32 kind = 0; kind < KINDS; kind++) {
                total += plan.totals[kind];
            }
            plan.total = total;
        }
        // TMA writes next where was counted.
        fence_proxy_async();
    }

    // A part, and for which of the heads and sequences that have its pattern.
    struct Place {
        Part part;
        u32 copy;
    };

    // In bands of heads whose keys fit L2 together, as tiles are. Of bands the narrow one comes first: in the last
    // there has to be enough to do beside its longest parts.
    __device__ __forceinline__ Place place(u32 work) const {
        u32 wide = all.band, all_bands = (copies() + wide - 1) / wide * wide, missing = all_bands - copies();
        u32 shifted = work + missing * plan.total, band = shifted / (plan.total * wide);
        u32 inside = band ? shifted - band * wide * plan.total : work, width = band ? wide : wide - missing;
        return {plan.list[inside / width], (band ? band * wide - missing : 0) + inside % width};
    }

    template <Lists LISTED> __device__ __forceinline__ Block block(u32 work) const {
        if (!planned()) {
            return block_of<LISTED>(p, work);
        }
        Place at = place(work);
        u32 pattern = at.part.row / p.common.tiles, head = at.copy * p.common.patterns + pattern;
        Block block;
        block.batch = head / u32(p.common.heads);
        block.head = head % u32(p.common.heads);
        block.first_row = i32(at.part.row % p.common.tiles) * BLOCK_ROWS;
        block.mask = mask_of(p.common, i32(p.common.q_len), i32(p.common.kv_len));
        if constexpr (LISTED == BLOCKS_OF_64) {
            block.steps = share_of({0, (pairs_of(p, block).count + 1) / 2 - 1}, at.part.index, at.part.count);
        } else {
            i32 last_row = block.first_row + BLOCK_ROWS < i32(p.common.q_len) ? block.first_row + BLOCK_ROWS - 1 : i32(p.common.q_len) - 1;
            block.steps = listed_steps(p.common, block, block.mask.first(block.first_row), block.mask.end(last_row), at.part.index, at.part.count);
        }
        return block;
    }

    // Leaves this warp's part; whether it was the last to come, and then has the sums of all.
    __device__ __forceinline__ bool join(const Place &at, Rows &rows, Output &o, u32 group) const {
        u32 lane = threadIdx.x % 32, warp = group * 4 + threadIdx.x % 128 / 32;
        u64 slot = u64(at.copy) * all.slots + at.part.slot;
        f32 *parts = p.parts + (slot * PART_WARPS + warp) * WARP_FLOATS + lane * 4, *own = parts + at.part.index * PART_WARPS * WARP_FLOATS;
        leave_sums(own, rows, o);
        __syncwarp();
        u32 *counter = p.arrivals + slot * PART_WARPS + warp, before = 0;
        if (lane == 0) {
            before = count_arrival(counter);
        }
        if (shuffle_from(before, 0) + 1 != at.part.count) {
            return false;
        }
        if (lane == 0) {
            *counter = 0;   // for the next launch
        }
        rows.most[0] = rows.most[1] = -infinity();
        rows.total[0] = rows.total[1] = 0.0f;
#pragma unroll 4
        for (u32 i = 0; i < at.part.count; i++) {
            float4 sums = *(const float4 *)(parts + i * PART_WARPS * WARP_FLOATS + HEAD_DIM / 8 * 128);
            rows.most[0] = fmaxf(rows.most[0], sums.x);
            rows.most[1] = fmaxf(rows.most[1], sums.y);
        }
        f32 base[2] = {rows.most[0] == -infinity() ? 0.0f : rows.most[0], rows.most[1] == -infinity() ? 0.0f : rows.most[1]};
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) {
            o[i] = 0.0f;
        }
#pragma unroll 1
        for (u32 i = 0; i < at.part.count; i++) {
            const f32 *part = parts + i * PART_WARPS * WARP_FLOATS;
            float4 sums = *(const float4 *)(part + HEAD_DIM / 8 * 128);
            f32 upper = exp2_fast(sums.x - base[0]), lower = exp2_fast(sums.y - base[1]);
            rows.total[0] += sums.z * upper;
            rows.total[1] += sums.w * lower;
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++) {
                float4 four = *(const float4 *)(part + n * 128);
                o[4 * n] += four.x * upper;
                o[4 * n + 1] += four.y * upper;
                o[4 * n + 2] += four.z * lower;
                o[4 * n + 3] += four.w * lower;
            }
        }
        return true;
    }

    __device__ __forceinline__ void put(const Stage &, const Block &block, u32 work, Rows &rows, Output &o, u32 group, char *) const {
        if (planned()) {
            Place at = place(work);
            if (at.part.count > 1 && !join(at, rows, o, group)) {
                return;
            }
        }
        write_output(p.common, block, rows, o);
    }
};
