// A tile of rows of the score matrix on the ordinary cores, and the online softmax of its rows: eight threads share a row, and each keeps its
// maximum and sum for itself, with its own elements of O.
#pragma once

#include "ptx/special.cuh"
#include "ptx/types.cuh"

constexpr int ROWS = 16;
constexpr int KEYS = 32;
constexpr int SHARE = 8;                     // threads of a row
constexpr int THREADS = ROWS * SHARE;
constexpr int PITCH = HEAD_DIM_MAX + 1;      // odd, so that a column of a tile is spread over the banks
constexpr int SCORES = KEYS + 1;             // from a row of scores to the next, odd for the same reason
constexpr int HELD = HEAD_DIM_MAX / SHARE;   // elements of O that a thread holds

static_assert(HEAD_DIM_MAX % SHARE == 0 && KEYS % SHARE == 0, "shared out evenly");

struct OnlineRow {
    f32 most = -infinity(), total = 0.0f, out[HELD] = {};

    // The greatest of what was seen and of a tile's scores; not a number where one of them is none.
    __device__ __forceinline__ f32 above(const f32 *scores) const {
        f32 greatest = most;
        for (int c = 0; c < KEYS; c++) {
            greatest = max_or_nan(greatest, scores[c]);
        }
        return greatest;
    }

    // Adds a tile's values by the weights of its scores, whose greatest is `above`: some key is seen.
    __device__ __forceinline__ void add(f32 above, const f32 *scores, const f32 *values, u32 part) {
        // Of a row that had seen nothing yet this is 0.
        f32 rescale = expf(most - above);
        most = above;
        total *= rescale;
#pragma unroll
        for (int n = 0; n < HELD; n++) {
            out[n] *= rescale;
        }
        for (int c = 0; c < KEYS; c++) {
            f32 weight = expf(scores[c] - most);
            total += weight;
#pragma unroll
            for (int n = 0; n < HELD; n++) {
                out[n] += weight * values[c * PITCH + part + n * SHARE];
            }
        }
    }

    // What O is multiplied by at the end: 0 where no key was seen.
    __device__ __forceinline__ f32 share() const { return total == 0.0f ? 0.0f : 1.0f / total; }

    __device__ __forceinline__ f32 lse() const { return total == 0.0f ? -infinity() : most + logf(total); }
};
