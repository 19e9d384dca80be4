// Rows that do not start on multiples of 16 bytes: eight elements across two words, and whole tensors copied to where rows do.
#pragma once

#include "ptx/types.cuh"

constexpr int REPACK_THREADS = 256;

// Eight 16-bit elements from number `first` (0 to 7) of the sixteen in `low` and `high`. No index is known, and no register array
// may be indexed: words move by four, two and one, then by half a word.
__device__ __forceinline__ uint4 eight_across(uint4 low, uint4 high, u32 first) {
    u32 words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 6; i++) {
        words[i] = first & 4 ? words[i + 2] : words[i];
    }
#pragma unroll
    for (int i = 0; i < 5; i++) {
        words[i] = first & 2 ? words[i + 1] : words[i];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        words[i] = first & 1 ? words[i] >> 16 | words[i + 1] << 16 : words[i];
    }
    return {words[0], words[1], words[2], words[3]};
}

// Eight elements from `from`, of which the last 8 - `count` become zero. Whole words are read where they lie in `begin` to `end`.
__device__ __forceinline__ uint4 load_eight(const element *from, i32 count, u64 begin, u64 end) {
    u64 at = u64(from) & ~u64(15);
    u32 first = u32(u64(from) & 15) / 2;
    uint4 eight;
    if (at >= begin && at + (first ? 32 : 16) <= end) {
        uint4 low = *(const uint4 *)at;
        eight = eight_across(low, first ? *(const uint4 *)(at + 16) : low, first);
    } else {
        u32 words[4];
#pragma unroll
        for (int w = 0; w < 4; w++) {
            u32 even = 2 * w < count ? from[2 * w].bits : 0, odd = 2 * w + 1 < count ? from[2 * w + 1].bits : 0;
            words[w] = even | odd << 16;
        }
        eight = {words[0], words[1], words[2], words[3]};
    }
    auto kept = [count](u32 word, i32 before) { return count >= before + 2 ? word : count > before ? word & 0xffff : 0; };
    return {kept(eight.x, 0), kept(eight.y, 2), kept(eight.z, 4), kept(eight.w, 6)};
}

// to[rows, stride] = `depth` elements from start(row), and zeros up to the stride, a multiple of 8. What lies between the addresses
// `begin` and `end` may be read. All threads of all blocks along x.
template <class Start> __device__ __forceinline__ void repack_rows(element *to, u64 rows, u64 depth, u64 stride, u64 begin, u64 end, Start start) {
    u64 chunks = stride / 8, all = rows * chunks;
    for (u64 chunk = u64(blockIdx.x) * REPACK_THREADS + threadIdx.x; chunk < all; chunk += u64(gridDim.x) * REPACK_THREADS) {
        u64 row = chunk / chunks, k = (chunk - row * chunks) * 8;
        i32 count = k + 8 <= depth ? 8 : i32(depth - k);
        *(uint4 *)(to + row * stride + k) = load_eight(start(row) + k, count, begin, end);
    }
}
