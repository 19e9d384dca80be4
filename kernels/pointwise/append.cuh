// Rows to their places in a pool: new tokens of each sequence to where its last positions lie, or any rows to places of their own.
#pragma once

#include "ptx/grid.cuh"
#include "pointwise/lines.cuh"
#include "pointwise/place.cuh"

// Rows of whole lines, of which all together are fewer than 2^32: one a thread. Lengths and pages are looked up before the wait: only copies
// write them, which no launch overtakes. Places of rows may be what the launch before wrote.
__device__ __forceinline__ void append_lines(const PointwiseParams &p) {
    grid_launch_next();
    u32 across = u32(p.columns / EACH), at = blockIdx.x * LINE_THREADS + threadIdx.x, row = at / across;
    i64 place = row < p.rows && p.kind == APPEND ? appended_place(p, row) : -1;
    grid_wait();
    if (row < p.rows && p.kind == STORE) {
        place = stored_place(p, row);
    }
    if (place >= 0) {
        reinterpret_cast<Line *>(p.y)[u64(place) * across + at % across] = line_of(p.x + row * p.stride, at % across);
    }
}
