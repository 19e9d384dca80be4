// Blocks of 64 for tiles of 128 rows: which columns the two rows of blocks of a tile list, and what each row sees of them.
//
// A tile reads a column once for both of its rows of blocks, and takes two columns a step, wherever they lie. Where only one row
// lists a column the other's scores are hidden: clustered lists lose little by that, and random ones up to half.
#pragma once

#include "ptx/types.cuh"

constexpr i32 ABSENT = -3;   // the kind of a block that the row does not list

// The plan: of each pattern `region` columns, those of a tile in rising order, from the place on that its first block has among those of
// the pattern; the kind of each for either row; of each tile the number of columns. A tile has at most as many as its rows list blocks.
struct PairPlan {
    i32 *columns, *kinds[2], *before, *counts;
};

__device__ __forceinline__ PairPlan pair_plan(i32 *at, u32 patterns, u32 region) {
    u64 room = u64(patterns) * region;
    return {at, {at + room, at + 2 * room}, at + 3 * room, at + 4 * room};
}

// Where the columns of a tile start in the plan; `rows` are the places of the rows of its pattern.
__device__ __forceinline__ i32 pair_begin(const i32 *rows, u32 pattern, u32 region, u32 tile) { return i32(pattern * region) + rows[2 * tile] - rows[0]; }
