// The way to Y where its rows do not start on multiples of 16 bytes, or are not whole in eights: through shared memory, where a
// row is put as far from a multiple of 16 bytes as it is in Y, and goes out 16 bytes at a time, 128 bytes of a row side by side.
#pragma once

#include "tile/repack.cuh"
#include "tile/wgmma_outputs.cuh"

// A slice of a warp's 16 rows: 64 outputs and what a row is shifted by. Rows of 144 bytes fall into different banks.
constexpr u32 SLICE = 64, SLICE_ROWS = 16, SLICE_LINE = SLICE + 8, SLICE_WORDS = SLICE_LINE / 8;
constexpr u32 SLICES_BYTES = 8 * SLICE_ROWS * SLICE_LINE * 2;

// Elements `first` and on, before `last`, of eight that go to `to`.
__device__ __forceinline__ void write_some(element *to, const element *eight, i32 first, i32 last) {
    for (i32 i = first > 0 ? first : 0; i < (last < 8 ? last : 8); i++) {
        to[i] = eight[i];
    }
}

// The rows of one warp from Y's row `row` and output `column` on, and their slices in shared memory.
struct OddRows {
    const GemmParams &p;
    element *lines;
    u64 row, column;
    i32 width;  // outputs of the tile that there are

    __device__ __forceinline__ bool there(u32 r) const { return row + r < p.rows; }
    __device__ __forceinline__ u64 start(u32 r) const { return (row + r) * p.y_stride + column; }
    // Elements from a multiple of 16 bytes to where the row starts.
    __device__ __forceinline__ u32 shift(u32 r) const { return u32((u64(p.y) / 2 + start(r)) % 8); }
    __device__ __forceinline__ element *word(u32 r, u32 number) const { return lines + r * SLICE_LINE + number * 8; }

    // Brings the elements of `from` under the slice from output `at` on. What the slice before left in front of it stays.
    __device__ __forceinline__ void bring(const element *from, i32 at) const {
        u64 begin = u64(from), end = u64(from + p.rows * p.y_stride);
        for (u32 place = threadIdx.x % 32; place < SLICE_ROWS * SLICE_WORDS; place += 32) {
            u32 r = place / SLICE_WORDS, number = place % SLICE_WORDS;
            i32 first = at + i32(number * 8) - i32(shift(r)), count = width - first;
            if (!there(r) || count <= 0) {
                continue;
            }
            const element *own = from + start(r) + first;
            if (number == 0) {
                for (i32 i = i32(shift(r)); i < (count < 8 ? count : 8); i++) {
                    word(r, 0)[i] = own[i];
                }
            } else {
                *(uint4 *)word(r, number) = eight_of(read_straddled(own, begin, end), own, count < 8 ? count : 8);
            }
        }
        __syncwarp();
    }

    // Writes the slice from output `at` on, but for its end, which goes in front of the next. `fresh`: nothing is in front of this one.
    __device__ __forceinline__ void write(i32 at, bool fresh) const {
        __syncwarp();
        for (u32 place = threadIdx.x % 32; place < SLICE_ROWS * SLICE / 8; place += 32) {
            u32 r = place / (SLICE / 8), number = place % (SLICE / 8);
            if (there(r)) {
                i32 own = i32(shift(r)), first = at + i32(number * 8) - own, begin = fresh && number == 0 ? own : 0;
                element *to = p.y + i64(start(r)) + first;
                if (begin == 0 && first + 8 <= width) {
                    *(uint4 *)to = *(const uint4 *)word(r, number);
                } else {
                    write_some(to, word(r, number), begin, width - first);
                }
            }
        }
        __syncwarp();
        if (threadIdx.x % 32 < SLICE_ROWS) {
            *(uint4 *)word(threadIdx.x % 32, 0) = *(const uint4 *)word(threadIdx.x % 32, SLICE / 8);
        }
        __syncwarp();
    }

    // Writes what the last slice, which ended before output `at`, has left.
    __device__ __forceinline__ void finish(i32 at) const {
        u32 r = threadIdx.x % 32;
        if (r < SLICE_ROWS && there(r)) {
            i32 own = i32(shift(r)), first = at - own;
            write_some(p.y + i64(start(r)) + first, word(r, 0), 0, own < width - first ? own : width - first);
        }
        __syncwarp();
    }
};

// As write_tile, with W's rows in the order of the outputs. `room`: SLICES_BYTES of shared memory, from a multiple of 16 on.
template <class P, u32 FORM, u32 SUMS>
__device__ __forceinline__ void write_odd_tile(const GemmParams &p, u64 row, u64 column, Cut cut, f32 (&d)[SUMS], char *room) {
    u32 warp = threadIdx.x / 32, quad = threadIdx.x % 4, high = threadIdx.x % 32 / 4;
    OddRows rows = {p, (element *)room + warp * SLICE_ROWS * SLICE_LINE, row + warp * SLICE_ROWS, column, tile_width<P>(p, column)};
    // Where this thread's outputs of either row lie in a slice.
    element *own[2];
#pragma unroll
    for (u32 upper = 0; upper < 2; upper++) {
        own[upper] = rows.word(high + upper * 8, 0) + rows.shift(high + upper * 8) + quad * 2;
    }
    i32 end = -1;
#pragma unroll
    for (u32 slice = 0; slice < P::PIECES / 2; slice++) {
        i32 at = i32(slice * SLICE);
        if (!cut.owns(slice * 2, P::PIECES)) {
            continue;
        }
        if (p.adds) {
            rows.bring(p.y, at);
#pragma unroll
            for (u32 i = 0; i < SLICE / 2; i++) {
                d[slice * (SLICE / 2) + i] += widen(own[i / 2 % 2][i / 4 * 8 + i % 2]);
            }
            __syncwarp();
        }
        if (p.residual) {
            rows.bring(p.residual, at);
        }
#pragma unroll
        for (u32 i = 0; i < SLICE / 2; i++) {
            // Output `c` of the slice; sums as D has them in ptx/wgmma.cuh.
            u32 upper = i / 2 % 2, c = i / 4 * 8 + i % 2;
            i32 output = at + i32(c + quad * 2);
            f32 bias = p.bias && output < rows.width ? widen(p.bias[column + output]) : 0.0f;
            f32 value = activate_form<FORM>(p, d[slice * (SLICE / 2) + i] + bias);
            element &place = own[upper][c];
            place = narrow<element>(p.residual ? value + widen(place) : value);
        }
        rows.write(at, end < 0);
        end = at + i32(SLICE);
    }
    if (end >= 0) {
        rows.finish(end);
    }
}
