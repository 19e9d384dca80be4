// Rows to their places in a pool: new tokens of each sequence to where its last positions lie, or any rows to places of their own.
#pragma once

#include "ptx/grid.cuh"
#include "pointwise/lines.cuh"

// The row of the pool for row `row` of x; none (-1) where the sequence is too short.
__device__ __forceinline__ i64 appended_place(const PointwiseParams &p, u64 row) {
    u64 sequence = row / p.each;
    i64 position = i64(p.index[sequence]) - i64(p.each - row % p.each);
    const i32 *pages = p.index + p.rows / p.each + sequence * p.pages;
    return position < 0 ? -1 : i64(pages[u64(position) / p.page]) * i64(p.page) + position % i64(p.page);
}

// The row of the pool for row `row` of x, by its own place; none (-1) outside the pool.
__device__ __forceinline__ i64 stored_place(const PointwiseParams &p, u64 row) {
    i32 place = p.index[row];
    return place >= 0 && u32(place) < p.slots ? i64(place) : -1;
}

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
