// The plan of blocks of 64 for tiles of 128 rows, made from the lists as they lie on the device.

#include "attention/block_pairs.cuh"
#include "attention/pair_params.cuh"
#include "ptx/grid.cuh"

constexpr u32 PAIR_THREADS = 32;   // a warp a tile

// The place of the first of `count` rising numbers that is not below `least`.
__device__ __forceinline__ i32 lower_bound(const i32 *numbers, i32 count, i32 least) {
    i32 first = 0;
    while (count > 0) {
        i32 half = count / 2;
        bool below = numbers[first + half] < least;
        first = below ? first + half + 1 : first;
        count = below ? count - half - 1 : half;
    }
    return first;
}

extern "C" __global__ void __launch_bounds__(PAIR_THREADS) attention_pairs(const PairParams p) {
    grid_launch_next();
    grid_wait();
    u32 tile = blockIdx.x % p.tiles, pattern = blockIdx.x / p.tiles, lane = threadIdx.x % 32;
    const i32 *rows = p.index + u64(pattern) * (p.q_blocks + 1), *row_ptr = rows + 2 * tile;
    const i32 *columns = p.index + u64(p.patterns) * (p.q_blocks + 1), *kinds = columns + p.capacity;
    PairPlan plan = pair_plan(p.plan, p.patterns, p.region);
    i32 begin = row_ptr[0], middle = row_ptr[1], end = 2 * tile + 1 < p.q_blocks ? row_ptr[2] : middle;
    const i32 *upper = columns + begin, *lower = columns + middle;
    i32 uppers = middle - begin, lowers = end - middle, alone = 0, start = pair_begin(rows, pattern, p.region, tile);
    // Columns of the lower row alone: each stands behind those of both rows that are below it.
    for (i32 first = 0; first < lowers; first += 32) {
        i32 at = first + i32(lane), column = at < lowers ? lower[at] : 0, place = lower_bound(upper, uppers, column);
        bool own = at < lowers && !(place < uppers && upper[place] == column);
        u32 all = __ballot_sync(0xffffffffu, own);
        i32 before = alone + __popc(all & (1u << lane) - 1);
        if (at < lowers) {
            plan.before[start + at] = before;
        }
        if (own) {
            i32 to = start + place + before;
            plan.columns[to] = column;
            plan.kinds[0][to] = ABSENT;
            plan.kinds[1][to] = kinds[middle + at];
        }
        alone += __popc(all);
    }
    __syncwarp();
    for (i32 at = i32(lane); at < uppers; at += 32) {
        i32 column = upper[at], place = lower_bound(lower, lowers, column);
        i32 to = start + at + (place < lowers ? plan.before[start + place] : alone);
        plan.columns[to] = column;
        plan.kinds[0][to] = kinds[begin + at];
        plan.kinds[1][to] = place < lowers && lower[place] == column ? kinds[middle + place] : ABSENT;
    }
    if (lane == 0) {
        plan.counts[blockIdx.x] = uppers + alone;
    }
}
