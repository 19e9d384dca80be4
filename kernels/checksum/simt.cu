// Checksums, a piece of a range a block: the words of the range, each times the multiplier of its place, modulo 2^64. Whole numbers are summed, in
// whatever order blocks come. The last block of a range finds the whole sum, and leaves zeros to the next launch.

#include "checksum/params.cuh"
#include "ptx/grid.cuh"

constexpr u32 THREADS = 256;
// Words that a thread reads at once.
constexpr u32 AT_ONCE = 8;

// What the word at a place counts times.
__device__ __forceinline__ u64 multiplier(u32 place) {
    constexpr u32 BITS = 0x7fffffffu;
    u32 low = place & BITS;
    low ^= low >> 16;
    low = low * 0x85ebca6bu & BITS;
    low ^= low >> 13;
    low = low * 0xc2b2ae35u & BITS;
    low ^= low >> 16;
    u32 high = low * 0x27d4eb2fu + 0x165667b1u;
    high ^= high >> 15;
    high *= 0x9e3779b1u;
    high ^= high >> 16;
    return u64(high & ~1u) << 32 | u64(low) << 2 | 1;
}

// Little-endian numbers of some bytes, wherever they begin.
__device__ __forceinline__ u32 bytes_at(const u8 *x, u32 count) {
    u32 word = 0;
    for (u32 at = 0; at < count; ++at) {
        word |= u32(x[at]) << 8 * at;
    }
    return word;
}

template <bool ALIGNED> __device__ __forceinline__ u32 word_at(const u8 *x, u64 place) {
    return ALIGNED ? ((const u32 *)x)[place] : bytes_at(x + 4 * place, 4);
}

// What this thread's words from `first` to `end` add to the sum.
template <bool ALIGNED> __device__ __forceinline__ u64 sum_words(const u8 *x, u64 first, u64 end) {
    u64 sum = 0, place = first + threadIdx.x;
    // All of them are under way before the first is counted.
    for (; place + (AT_ONCE - 1) * THREADS < end; place += AT_ONCE * THREADS) {
        u32 words[AT_ONCE];
#pragma unroll
        for (u32 at = 0; at < AT_ONCE; ++at) {
            words[at] = word_at<ALIGNED>(x, place + at * THREADS);
        }
#pragma unroll
        for (u32 at = 0; at < AT_ONCE; ++at) {
            sum += multiplier(u32(place) + at * THREADS) * words[at];
        }
    }
#pragma unroll 1
    for (; place < end; place += THREADS) {
        sum += multiplier(u32(place)) * word_at<ALIGNED>(x, place);
    }
    return sum;
}

// The sum of every thread's value, for the first thread.
__device__ __forceinline__ u64 block_total(u64 value, u64 *scratch) {
    scratch[threadIdx.x] = value;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            scratch[threadIdx.x] += scratch[threadIdx.x + half];
        }
        __syncthreads();
    }
    u64 sum = scratch[0];
    // The next use must not overwrite what others still read.
    __syncthreads();
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) checksum_simt(const ChecksumParams p) {
    __shared__ u64 scratch[THREADS];
    grid_launch_next();
    grid_wait();
    u64 words = p.bytes / 4;
    for (u64 number = blockIdx.x; number < p.ranges * p.pieces; number += gridDim.x) {
        u64 range = number / p.pieces, piece = number % p.pieces;
        const u8 *x = p.x + range * p.stride;
        u64 first = piece * p.piece_words, end = first + p.piece_words < words ? first + p.piece_words : words;
        u64 sum = u64(x) % 4 == 0 ? sum_words<true>(x, first, end) : sum_words<false>(x, first, end);
        if (piece + 1 == p.pieces && threadIdx.x == 0) {
            // The bytes behind the last whole word, and the byte 1.
            u32 rest = u32(p.bytes % 4);
            sum += multiplier(u32(words)) * (bytes_at(x + 4 * words, rest) | 1u << 8 * rest);
        }
        sum = block_total(sum, scratch);
        if (threadIdx.x != 0) {
            continue;
        }
        if (p.pieces > 1) {
            u64 *shared = p.state + 2 * range;
            atomicAdd(shared, sum);
            __threadfence();
            if (atomicAdd(shared + 1, u64(1)) + 1 < p.pieces) {
                continue;
            }
            __threadfence();
            sum = atomicAdd(shared, u64(0));
            shared[0] = 0;
            shared[1] = 0;
        }
        p.sums[2 * range] = u32(sum);
        p.sums[2 * range + 1] = u32(sum >> 32);
    }
}
