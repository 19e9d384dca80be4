// Places of rows in a pool.
#pragma once

#include "ptx/types.cuh"

// The row of the pool for row `row` of x; none (-1) where the sequence is too short.
template <class Params> __device__ __forceinline__ i64 appended_place(const Params &p, u64 row) {
    u64 sequence = row / p.each;
    i64 position = i64(p.index[sequence]) - i64(p.each - row % p.each);
    const i32 *pages = p.index + p.rows / p.each + sequence * p.pages;
    return position < 0 ? -1 : i64(pages[u64(position) / p.page]) * i64(p.page) + position % i64(p.page);
}

// The row of the pool for row `row` of x, by its own place; none (-1) outside the pool.
template <class Params> __device__ __forceinline__ i64 stored_place(const Params &p, u64 row) {
    i32 place = p.index[row];
    return place >= 0 && u32(place) < p.slots ? i64(place) : -1;
}
