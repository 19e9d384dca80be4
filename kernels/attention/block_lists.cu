// The lists of a block mask from a map of its blocks: a byte for each, as it lies on the device at the launch.
//
// Each block of threads takes a few rows, a warp each. Where their lists begin it counts itself, in the rows before: so that blocks
// wait for nobody, and the lists lie as the host's do, each row's behind that of the row before.

#include "attention/list_params.cuh"
#include "ptx/grid.cuh"
#include "ptx/special.cuh"

constexpr u32 LIST_WARPS = 8, LIST_THREADS = LIST_WARPS * 32;
constexpr u32 TOGETHER_CHUNKS = 8, TOGETHER_BLOCKS = 8;   // loads that a thread has under way

// Bytes of a word that are not zero.
__device__ __forceinline__ u32 nonzero_bytes(u32 word) { return count_ones((((word & 0x7f7f7f7f) + 0x7f7f7f7f) | word) & 0x80808080); }

// The same of 16 bytes.
__device__ __forceinline__ u32 nonzero_bytes(uint4 words) {
    auto ones = [](u32 word) { return ((((word & 0x7f7f7f7f) + 0x7f7f7f7f) | word) & 0x80808080) >> 7; };
    return (ones(words.x) + ones(words.y) + ones(words.z) + ones(words.w)) * 0x01010101 >> 24;
}

// Of bytes `begin` to `end` of the map, a share for each thread of the block.
__device__ __forceinline__ u32 count_words(const u32 *map, u64 begin, u64 end) {
    u32 count = 0;
#pragma unroll 1
    for (u64 at = begin / 4 + threadIdx.x; at < (end + 3) / 4; at += LIST_THREADS) {
        u32 word = map[at], from = at * 4 < begin ? u32(begin - at * 4) : 0, past = at * 4 + 4 > end ? u32(at * 4 + 4 - end) : 0;
        count += nonzero_bytes(word & 0xffffffffu << 8 * from & 0xffffffffu >> 8 * past);
    }
    return count;
}

// As above, 16 bytes at a time but for the ends, several loads under way together: the last rows of a large map have all of it before them.
__device__ __forceinline__ u32 count_share(const u32 *map, u64 begin, u64 end) {
    if (end - begin < 64) {
        return count_words(map, begin, end);
    }
    u64 skew = u64(map) % 16, inner = (begin + skew + 15) / 16 * 16 - skew, past = (end + skew) / 16 * 16 - skew;
    const uint4 *chunks = (const uint4 *)((const u8 *)map + inner);
    u32 count = count_words(map, begin, inner) + count_words(map, past, end), all = u32((past - inner) / 16);
#pragma unroll 1
    for (u32 first = threadIdx.x; first < all; first += LIST_THREADS * TOGETHER_CHUNKS) {
        uint4 words[TOGETHER_CHUNKS];
#pragma unroll
        for (u32 i = 0; i < TOGETHER_CHUNKS; i++) {
            words[i] = first + i * LIST_THREADS < all ? chunks[first + i * LIST_THREADS] : uint4{0, 0, 0, 0};
        }
#pragma unroll
        for (u32 i = 0; i < TOGETHER_CHUNKS; i++) {
            count += nonzero_bytes(words[i]);
        }
    }
    return count;
}

// A lane's blocks of a row, of every 32 from `first` on: their loads are under way together.
__device__ __forceinline__ void load_blocks(const u8 *row, u32 first, u32 width, u32 (&bytes)[TOGETHER_BLOCKS]) {
#pragma unroll
    for (u32 i = 0; i < TOGETHER_BLOCKS; i++) {
        u32 column = first + i * 32 + threadIdx.x % 32;
        bytes[i] = column < width ? row[column] : 0;
    }
}

__device__ __forceinline__ u32 sum_of_warp(u32 value) {
#pragma unroll
    for (u32 far = 16; far > 0; far /= 2) {
        value += shuffle_from(value, threadIdx.x % 32 ^ far);
    }
    return value;
}

extern "C" __global__ void __launch_bounds__(LIST_THREADS) attention_lists(const ListParams p) {
    extern __shared__ __align__(16) u32 lists_scratch[];
    u32 *before = lists_scratch, *listed = lists_scratch + LIST_WARPS;
    grid_launch_next();
    grid_wait();
    u32 groups = (p.q_blocks + LIST_WARPS - 1) / LIST_WARPS, pattern = blockIdx.x / groups, first_row = blockIdx.x % groups * LIST_WARPS;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = first_row + warp;
    u64 start = u64(pattern) * p.q_blocks * p.kv_blocks;
    const u8 *own = (const u8 *)p.map + start + u64(row) * p.kv_blocks;
    u32 mine = 0, width = row < p.q_blocks ? p.kv_blocks : 0;
    u32 bytes[TOGETHER_BLOCKS];
#pragma unroll 1
    for (u32 first = 0; first < width; first += 32 * TOGETHER_BLOCKS) {
        load_blocks(own, first, width, bytes);
#pragma unroll
        for (u32 i = 0; i < TOGETHER_BLOCKS; i++) {
            mine += count_ones(lanes_where(bytes[i] != 0));
        }
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
#pragma unroll 1
    for (u32 first = 0; first < width; first += 32 * TOGETHER_BLOCKS) {
        if (width > 32 * TOGETHER_BLOCKS) {
            // Else they are there still.
            load_blocks(own, first, width, bytes);
        }
#pragma unroll
        for (u32 i = 0; i < TOGETHER_BLOCKS; i++) {
            u32 there = lanes_where(bytes[i] != 0);
            if (bytes[i] != 0) {
                u32 to = place + count_ones(there & (1u << lane) - 1);
                columns[to] = i32(first + i * 32 + lane);
                kinds[to] = bytes[i] == 2 ? -2 : -1;
            }
            place += count_ones(there);
        }
    }
}
