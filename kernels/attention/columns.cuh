// Columns of O that four lanes hold as the matrix product leaves them, gathered so that each lane writes 16 bytes.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/special.cuh"

// Of 32 columns of a row, lane t of four has columns 2t and the next of each eight, `own[n]` of the n-th. Each lane gets eight columns
// of its own.
__device__ __forceinline__ uint4 gather_eight(const u32 (&own)[4]) {
    u32 lane = threadIdx.x % 4, mine[4];   // mine[n] comes from lane n
#pragma unroll
    for (u32 turn = 0; turn < 4; turn++) {
        u32 other = lane ^ turn;
        u32 low = other & 1 ? own[1] : own[0], high = other & 1 ? own[3] : own[2];
        u32 got = __shfl_xor_sync(0xffffffffu, other & 2 ? high : low, turn);
#pragma unroll
        for (u32 n = 0; n < 4; n++) {
            mine[n] = other == n ? got : mine[n];
        }
    }
    return {mine[0], mine[1], mine[2], mine[3]};
}

// Columns `column` to `column` + 7 of a row that has those from `first` to `end`: those that there are. `aligned`: they start on a
// multiple of 16 bytes.
__device__ __forceinline__ void write_eight(element *to, uint4 eight, i32 column, i32 end, bool aligned, i32 first = 0) {
    if (aligned && column >= first && column + 8 <= end) {
        store_16(to + column, eight);
        return;
    }
    u32 words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int c = 0; c < 8; c++) {
        if (column + c >= first && column + c < end) {
            to[column + c].bits = u16(words[c / 2] >> c % 2 * 16);
        }
    }
}
