// One launch in place of the two of sgmv.cu: what a block has, and its way from x to y.
#pragma once

#include "codebook_gemm/sgmv_expand.cuh"
#include "codebook_gemm/sgmv_fused_params.cuh"

static_assert(RANK == 16 && WIDTH == 7 && SPREAD, "the form of codes that it is made for");

constexpr u32 SGMV_FUSED_HELD = 6;    // groups of columns that a warp has in registers
constexpr u32 SGMV_FUSED_KEPT = 8;    // and in shared memory
constexpr u32 SGMV_FUSED_GROUPS = SGMV_FUSED_HELD + SGMV_FUSED_KEPT;
constexpr u32 UNDER_WAY = 2;     // tiles of x

static_assert(SGMV_FUSED_HELD % 2 == 0 && SGMV_FUSED_KEPT % 2 == 0, "groups are taken in pairs");

// How often a block looks for what others tell before it takes them for blocks that have not begun.
#ifdef TRIFUSE_DEBUG
constexpr u32 TRIES = 1 << 8;
#else
constexpr u32 TRIES = 1 << 16;
#endif

// From one row of a warp's codes to the next, in words: of four rows that are two ranks apart, eight words lie in different banks.
constexpr u32 OWN_PITCH = (SGMV_FUSED_GROUPS * WIDTH + 7) / 8 * 8 + 4;
constexpr u32 FRAGMENT = 32 * 8;   // words of a group that is decoded
constexpr u32 OWN_WORDS = OWN_PITCH * RANK > SGMV_FUSED_KEPT * FRAGMENT ? OWN_PITCH * RANK : SGMV_FUSED_KEPT * FRAGMENT;

// A part's adapter, as Record::fetch and fill_spread know adapters.
struct OneAdapter {
    u32 segments;
    i32 segment_adapter[1];
    f32 segment_scale[1];
};

struct SgmvFusedSpace {
    // Each lane has a bank of its own. Once all is decoded: what warps summed of x·V, of as many tiles as there is room for.
    alignas(128) u8 table[MOST_PARTS][128 * 128];
    // Of a warp: codes, and then what it decoded.
    alignas(128) u32 own[WARPS][OWN_WORDS];
    union {
        alignas(128) element v[STAGE * RANK];
        // Once x·V is summed.
        struct {
            f32 h[MOST_PARTS][ROWS][RANK];
            element g[MOST_PARTS][ROWS][G_STRIDE];
        };
    };
    f32 scale[MOST_PARTS][ROWS];
    OneAdapter adapter[MOST_PARTS];
    u64 arrived[WARPS];
    u32 missing;    // whether something was not told in time
    u32 bare;       // whether a token has no adapter
    Piece piece;

    // What each warp summed, of a tile.
    __device__ __forceinline__ Parts &parts(u32 tile) { return reinterpret_cast<Parts *>(table)[tile]; }
};

constexpr u32 TILES_AT_ONCE = sizeof(SgmvFusedSpace::table) / sizeof(Parts);

static_assert(sizeof(SgmvFusedSpace) <= SGMV_FUSED_BYTES, "the host has too little room for it");

// ---- x·V ----

// Where eight elements of a row of V lie: eight rows of 32 bytes fill all banks.
__device__ __forceinline__ u32 v_place(u32 row, u32 half) { return row * RANK + (half ^ (row >> 2 & 1)) * 8; }

// As fetch_v. AT_ONCE: how many 16 bytes a thread asks for in a row.
template <u32 AT_ONCE> __device__ __forceinline__ void fetch_share(const TileParams &p, u32 begin, u32 end, element *v) {
#pragma unroll AT_ONCE
    for (u32 i = 0; i < STAGE * 2 / THREADS; i++) {
        u32 piece = i * THREADS + threadIdx.x, k = piece / 2, half = piece % 2;
        bool inside = begin + k < end && half * 8 < p.input.rank;
        const element *from = inside ? p.input.values + u64(begin + k) * p.input.rank + half * 8 : p.input.values;
        cp_async_16(shared_address(&v[v_place(slot(k), half)]), from, inside ? 16 : 0);
    }
    cp_async_commit();
}

// sum += x·V over the warp's 32 rows of a step: as multiply_v.
__device__ __forceinline__ void multiply_step(const uint4 (&x)[2], const element *v, u32 step, f32 (&sum)[RANK / 8][4]) {
    u32 lane = threadIdx.x % 32, row = step * STEP + threadIdx.x / 32 * 32 + lane % 16;
    const u32 words[2][4] = {{x[0].x, x[0].y, x[0].z, x[0].w}, {x[1].x, x[1].y, x[1].z, x[1].w}};
#pragma unroll
    for (u32 s = 0; s < 2; s++) {
        const u32 a[4] = {words[0][2 * s], words[1][2 * s], words[0][2 * s + 1], words[1][2 * s + 1]};
        u32 both[4];
        ldmatrix_x4_transposed(both, shared_address(&v[v_place(row + s * 16, lane / 16)]));
        const u32 left[2] = {both[0], both[1]}, right[2] = {both[2], both[3]};
        mma_m16n8k16<element>(sum[0], a, left);
        mma_m16n8k16<element>(sum[1], a, right);
    }
}

// A share of d_in.
struct Share {
    u32 number, begin, end;

    __device__ __forceinline__ Share(const TileParams &p, const SgmvFusedPlan &plan, u32 number) : number(number) {
        u32 all = u32(p.input.d);
        begin = number * plan.each;
        end = begin + plan.each < all ? begin + plan.each : all;
    }

};

// Where in x a lane's part of mma's A starts, over a share of d_in; negative where there is none.
struct Places {
    i64 row[2];

    __device__ __forceinline__ Places(const TileParams &p, const Share &share, const i32 (&token)[2]) {
        u32 own = share.begin + threadIdx.x / 32 * 32 + threadIdx.x % 4 * 8;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            row[half] = token[half] >= 0 && own < share.end ? i64(u64(u32(token[half])) * p.x_stride + own) : -1;
        }
    }

    // What is multiplied in a step.
    __device__ __forceinline__ void fetch(const TileParams &p, const Share &share, u32 step, uint4 (&to)[2]) const {
        bool inside = step == 0 || share.begin + step * STEP + threadIdx.x / 32 * 32 + threadIdx.x % 4 * 8 < share.end;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            to[half] = row[half] >= 0 && inside ? *reinterpret_cast<const uint4 *>(p.x + row[half] + step * STEP) : make_uint4(0, 0, 0, 0);
        }
    }

    __device__ __forceinline__ void fetch(const TileParams &p, const Share &share, Inputs &inputs) const {
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            fetch(p, share, step, inputs.x[step]);
        }
    }
};

// The tokens of a lane's two rows of those from `place` on, up to `end`, in the index's order.
__device__ __forceinline__ void tokens_at(const TileParams &p, u32 place, u32 end, i32 (&token)[2]) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 at = place + threadIdx.x % 32 / 4 + 8 * half;
        token[half] = at < end ? p.index[2 + p.tokens + at] : -1;
    }
}

// Tells a tile's sums of a share, that of each warp being there. `clear`: what was told before the launch, if not null.
__device__ __forceinline__ void publish_sums(const TileParams &p, const Parts &parts, u32 share, u32 place, u32 end, f32 *published, f32 *clear) {
    f32 h[1];
    sum_parts<WARPS>(parts, h);
    u32 row = place + threadIdx.x / 16;
    if (row < end) {
        u64 at = (u64(share) * p.tokens + row) * RANK + threadIdx.x % 16;
        publish(published + at, h[0]);
        if (clear) {
            clear[at] = 0.0f;
        }
    }
}

// ---- codes ----

// The fields of a lane's four columns of a group, for each of its four ranks: see decode_group.
__device__ __forceinline__ void fetch_fields(const u32 *rows, u32 group, u32 (&fields)[4]) {
    u32 field = threadIdx.x % 32 / 4 * 4;
    rows += first_rank() * OWN_PITCH + group * WIDTH + field * WIDTH / 32;
#pragma unroll
    for (u32 n = 0; n < 4; n++) {
        const u32 *words = rows + rank_step(n) * OWN_PITCH;
        fields[n] = __funnelshift_r(words[0], words[1], field * WIDTH);
    }
}

__device__ __forceinline__ void decode_fields(const u32 (&fields)[4], const Spread &values, u32 (&b)[4][2]) {
#pragma unroll
    for (u32 pair = 0; pair < 2; pair++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            b[i][pair] = values.value(fields[2 * pair], i * WIDTH, WIDTH) | values.value(fields[2 * pair + 1], i * WIDTH, WIDTH) << 16;
        }
    }
}

// The groups of one part that a warp has: neighbours, from `first` of the part on.
struct Stretch {
    bool second;    // which part
    u32 first, held;

    // As few groups a warp as can be.
    __device__ __forceinline__ explicit Stretch(const Part (&parts)[MOST_PARTS]) {
        u32 warp = threadIdx.x / 32, before = parts[0].groups, behind = parts[1].groups, each = (before + behind + WARPS - 1) / WARPS, firsts = 0;
#pragma unroll 1
        for (; each > 0; each++) {
            firsts = (before + each - 1) / each;
            if (firsts <= WARPS && behind <= (WARPS - firsts) * each) {
                break;
            }
        }
        second = warp >= firsts;
        u32 groups = second ? behind : before, warps = second ? WARPS - firsts : firsts;
        each = warps > 0 ? (groups + warps - 1) / warps : 0;
        first = (second ? warp - firsts : warp) * each;
        held = first < groups ? (groups - first < each ? groups - first : each) : 0;
    }
};

// Asks for the codes of a warp's groups. Gives how many words of a row come before the first.
__device__ __forceinline__ u32 stage_own(const FactorParams &factor, const Part &part, const Stretch &stretch, u32 *own, u64 *arrived) {
    u32 lane = threadIdx.x % 32, column = u32((factor.d + 31) / 32) * WIDTH, start = (part.first + stretch.first) * WIDTH, skew = start % 4;
    if (stretch.held > 0) {
        u32 bytes = (skew + stretch.held * WIDTH + 3) / 4 * 16;
        // What was here before has been read and written by ordinary means.
        fence_proxy_async();
        if (lane == 0) {
            mbarrier_arrive_expect(arrived, factor.rank * bytes);
        }
        __syncwarp();
        if (lane < factor.rank) {
            const u32 *region = factor.codes + u64(part.adapter) * factor.words_per_adapter;
            bulk_load(own + lane * OWN_PITCH, region + lane * column + start - skew, bytes, arrived);
        }
    }
    return skew;
}

// Decodes all of a warp's groups, the codes being there: the first to registers, the others to where the codes were.
__device__ __forceinline__ void decode_own(u32 *own, u32 skew, u32 held, const Spread &values, u32 (&decoded)[SGMV_FUSED_HELD][4][2]) {
    // Two groups at a time, of which the second may not be there: what one waits for, the other hides.
    u32 fields[SGMV_FUSED_GROUPS][4];
#pragma unroll
    for (u32 k = 0; k < SGMV_FUSED_GROUPS; k += 2) {
        if (k < held) {
            fetch_fields(own + skew, k, fields[k]);
            fetch_fields(own + skew, k + 1, fields[k + 1]);
        }
    }
    __syncwarp();
#pragma unroll
    for (u32 k = SGMV_FUSED_HELD; k < SGMV_FUSED_GROUPS; k += 2) {
        if (k < held) {
            u32 b[2][4][2];
            decode_fields(fields[k], values, b[0]);
            decode_fields(fields[k + 1], values, b[1]);
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                uint4 *to = reinterpret_cast<uint4 *>(own + (k + i - SGMV_FUSED_HELD) * FRAGMENT) + threadIdx.x % 32;
                to[0] = make_uint4(b[i][0][0], b[i][0][1], b[i][1][0], b[i][1][1]);
                to[32] = make_uint4(b[i][2][0], b[i][2][1], b[i][3][0], b[i][3][1]);
            }
        }
    }
#pragma unroll
    for (u32 k = 0; k < SGMV_FUSED_HELD; k += 2) {
        if (k < held) {
            decode_fields(fields[k], values, decoded[k]);
            decode_fields(fields[k + 1], values, decoded[k + 1]);
        }
    }
}

// ---- from h to g ----

// The first threads of a block: four columns of a row of a part each.
struct Quarter {
    u32 part, row, number;
    bool any;

    __device__ __forceinline__ Quarter() : part(threadIdx.x / (4 * ROWS)), row(threadIdx.x / 4 % ROWS), number(threadIdx.x % 4), any(part < MOST_PARTS) {}

    // s of the part's adapter or of the token, for the rows from `first` on.
    __device__ __forceinline__ f32 scaling(const TileParams &p, const Part (&parts)[MOST_PARTS], u32 first) const {
        if (!any || first + row >= parts[part].count) {
            return 0.0f;
        }
        return p.scaling[p.scaled_by_token ? p.index[2 + p.tokens + parts[part].start + first + row] : parts[part].adapter];
    }

    // The sums of all shares, in their order. False where they were not told in time.
    __device__ __forceinline__ bool poll(const f32 *published, u64 tokens, u32 place, f32 (&h)[4]) const {
        const float4 *from = reinterpret_cast<const float4 *>(published + u64(place) * RANK) + number;
        float4 part[SHARES];
        bool polled = false;
#pragma unroll 1
        for (u32 tries = 0; !polled && tries < TRIES; tries++) {
            polled = true;
#pragma unroll
            for (u32 share = 0; share < SHARES; share++) {
                polled = poll_16(from + share * tokens * (RANK / 4), part[share]) & polled;
            }
        }
#pragma unroll
        for (u32 share = 0; share < SHARES; share++) {
            h[0] += part[share].x;
            h[1] += part[share].y;
            h[2] += part[share].z;
            h[3] += part[share].w;
        }
        return polled;
    }

    // As apply_core.
    __device__ __forceinline__ void apply(const TileParams &p, i32 adapter, bool there, f32 scaling, f32 (&h)[4], SgmvFusedSpace &space) const {
        if (p.core) {
            *reinterpret_cast<float4 *>(&space.h[part][row][number * 4]) = make_float4(h[0], h[1], h[2], h[3]);
            h[0] = h[1] = h[2] = h[3] = 0.0f;
            __syncwarp();
            if (there && number * 4 < p.input.rank) {
                const f32 *core = p.core + u64(adapter) * p.input.rank * p.input.rank + number * 4;
#pragma unroll 4
                for (u32 i = 0; i < p.input.rank; i++) {
                    float4 four = *reinterpret_cast<const float4 *>(core + i * p.input.rank);
                    f32 one = space.h[part][row][i];
                    h[0] += one * four.x;
                    h[1] += one * four.y;
                    h[2] += one * four.z;
                    h[3] += one * four.w;
                }
            }
        }
        f32 greatest = fmaxf(fmaxf(fabsf(h[0]), fabsf(h[1])), fmaxf(fabsf(h[2]), fabsf(h[3])));
#pragma unroll
        for (u32 distance = 2; distance > 0; distance /= 2) {
            greatest = fmaxf(greatest, __shfl_xor_sync(ALL_LANES, greatest, distance));
        }
        u32 exponent = exponent_below(greatest);
        f32 inverse = inverse_power(exponent);
        *reinterpret_cast<uint2 *>(&space.g[part][row][number * 4]) =
            make_uint2(narrow2<element>(h[0] * inverse, h[1] * inverse), narrow2<element>(h[2] * inverse, h[3] * inverse));
        if (number == 0) {
            space.scale[part][row] = scaling * power(exponent);
        }
    }
};

// Of eight of a part's tokens, what a lane stores: four columns of two of them, in each group of a warp.
struct Outputs {
    u32 g[2];
    element *to[2];
    bool there[2];
    f32 scale[2];

    // `token`: those of the lane's two.
    __device__ __forceinline__ Outputs(const TileParams &p, const SgmvFusedSpace &space, bool second, u32 first, const i32 (&token)[2], u32 group) {
        u32 lane = threadIdx.x % 32;
        const element *row = space.g[second][first + lane / 4];
        g[0] = *reinterpret_cast<const u32 *>(row + lane % 4 * 2);
        g[1] = *reinterpret_cast<const u32 *>(row + lane % 4 * 2 + 8);
#pragma unroll
        for (u32 e = 0; e < 2; e++) {
            there[e] = token[e] >= 0;
            to[e] = p.y + u64(u32(token[e])) * p.y_stride + group * GROUP + lane / 4 * 4;
            scale[e] = space.scale[second][first + lane % 4 * 2 + e] * space.adapter[second].segment_scale[0];
        }
    }

    // The factor's columns are the rows of the product and the tokens its columns, of which there are few.
    __device__ __forceinline__ void multiply(const u32 (&b)[4][2], u32 (&words)[2][2]) const {
        f32 sum[2][4] = {};
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 columns[4] = {b[2 * i][0], b[2 * i + 1][0], b[2 * i][1], b[2 * i + 1][1]};
            mma_m16n8k16<element>(sum[i], columns, g);
        }
#pragma unroll
        for (u32 e = 0; e < 2; e++) {
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                words[e][i] = narrow2<element>(scale[e] * sum[i][e], scale[e] * sum[i][2 + e]);
            }
        }
    }

    // Groups k and k + 1 of the warp, of which the second may not be there.
    __device__ __forceinline__ void store_two(u32 k, u32 held, const u32 (&b)[2][4][2]) const {
        u32 words[2][2][2];
        multiply(b[0], words[0]);
        multiply(b[1], words[1]);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
#pragma unroll
            for (u32 e = 0; e < 2; e++) {
                if (there[e] && k + i < held) {
                    *reinterpret_cast<uint2 *>(to[e] + (k + i) * GROUP) = make_uint2(words[i][e][0], words[i][e][1]);
                }
            }
        }
    }
};
