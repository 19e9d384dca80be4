// All steps of all sequences and heads on one line, and the stretch of it that a block takes (stream-K, Osama et al., 2023, arXiv
// 2301.03598), whatever the lengths, which are read here.
#pragma once

#include "attention/sm80/tile.cuh"

// How the line is counted: groups of heads of a sequence, keys of a step, and the least steps of a stretch: shorter ones cost more to join than
// they save.
struct Line {
    u32 groups, keys, least;
};

// One sequence and one group of heads, on the line of all steps.
struct Item {
    u32 batch, group;
    u32 start, steps;
};

// The keys that the rows of a sequence see.
struct Span {
    i32 first, end;
};

__device__ __forceinline__ Span span_of(const AttentionParams &p, const Sequence &s) {
    ShortMask mask = mask_of(p, i32(s.q_len), i32(s.kv_len));
    return {mask.first(0), mask.end(i32(s.q_len) - 1)};
}

// A sequence without keys has one step too: its rows are to be written.
__device__ __forceinline__ u32 steps_of(const AttentionParams &p, const Line &line, u32 batch) {
    Span span = span_of(p, sequence_of(p, batch));
    return span.end > span.first ? (u32(span.end - span.first) + line.keys - 1) / line.keys : 1;
}

__device__ __forceinline__ bool varlen_or_paged(const AttentionParams &p) { return p.form == VARLEN || p.form == PAGED; }

__device__ __forceinline__ void to_next_item(const AttentionParams &p, const Line &line, Item &item) {
    item.start += item.steps;
    if (++item.group == line.groups) {
        item.group = 0;
        if (++item.batch < u32(p.batch) && varlen_or_paged(p)) {
            item.steps = steps_of(p, line, item.batch);
        }
    }
}

// A block's stretch of the line, and the item it starts in.
struct Stretch {
    u32 begin, end, each;
    Item item;
};

__device__ __forceinline__ Stretch cut(const Line &line, u32 block, u32 blocks, u32 total) {
    u32 each = (total + blocks - 1) / blocks;
    each = each > line.least ? each : line.least;
    u32 begin = block * each, end = begin + each < total ? begin + each : total;
    return {begin, end, each, {}};
}

// Every warp works it out for itself, a run of sequences a lane.
__device__ __forceinline__ Stretch varlen_stretch(const AttentionParams &p, const Line &line, u32 block, u32 blocks) {
    u32 lane = threadIdx.x % 32, batch = u32(p.batch), run = (batch + 31) / 32, first = lane * run, mine = 0;
#pragma unroll 4
    for (u32 i = 0; i < run; i++) {
        mine += first + i < batch ? line.groups * steps_of(p, line, first + i) : 0;
    }
    u32 up_to = mine;
#pragma unroll
    for (u32 far = 1; far < 32; far *= 2) {
        u32 below = shuffle_up(up_to, far);
        up_to += lane >= far ? below : 0;
    }
    Stretch stretch = cut(line, block, blocks, shuffle_from(up_to, 31));
    if (stretch.begin >= stretch.end) {
        return stretch;
    }
    u32 start = up_to - mine, at = first;
    bool here = stretch.begin >= start && stretch.begin < up_to;
    if (here) {
        for (u32 all = line.groups * steps_of(p, line, at); start + all <= stretch.begin; all = line.groups * steps_of(p, line, at)) {
            start += all;
            at++;
        }
    }
    u32 owner = first_lane(here);
    start = shuffle_from(start, owner);
    at = shuffle_from(at, owner);
    u32 steps = steps_of(p, line, at), group = (stretch.begin - start) / steps;
    stretch.item = {at, group, start + group * steps, steps};
    return stretch;
}

__device__ __forceinline__ Stretch stretch_of(const AttentionParams &p, const Line &line, u32 block, u32 blocks) {
    if (varlen_or_paged(p)) {
        return varlen_stretch(p, line, block, blocks);
    }
    u32 steps = steps_of(p, line, 0);
    Stretch stretch = cut(line, block, blocks, u32(p.batch) * line.groups * steps);
    u32 index = stretch.begin / steps;
    stretch.item = {index / line.groups, index % line.groups, index * steps, steps};
    return stretch;
}
