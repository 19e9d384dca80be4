// Rows that do not start on multiples of 16 bytes: eight elements across two words, and whole tensors copied to where rows do.
#pragma once

#include "ptx/types.cuh"

constexpr u32 REPACK_THREADS = 256;

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

// The two words that eight elements from `from` lie in: read where both lie between the addresses `begin` and `end`.
struct Straddled {
    uint4 low, high;
    bool read;
};

__device__ __forceinline__ Straddled read_straddled(const element *from, u64 begin, u64 end) {
    u64 at = u64(from) & ~u64(15), next = at + (u64(from) & 15 ? 16 : 0);
    Straddled words = {{}, {}, at >= begin && next + 16 <= end};
    if (words.read) {
        words.low = *(const uint4 *)at;
        words.high = *(const uint4 *)next;
    }
    return words;
}

// The eight elements, of which the last 8 - `count` become zero.
__device__ __forceinline__ uint4 eight_of(const Straddled &words, const element *from, i32 count) {
    u32 eight[4];
    if (words.read) {
        uint4 all = eight_across(words.low, words.high, u32(u64(from) & 15) / 2);
        eight[0] = all.x, eight[1] = all.y, eight[2] = all.z, eight[3] = all.w;
#pragma unroll
        for (int w = 0; w < 4; w++) {
            eight[w] = count >= 2 * w + 2 ? eight[w] : count > 2 * w ? eight[w] & 0xffff : 0;
        }
    } else {
#pragma unroll
        for (int w = 0; w < 4; w++) {
            u32 even = 2 * w < count ? from[2 * w].bits : 0, odd = 2 * w + 1 < count ? from[2 * w + 1].bits : 0;
            eight[w] = even | odd << 16;
        }
    }
    return {eight[0], eight[1], eight[2], eight[3]};
}

// to[rows, stride] = `depth` elements from start(row), and zeros up to the stride, a multiple of 8. What lies between the addresses
// `begin` and `end` may be read. All threads of all blocks along x: side by side on a row as far as it goes.
template <class Start> __device__ __forceinline__ void repack_rows(element *to, u64 rows, u64 depth, u64 stride, u64 begin, u64 end, Start start) {
    u32 chunks = u32(stride / 8), side = chunks < REPACK_THREADS ? chunks : REPACK_THREADS, high = REPACK_THREADS / side, own = threadIdx.x / side;
    if (own >= high) {
        return;
    }
    for (u64 row = u64(blockIdx.x) * high + own; row < rows; row += u64(gridDim.x) * high) {
        const element *from = start(row);
        for (u64 k = threadIdx.x % side * 8; k < stride; k += side * 8) {
            Straddled words = read_straddled(from + k, begin, end);
            *(uint4 *)(to + row * stride + k) = eight_of(words, from + k, k + 8 <= depth ? 8 : i32(depth - k));
        }
    }
}
