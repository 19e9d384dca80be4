// The lists of a block mask from a map of its blocks: a byte for each, as it lies on the device at the launch.
//
// Each block of threads takes a few rows, a warp each. Where their lists begin it counts itself, in the rows before: so that blocks
// wait for nobody, and the lists lie as the host's do, each row's behind that of the row before.
#pragma once

#include "attention/list_params.cuh"
#include "ptx/grid.cuh"
#include "ptx/special.cuh"

constexpr u32 LIST_WARPS = 8, LIST_THREADS = LIST_WARPS * 32;

// Bytes of a word that are not zero.
__device__ __forceinline__ u32 nonzero_bytes(u32 word) { return count_ones((((word & 0x7f7f7f7f) + 0x7f7f7f7f) | word) & 0x80808080); }

// Of bytes `begin` to `end` of the map, a share for each thread of the block.
__device__ __forceinline__ u32 count_share(const u32 *map, u64 begin, u64 end) {
    u32 count = 0;
#pragma unroll 4
    for (u64 at = begin / 4 + threadIdx.x; at < (end + 3) / 4; at += LIST_THREADS) {
        u32 word = map[at], from = at * 4 < begin ? u32(begin - at * 4) : 0, past = at * 4 + 4 > end ? u32(at * 4 + 4 - end) : 0;
        count += nonzero_bytes(word & 0xffffffffu << 8 * from & 0xffffffffu >> 8 * past);
    }
    return count;
}

__device__ __forceinline__ u32 sum_of_warp(u32 value) {
#pragma unroll
    for (u32 far = 16; far > 0; far /= 2) {
        value += shuffle_from(value, threadIdx.x % 32 ^ far);
    }
    return value;
}

extern "C" __global__ void __launch_bounds__(LIST_THREADS) attention_lists(const ListParams p) {
    // Dynamic: beside static memory the unit's other kernels could not have all that a block may use.
    extern __shared__ __align__(16) u32 lists_scratch[];
    u32 *before = lists_scratch, *listed = lists_scratch + LIST_WARPS;
    grid_launch_next();
    grid_wait();
    u32 groups = (p.q_blocks + LIST_WARPS - 1) / LIST_WARPS, pattern = blockIdx.x / groups, first_row = blockIdx.x % groups * LIST_WARPS;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = first_row + warp;
    u64 start = u64(pattern) * p.q_blocks * p.kv_blocks;
    const u8 *own = (const u8 *)p.map + start + u64(row) * p.kv_blocks;
    u32 mine = 0, width = row < p.q_blocks ? p.kv_blocks : 0;
    for (u32 first = 0; first < width; first += 32) {
        mine += count_ones(lanes_where(first + lane < width && own[first + lane] != 0));
    }
    u32 others = sum_of_warp(count_share((const u32 *)p.map, start, start + u64(first_row) * p.kv_blocks));
    if (lane == 0) {
        listed[warp] = mine;
        before[warp] = others;
    }
    __syncthreads();
    if (row >= p.q_blocks) {
        return;
    }
    u32 place = u32(start);
#pragma unroll
    for (u32 w = 0; w < LIST_WARPS; w++) {
        place += before[w] + (w < warp ? listed[w] : 0);
    }
    i32 *row_ptr = p.words + u64(pattern) * (p.q_blocks + 1) + row, *columns = p.words + u64(p.patterns) * (p.q_blocks + 1);
    i32 *kinds = columns + p.capacity;
    if (lane == 0) {
        row_ptr[0] = i32(place);
        if (row + 1 == p.q_blocks) {
            row_ptr[1] = i32(place + mine);
        }
    }
    for (u32 first = 0; first < width; first += 32) {
        u32 column = first + lane, byte = column < width ? own[column] : 0, there = lanes_where(byte != 0);
        if (byte != 0) {
            u32 to = place + count_ones(there & (1u << lane) - 1);
            columns[to] = i32(column);
            kinds[to] = byte == 2 ? -2 : -1;
        }
        place += count_ones(there);
    }
}
