// What the warpgroups of `attention/sm90/intra_split.cu` share, and how what they summed over their steps becomes O.
#pragma once

#include "attention/sm90/output.cuh"

// From the host: GROUPS, warpgroups that share 64 rows.
constexpr u32 GROUP_THREADS = 128;
constexpr u32 OWN_BOXES = 2 * STAGES / GROUPS, OWN_BYTES = OWN_BOXES * K_BYTES;   // of a group's ring: K or V of a step each

static_assert(BLOCK_ROWS == 64 && PANELS == 1 && 2 * STAGES % GROUPS == 0, "a box is 64 elements wide");

struct IntraSplitRing {
    u64 full[OWN_BOXES], empty[OWN_BOXES];
};

struct IntraSplitBarriers {
    u64 q_full;
    IntraSplitRing rings[GROUPS];
};

static_assert(sizeof(IntraSplitBarriers) <= SHARED_TAIL, "what the host sets aside");

// What a group's steps came to, where its ring was: each thread's columns by the group that adds them up, and the maxima and sums of its rows.
constexpr u32 SHARE = HEAD_DIM / 8 / GROUPS;   // tiles of eight columns that a group adds up

struct IntraSplitPart {
    float4 columns[GROUPS][SHARE][GROUP_THREADS], sums[GROUP_THREADS / 4];
};

static_assert(SHARE > 0 && sizeof(IntraSplitPart) <= OWN_BYTES, "the ring has room for O");

__device__ __forceinline__ void leave_part(IntraSplitPart &part, Rows &rows, const Output &o) {
    u32 thread = threadIdx.x % GROUP_THREADS;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        rows.total[r] += shuffle_xor(rows.total[r], 1);
        rows.total[r] += shuffle_xor(rows.total[r], 2);
    }
    part.sums[thread / 4] = {rows.most[0], rows.most[1], rows.total[0], rows.total[1]};
#pragma unroll
    for (u32 i = 0; i < GROUPS * SHARE; i++) {
        part.columns[i / SHARE][i % SHARE][thread] = {o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]};
    }
}

// A group's columns of all parts, lane for lane as the products left them, and the maxima and sums of its rows over all keys.
__device__ __forceinline__ void add_parts(const char *rings, u32 group, Rows &rows, f32 (&columns)[SHARE][4]) {
    u32 thread = threadIdx.x % GROUP_THREADS;
    float4 sums[GROUPS], parts[GROUPS][SHARE];
#pragma unroll
    for (u32 g = 0; g < GROUPS; g++) {
        const IntraSplitPart &part = *(const IntraSplitPart *)(rings + g * OWN_BYTES);
        sums[g] = part.sums[thread / 4];
#pragma unroll
        for (u32 i = 0; i < SHARE; i++) {
            parts[g][i] = part.columns[group][i][thread];
        }
    }
    rows.most[0] = rows.most[1] = -infinity();
    rows.total[0] = rows.total[1] = 0.0f;
#pragma unroll
    for (u32 g = 0; g < GROUPS; g++) {
        rows.most[0] = fmaxf(rows.most[0], sums[g].x);
        rows.most[1] = fmaxf(rows.most[1], sums[g].y);
    }
    // A row that has seen nothing: its weights are 2^-infinity.
    f32 bases[2] = {rows.most[0] == -infinity() ? 0.0f : rows.most[0], rows.most[1] == -infinity() ? 0.0f : rows.most[1]};
#pragma unroll
    for (u32 g = 0; g < GROUPS; g++) {
        f32 weights[2] = {exp2_fast(sums[g].x - bases[0]), exp2_fast(sums[g].y - bases[1])};
        rows.total[0] += sums[g].z * weights[0];
        rows.total[1] += sums[g].w * weights[1];
#pragma unroll
        for (u32 i = 0; i < SHARE; i++) {
            columns[i][0] += parts[g][i].x * weights[0];
            columns[i][1] += parts[g][i].y * weights[0];
            columns[i][2] += parts[g][i].z * weights[1];
            columns[i][3] += parts[g][i].w * weights[1];
        }
    }
}

// Each group adds up some columns of all and writes them.
__device__ __forceinline__ void join_groups(const AttentionParams &p, const Block &block, Rows &rows, const Output &o, char *rings, u32 group) {
    // Nobody of the group reads its keys any more.
    named_barrier_sync(1 + group, GROUP_THREADS);
    leave_part(*(IntraSplitPart *)(rings + group * OWN_BYTES), rows, o);
    __syncthreads();
    f32 columns[SHARE][4] = {};
    add_parts(rings, group, rows, columns);
    f32 shares[2] = {rows.total[0] > 0.0f ? reciprocal_fast(rows.total[0]) : 0.0f, rows.total[1] > 0.0f ? reciprocal_fast(rows.total[1]) : 0.0f};
    i32 first = i32(8 * SHARE * group + threadIdx.x % 4 * 2);
    element *to = p.o + block.batch * p.o_batch + u64(rows.row[0]) * p.o_token + block.head * p.o_head + first;
    u64 below = 8 * p.o_token;
    bool in_twos = ((u64(to) | below * 2 | u64(p.head_dim) * 2) & 3) == 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (u32 i = 0; i < SHARE; i++) {
            i32 left = rows.row[r] < i32(p.q_len) ? p.head_dim - first - i32(i * 8) : 0;
            element *place = to + r * below + i * 8;
            u32 two = narrow2<element>(columns[i][2 * r] * shares[r], columns[i][2 * r + 1] * shares[r]);
            if (in_twos) {
                if (left > 0) {
                    *(u32 *)place = two;
                }
            } else {
                if (left > 0) {
                    place[0].bits = u16(two);
                }
                if (left > 1) {
                    place[1].bits = u16(two >> 16);
                }
            }
        }
        if (group == 0) {
            write_lse(p, block, rows, r, rows.total[r]);
        }
    }
}
