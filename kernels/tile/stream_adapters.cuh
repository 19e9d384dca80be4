// What adapters add to a product of few rows, in the same launch: a warp group of its own works beside the stream of W and leaves what
// the product's warps multiply at their end, a step of mma for each adapter.
//
//   project   A few blocks compute h = x·V, each over a part of K, leave it in the workspace, in the second-level cache, and count.
//   decode    Each block decodes its own rows of U, of all adapters of the batch, into shared memory in 16 bits.
//   gather    Each block adds up h in the order of the parts, turns it by the core and leaves g in 16 bits.
//   add       The warps that hold the sums of the product multiply U by g. An adapter's products reach its own tokens' sums alone: they
//             are chosen, not multiplied by zero, so that values that are no numbers harm nobody else.
//
// f16 has few exponents: a power of two is taken out of each token's g and of each adapter's codebook, and comes back in f32. Blocks
// wait for each other, so the host starts as many as fit at once.
//
// Besides what stream_gemm.cuh wants the host defines RANK (16, 32, 64: at least that of the factors), PUBLISHERS and ADAPTER_BYTES.
#pragma once

#include "tile/codes.cuh"
#include "tile/power.cuh"
#include "tile/stream_gemm.cuh"
#include "linear/stream_adapted_params.cuh"

constexpr u32 ADAPTER_FIRST = STREAM_THREADS, ADAPTER_THREADS = 128, ADAPTER_WARPS = ADAPTER_THREADS / 32, ADAPTER_BARRIER = 2;
constexpr u32 RANK_STEPS = RANK / 16;
constexpr u32 WHOLE_WARP = 0xffffffffu;
constexpr u32 DECODED_AT_ONCE = 4;   // pieces of a warp whose codes are under way

static_assert(TOKENS <= 32, "a lane has a token");

struct AdapterSpace {
    // Rows of U of each adapter of the batch; 16-byte pieces of a row are swizzled. First, what the warps of a block that projects summed.
    alignas(128) element u[TOKENS][STREAM_ROWS * RANK];
    alignas(16) element g[TOKENS][RANK + 8];
    alignas(16) f32 h[TOKENS][RANK];
    f32 record[TOKENS][CODEBOOK_LEN];   // each adapter's codebook, scaled
    f32 record_scale[TOKENS];
    f32 factor[TOKENS];                 // of each token's products
    i32 adapter[TOKENS];                // of each place: adapters of the batch, in the order of their first tokens
    i32 place[TOKENS];                  // of each token; -1 without an adapter
    u32 places[TOKEN_BLOCKS];           // bit i: some of the eight tokens have place i
    u64 ready, taken;                   // mbarriers: a tile's rows of U and g are there; they have been read
};

static_assert(sizeof(AdapterSpace) <= ADAPTER_BYTES, "the host's size is another");
static_assert(sizeof(f32) * ADAPTER_WARPS * TOKENS * RANK <= sizeof(element) * TOKENS * STREAM_ROWS * RANK, "the parts take the place of U");

// Behind the stages and their barriers. One thread readies its barriers before the ring's constructor has everyone wait.
__device__ __forceinline__ AdapterSpace &adapter_space(char *shared) {
    static_assert(STREAM_STAGES * 24 <= 256, "barriers of the ring");
    char *tiles = shared + (1024 - shared_address(shared) % 1024) % 1024;
    AdapterSpace &space = *reinterpret_cast<AdapterSpace *>(tiles + STREAM_STAGES * STREAM_STAGE + 256);
    if (threadIdx.x == 0) {
        mbarrier_init(&space.ready, ADAPTER_THREADS);
        mbarrier_init(&space.taken, 8);
    }
    return space;
}

// In elements: where 16-byte piece `piece` of a row of U lies. Eight rows that ldmatrix reads are in different banks.
__device__ __forceinline__ u32 u_place(u32 row, u32 piece) { return row * RANK + (piece ^ row / (64 / RANK) % (RANK / 8)) * 8; }

// The part of the adapters in the epilogue of the product's warps.
struct StreamSums {
    static constexpr bool ADDS = true;
    AdapterSpace &space;
    u32 phase = 0;

    __device__ __forceinline__ void begin() { mbarrier_wait(&space.ready, phase); }

    __device__ __forceinline__ void end() {
        phase ^= 1;
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            mbarrier_arrive(&space.taken);
        }
    }

    // To a thread's four sums, as stream_outputs has them, of a warp's 16 rows from `inside` of the tile on.
    __device__ __forceinline__ void add(u32 inside, u32 block, f32 (&sum)[4]) const {
        u32 lane = threadIdx.x % 32, left = space.places[block];
        if (!left) {
            return;
        }
        u32 g[RANK_STEPS][2];
#pragma unroll
        for (u32 step = 0; step < RANK_STEPS; step++) {
            ldmatrix_x2(g[step], shared_address(&space.g[block * 8 + lane % 8][step * 16 + lane / 8 % 2 * 8]));
        }
        i32 place[2];
        f32 factor[2];
#pragma unroll
        for (u32 e = 0; e < 2; e++) {
            u32 token = block * 8 + lane % 4 * 2 + e;
            place[e] = space.place[token];
            factor[e] = space.factor[token];
        }
#pragma unroll 2
        for (; left; left &= left - 1) {
            i32 which = __ffs(left) - 1;
            f32 own[4] = {};
#pragma unroll
            for (u32 step = 0; step < RANK_STEPS; step++) {
                u32 a[4];
                ldmatrix_x4(a, shared_address(&space.u[which][u_place(inside + lane % 16, step * 2 + lane / 16)]));
                mma_m16n8k16<element>(own, a, g[step]);
            }
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                if (place[e % 2] == which) {
                    sum[e] += factor[e % 2] * own[e];
                }
            }
        }
    }
};

// Of the adapters' warps: adapters of the batch, and which tokens have them. Gives this lane's token's adapter and how many there are.
__device__ __forceinline__ i32 read_tokens(const LinearAdaptedParams &p, AdapterSpace &space, u32 &count) {
    u32 lane = threadIdx.x % 32, below = (1u << lane) - 1;
    // The adapters follow two counts.
    i32 adapter = lane < p.gemm.rows ? p.index[2 + lane] : -1;
    u32 same = __match_any_sync(WHOLE_WARP, adapter);
    u32 firsts = __ballot_sync(WHOLE_WARP, adapter >= 0 && (same & below) == 0);
    i32 place = adapter < 0 ? -1 : __popc(firsts & ((1u << (__ffs(same) - 1)) - 1));
    count = __popc(firsts);
    if (threadIdx.x < ADAPTER_FIRST + 32) {
        if (lane < TOKENS) {
            space.place[lane] = place;
        }
        if (firsts >> lane & 1) {
            space.adapter[place] = adapter;
        }
#pragma unroll
        for (u32 block = 0; block < TOKEN_BLOCKS; block++) {
            u32 places = __reduce_or_sync(WHOLE_WARP, adapter >= 0 && lane / 8 == block ? 1u << place : 0u);
            if (lane == 0) {
                space.places[block] = places;
            }
        }
    }
    return adapter;
}

// Two rows of V, in one column: mma's B takes neighbours along K together.
__device__ __forceinline__ u32 two_rows(const element *v, u32 rank) { return v[0].bits | u32(v[rank].bits) << 16; }

// Leaves part `own` of `parts` of h = x·V in the workspace and counts it. A lane takes 8 neighbouring elements of x as two steps of
// mma's A: the k index of mma may be any order of K, and V's rows follow it.
__device__ __forceinline__ void project_part(const LinearAdaptedParams &p, AdapterSpace &space, i32 adapter, u32 own, u32 parts) {
    // As many steps under way as registers hold.
    constexpr u32 TILES = TOKENS / 16, STEPS_AT_ONCE = RANK == 16 ? 2 : 1;
    u32 thread = threadIdx.x - ADAPTER_FIRST, lane = thread % 32, warp = thread / 32, rank = p.input.rank;
    i32 basis = adapter < 0 ? -1 : p.input.basis_of ? p.input.basis_of[adapter] : 0;
    // A lane's sums: of rows 8 apart, two neighbouring ranks of each eight.
    float2 *all = reinterpret_cast<float2 *>(&space.u), *mine = all + (warp * TOKENS + lane / 4) * RANK / 2 + lane % 4;
    u32 bare = ~__ballot_sync(WHOLE_WARP, basis >= 0);
#pragma unroll
    for (u32 i = 0; i < TILES * RANK / 4; i++) {
        u32 row = i / (RANK / 8) * 8, n = i % (RANK / 8);
        if (bare >> (row + lane / 4) & 1) {
            mine[row * RANK / 2 + n * 4] = make_float2(0.0f, 0.0f);
        }
    }
#pragma unroll 1
    for (u32 left = ~bare; left;) {
        i32 which = __shfl_sync(WHOLE_WARP, basis, __ffs(left) - 1);
        u32 tokens = __ballot_sync(WHOLE_WARP, basis == which);
        left &= ~tokens;
        const element *v = p.input.values + u64(which) * p.input.d * rank;
        f32 sum[TILES][RANK / 8][4] = {};
#pragma unroll STEPS_AT_ONCE
        for (u64 start = own * 128 + warp * 32; start < p.gemm.depth; start += parts * 128) {
            // K is whole eights.
            u64 k = start + lane % 4 * 8;
            bool inside = k < p.gemm.depth;
            uint4 x[TILES][2];
#pragma unroll
            for (u32 i = 0; i < 2 * TILES; i++) {
                u32 token = i * 8 + lane / 4;
                x[i / 2][i % 2] = make_uint4(0, 0, 0, 0);
                if (inside && token < p.gemm.rows) {
                    x[i / 2][i % 2] = *reinterpret_cast<const uint4 *>(p.gemm.x + token * p.gemm.x_stride + k);
                }
            }
            u32 b[2][RANK / 8][2];
#pragma unroll
            for (u32 i = 0; i < RANK / 2; i++) {
                u32 step = i % 2, half = i / 2 % 2, n = i / 4, column = n * 8 + lane / 4;
                bool there = inside && column < rank;
                b[step][n][half] = there ? two_rows(v + (k + step * 4 + half * 2) * rank + column, rank) : 0;
            }
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++) {
                uint4 low = x[tile][0], high = x[tile][1];
                const u32 a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
#pragma unroll
                for (u32 i = 0; i < RANK / 4; i++) {
                    mma_m16n8k16<element>(sum[tile][i / 2], a[i % 2], b[i % 2][i / 2]);
                }
            }
        }
        // A token belongs to one basis.
#pragma unroll
        for (u32 i = 0; i < TILES * RANK / 4; i++) {
            u32 tile = i / (RANK / 4), half = i / (RANK / 8) % 2, n = i % (RANK / 8), row = tile * 16 + half * 8;
            if (tokens >> (row + lane / 4) & 1) {
                mine[row * RANK / 2 + n * 4] = make_float2(sum[tile][n][2 * half], sum[tile][n][2 * half + 1]);
            }
        }
    }
    named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
#pragma unroll
    for (u32 at = thread; at < TOKENS * RANK; at += ADAPTER_THREADS) {
        f32 total = 0.0f;
#pragma unroll
        for (u32 from = 0; from < ADAPTER_WARPS; from++) {
            total += reinterpret_cast<const f32 *>(all)[from * TOKENS * RANK + at];
        }
        p.partial[u64(own) * TOKENS * RANK + at] = total;
    }
    __threadfence();
    named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
    if (thread == 0) {
        count_up(p.arrived);
    }
}

// The codebooks of the batch's adapters, a warp each. What the widths in use do not read need not hold numbers.
__device__ __forceinline__ void read_records(const LinearAdaptedParams &p, AdapterSpace &space, u32 count) {
    u32 thread = threadIdx.x - ADAPTER_FIRST, lane = thread % 32, bits = p.output.bits;
    bool each = bits == EACH_COLUMN, joint = bits >= 7;
    u32 first = each ? 0 : stage1(bits), end = each || bits == 4 ? 28 : bits == 3 ? 12 : bits == 2 ? 4 : 0;
#pragma unroll 4
    for (u32 place = thread / 32; place < count; place += ADAPTER_WARPS) {
        const f32 *record = p.output.codebooks + u64(u32(space.adapter[place])) * CODEBOOK_LEN;
        f32 value[2], greatest[2] = {0.0f, 0.0f};
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u32 at = i * 32 + lane;
            bool used = (at >= first && at < end) || (joint && at >= 28 && at < CODEBOOK_LEN);
            value[i] = used ? record[at] : 0.0f;
            // Of a stage each: what they add up to is no greater than both.
            greatest[0] = fmaxf(greatest[0], at < STAGE2 ? fabsf(value[i]) : 0.0f);
            greatest[1] = fmaxf(greatest[1], at < STAGE2 ? 0.0f : fabsf(value[i]));
        }
#pragma unroll
        for (u32 distance = 16; distance > 0; distance /= 2) {
            greatest[0] = fmaxf(greatest[0], __shfl_xor_sync(WHOLE_WARP, greatest[0], distance));
            greatest[1] = fmaxf(greatest[1], __shfl_xor_sync(WHOLE_WARP, greatest[1], distance));
        }
        u32 exponent = exponent_below(greatest[0] + greatest[1]);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            if (i * 32 + lane < CODEBOOK_LEN) {
                space.record[place][i * 32 + lane] = value[i] * inverse_power(exponent);
            }
        }
        if (lane == 0) {
            space.record_scale[place] = power(exponent);
        }
    }
}

// Four neighbouring fields of a column of codes, a byte or less each.
struct Fields {
    u32 packed, bits;

    __device__ __forceinline__ void fetch(const FactorParams &factor, i32 adapter, u32 j, u64 element) {
        packed = bits = 0;
        if (j >= factor.rank || element >= factor.d) {
            return;
        }
        const u32 *region = factor.codes + u64(u32(adapter)) * factor.words_per_adapter, *column;
        if (factor.bits == EACH_COLUMN) {
            u32 header = region[j];
            bits = header & 31;
            column = region + (header >> 5);
        } else {
            bits = factor.bits;
            column = region + u64(j) * ((factor.d + 31) / 32 * bits);
        }
        if (bits == 0) {
            return;
        }
        u64 bit = element * bits;
        const u32 *word = column + bit / 32;
        u32 shift = u32(bit % 32), low = word[0], high = shift + 4 * bits > 32 ? word[1] : 0;
        packed = __funnelshift_r(low, high, shift);
        if (bits == 16) {
            // A byte a stage, of which four and three bits are in use: made one byte.
            low = (low | low >> 4) & 0x007f007f;
            high = (high | high >> 4) & 0x007f007f;
            packed = ((low | low >> 8) & 0xffff) | (high | high >> 8) << 16;
        }
    }

    __device__ __forceinline__ f32 value(const f32 *record, u32 i) const {
        bool joint = bits >= 7;
        u32 step = bits == 16 ? 8 : bits, field = packed >> i * step & ((1u << (bits == 16 ? 7 : bits)) - 1);
        f32 first = record[stage1(bits) + (joint ? field & 15 : field)], second = joint ? record[STAGE2 + (field >> 4)] : 0.0f;
        return bits ? first + second : 0.0f;
    }
};

// A tile's rows of U, from `row` on. A warp takes 16 rows and 16 ranks of an adapter at a time, a lane 4 rows and 2 ranks of those.
__device__ __forceinline__ void decode_rows(const LinearAdaptedParams &p, AdapterSpace &space, u32 count, u64 row) {
    u32 thread = threadIdx.x - ADAPTER_FIRST, lane = thread % 32, quad = lane / 8;
    u32 down = (p.tile_rows + 15) / 16, each = down * RANK_STEPS, pieces = count * each;
#pragma unroll 1
    for (u32 begin = thread / 32; begin < pieces; begin += ADAPTER_WARPS * DECODED_AT_ONCE) {
        Fields fields[DECODED_AT_ONCE][2];
#pragma unroll
        for (u32 n = 0; n < DECODED_AT_ONCE; n++) {
            u32 piece = begin + n * ADAPTER_WARPS, place = piece / each, inside = piece % each;
            if (piece < pieces) {
                u64 first = row + inside / RANK_STEPS * 16 + quad * 4;
#pragma unroll
                for (u32 one = 0; one < 2; one++) {
                    fields[n][one].fetch(p.output, space.adapter[place], inside % RANK_STEPS * 16 + lane % 8 * 2 + one, first);
                }
            }
        }
#pragma unroll
        for (u32 n = 0; n < DECODED_AT_ONCE; n++) {
            u32 piece = begin + n * ADAPTER_WARPS, place = piece / each, inside = piece % each;
            if (piece < pieces) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    // Lanes begin at different rows, so that they store to different banks.
                    u32 own = (i + quad) % 4, at = inside / RANK_STEPS * 16 + quad * 4 + own, column = inside % RANK_STEPS * 2 + lane % 8 / 4;
                    f32 low = fields[n][0].value(space.record[place], own), high = fields[n][1].value(space.record[place], own);
                    *reinterpret_cast<u32 *>(&space.u[place][u_place(at, column) + lane % 4 * 2]) = narrow2<element>(low, high);
                }
            }
        }
    }
}

// Leaves g and each token's factor, once all parts of h are there. `waiters`: the blocks that come here.
__device__ __forceinline__ void gather(const LinearAdaptedParams &p, AdapterSpace &space, u32 parts, u32 waiters) {
    constexpr u32 SHARERS = ADAPTER_THREADS / TOKENS, EACH = RANK / SHARERS;
    u32 thread = threadIdx.x - ADAPTER_FIRST, rank = p.input.rank;
    // Fetched first: nothing of it depends on the other blocks.
    u32 token = thread / SHARERS, first = thread % SHARERS * EACH;
    i32 place = space.place[token], adapter = place < 0 ? -1 : space.adapter[place];
    f32 scaling = adapter < 0 ? 0.0f : p.scaling[adapter];
    if (thread == 0) {
        wait_for_count(p.arrived, parts);
        // The last to pass leaves the counter as it was found.
        if (count_up(p.arrived) == parts + waiters - 1) {
            *p.arrived = 0;
        }
    }
    named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
#pragma unroll 1
    for (u32 at = thread * 2; at < TOKENS * RANK; at += ADAPTER_THREADS * 2) {
        float2 total = make_float2(0.0f, 0.0f);
#pragma unroll 16
        for (u32 from = 0; from < parts; from++) {
            float2 part = __ldcg(reinterpret_cast<const float2 *>(p.partial + u64(from) * TOKENS * RANK + at));
            total.x += part.x;
            total.y += part.y;
        }
        *reinterpret_cast<float2 *>(&space.h[0][0] + at) = total;
    }
    named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
    f32 g[EACH], greatest = 0.0f;
#pragma unroll
    for (u32 e = 0; e < EACH; e++) {
        g[e] = p.core ? 0.0f : space.h[token][first + e];
    }
    if (p.core && adapter >= 0) {
        const f32 *core = p.core + u64(u32(adapter)) * rank * rank;
#pragma unroll 4
        for (u32 i = 0; i < rank; i++) {
            f32 h = space.h[token][i];
#pragma unroll
            for (u32 e = 0; e < EACH; e++) {
                g[e] += first + e < rank ? h * core[i * rank + first + e] : 0.0f;
            }
        }
    }
#pragma unroll
    for (u32 e = 0; e < EACH; e++) {
        greatest = fmaxf(greatest, fabsf(g[e]));
    }
#pragma unroll
    for (u32 distance = SHARERS / 2; distance > 0; distance /= 2) {
        greatest = fmaxf(greatest, __shfl_xor_sync(WHOLE_WARP, greatest, distance));
    }
    u32 exponent = exponent_below(greatest);
#pragma unroll
    for (u32 e = 0; e < EACH; e += 2) {
        u32 two = narrow2<element>(g[e] * inverse_power(exponent), g[e + 1] * inverse_power(exponent));
        *reinterpret_cast<u32 *>(&space.g[token][first + e]) = two;
    }
    if (thread % SHARERS == 0) {
        space.factor[token] = place < 0 ? 0.0f : scaling * power(exponent) * space.record_scale[place];
    }
}

// Of the adapters' warp group, beside the product.
template <bool SPLIT> __device__ __forceinline__ void stream_adapters(const LinearAdaptedParams &p, AdapterSpace &space) {
    StreamWork<false, SPLIT> work(p.gemm, p.tile_rows);
    u32 count;
    i32 adapter = read_tokens(p, space, count);
    named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
    // Where K is split, blocks of one rank alone may have outputs: the others project.
    constexpr bool HALF = SPLIT && TOKEN_BLOCKS <= 2;
    u32 blocks = HALF ? gridDim.x / STREAM_CLUSTER : gridDim.x, steps = u32((p.gemm.depth + 127) / 128);
    u32 parts = steps < PUBLISHERS ? steps : PUBLISHERS;
    parts = parts < blocks ? parts : blocks;
    u32 own = HALF ? blockIdx.x / STREAM_CLUSTER : blockIdx.x;
    if (count > 0 && own < parts && (!HALF || work.rank == 1)) {
        project_part(p, space, adapter, own, parts);
    }
    if (HALF && work.rank > 0) {
        return;
    }
    read_records(p, space, count);
    named_barrier_sync(ADAPTER_BARRIER, ADAPTER_THREADS);
    u32 phase = 1;
    bool gathered = count == 0;
    work.each([&](u64 row) {
        mbarrier_wait(&space.taken, phase);
        phase ^= 1;
        decode_rows(p, space, count, row);
        if (!gathered) {
            gather(p, space, parts, blocks);
            gathered = true;
        }
        mbarrier_arrive(&space.ready);
    });
}
