// Eight neighbouring columns of a row of 16-bit outputs, which are 16 bytes: from sums to y.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/types.cuh"

// 16 bits in each half.
__device__ __forceinline__ f32 low_half(u32 both) { return widen(element{u16(both)}); }
__device__ __forceinline__ f32 high_half(u32 both) { return widen(element{u16(both >> 16)}); }

// In one instruction. `add`: to `before`, which is what is there.
__device__ __forceinline__ void store_columns(element *to, const f32 (&value)[8], bool add, const uint4 &before) {
    const u32 words[4] = {before.x, before.y, before.z, before.w};
    u32 made[4];
#pragma unroll
    for (u32 e = 0; e < 4; e++) {
        f32 low = value[2 * e], high = value[2 * e + 1];
        made[e] = narrow2<element>(add ? low_half(words[e]) + low : low, add ? high_half(words[e]) + high : high);
    }
    store_16(to, make_uint4(made[0], made[1], made[2], made[3]));
}

// One by one, as many as there are `left`: rows start anywhere.
__device__ __forceinline__ void store_columns(element *to, const f32 (&value)[8], bool add, u64 left) {
#pragma unroll
    for (u32 e = 0; e < 8; e++) {
        if (e < left) {
            to[e] = narrow<element>(add ? widen(to[e]) + value[e] : value[e]);
        }
    }
}
