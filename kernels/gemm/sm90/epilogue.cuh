// From the sums of `gemm/sm90/mainloop.cuh` to outputs: which sum is of which output, and the way to Y.
#pragma once

#include "ptx/cluster.cuh"
#include "ptx/copy.cuh"
#include "gemm/outputs.cuh"

// Where a tile's outputs lie among a thread's sums. Rows of W lie in shared memory in another order than the outputs, so that eight
// neighbouring outputs, a piece, are a thread's own: they are moved 16 bytes at a time, and never between threads. A thread has PIECES
// pieces of each of two rows. Place 8i + 2q + e of W's rows (see D in ptx/wgmma.cuh) has, of each 32 outputs, output 8q + 2i + e. Of a
// tile that is not whole in 32 each of the last eights lies in order: each thread has two of it.
template <u32 OUTPUTS> struct Places {
    static constexpr u32 PIECES = OUTPUTS / 32, REST = OUTPUTS % 32;
    static_assert(REST % 8 == 0, "whole pieces, and whole eights");

    // The sum of output `k` of a piece, for the lower or upper of the two rows.
    static __device__ __forceinline__ constexpr u32 sum(u32 piece, u32 upper, u32 k) { return (piece * 4 + k / 2) * 4 + upper * 2 + k % 2; }

    // The first output of a piece.
    static __device__ __forceinline__ u32 column(u32 piece) { return piece * 32 + threadIdx.x % 4 * 8; }

    // This thread's lower or upper row in the block's tile.
    static __device__ __forceinline__ u32 row(u32 upper) { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + upper * 8; }
};

__device__ __forceinline__ void widen_piece(uint4 piece, f32 (&values)[8]) {
    u32 words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        values[i * 2] = low_half(words[i]);
        values[i * 2 + 1] = high_half(words[i]);
    }
}

// Outputs of the tile from `column` on that there are.
template <class P> __device__ __forceinline__ i32 tile_width(const GemmParams &p, u64 column) {
    constexpr u32 MOST = P::PIECES * 32 + P::REST;
    return column < p.columns ? i32(p.columns - column < MOST ? p.columns - column : MOST) : 0;
}

// Where the first piece of one of a thread's two rows of a tile lies in Y, and how many outputs of the tile there are from there on. The
// other pieces are known distances away.
template <class P> struct TileRow {
    u64 start;
    i32 left;

    __device__ __forceinline__ TileRow(const GemmParams &p, u64 row, u64 column, u32 upper) {
        row += P::row(upper);
        start = row * p.y_stride + column + P::column(0);
        left = (row < p.rows ? tile_width<P>(p, column) : 0) - i32(P::column(0));
    }

    __device__ __forceinline__ bool has(u32 piece) const { return i32(piece * 32) < left; }
};

// Eight elements of the residual, or of Y, under a thread's piece; zeros where there are no outputs.
template <class P> __device__ __forceinline__ uint4 read_above(const element *from, const TileRow<P> &row, u32 piece) {
    return row.has(piece) ? *(const uint4 *)(from + row.start + piece * 32) : uint4{0, 0, 0, 0};
}

// The residual's first pieces, lower row before upper, read before the last products are done.
struct Ahead {
    static constexpr u32 DEPTH = 8;
    uint4 pieces[DEPTH];
};

template <class P> __device__ __forceinline__ void read_ahead(const GemmParams &p, u64 row, u64 column, Ahead &ahead) {
    TileRow<P> rows[2] = {{p, row, column, 0}, {p, row, column, 1}};
#pragma unroll
    for (u32 number = 0; number < 2 * P::PIECES && number < Ahead::DEPTH; number++) {
        ahead.pieces[number] = read_above<P>(p.residual, rows[number / P::PIECES], number % P::PIECES);
    }
}

// The bias under a thread's pieces, read where it is added.
struct BiasBelow {
    template <class P> __device__ __forceinline__ uint4 piece(const GemmParams &p, u64 column, i32 width, u32 number) const {
        bool there = i32(number * 32) < width - i32(P::column(0));
        return there ? *(const uint4 *)(p.bias + column + P::column(0) + number * 32) : uint4{0, 0, 0, 0};
    }
};

// The same, asked for before a tile's products begin: each lane has eight of the tile's, in four registers, and a thread's pieces come from
// those lanes that have them.
struct BiasAhead {
    uint4 own;

    template <class P> __device__ __forceinline__ void read(const GemmParams &p, u64 column) {
        u32 lane = threadIdx.x % 32;
        bool there = p.bias && lane < P::PIECES * 4 && i32(lane * 8) < tile_width<P>(p, column);
        own = there ? *(const uint4 *)(p.bias + column + lane * 8) : uint4{0, 0, 0, 0};
    }

    // By whole warps.
    template <class P> __device__ __forceinline__ uint4 piece(const GemmParams &, u64, i32, u32 number) const {
        u32 from = number * 4 + threadIdx.x % 4;
        return {shuffle_from(own.x, from), shuffle_from(own.y, from), shuffle_from(own.z, from), shuffle_from(own.w, from)};
    }
};

// Writes the two outputs of a row that a thread has of an eight beside its pieces.
template <class P, u32 FORM, u32 SUMS>
__device__ __forceinline__ void write_rest(const GemmParams &p, const TileRow<P> &own, u64 column, i32 width, u32 eight, u32 upper, const f32 (&d)[SUMS]) {
    i32 at = i32(P::PIECES * 32 + eight * 8 + threadIdx.x % 4 * 2), from_first = at - i32(P::column(0));
    bool there = from_first < own.left;
    u64 place = own.start + i64(from_first);
    u32 bias = p.bias && at < width ? *(const u32 *)(p.bias + column + at) : 0, sum = P::PIECES * 16 + eight * 4 + upper * 2;
    u32 found = p.adds && there ? *(const u32 *)(p.y + place) : 0, more = p.residual && there ? *(const u32 *)(p.residual + place) : 0;
    f32 low = d[sum] + low_half(found) + low_half(bias), high = d[sum + 1] + high_half(found) + high_half(bias);
    u32 two = narrow2<element>(activate_form<FORM>(p, low) + low_half(more), activate_form<FORM>(p, high) + high_half(more));
    if (there) {
        *(u32 *)(p.y + place) = two;
    }
}

// work(piece, upper) for every piece, of lower rows first, as they are read ahead.
template <class P, class Work> __device__ __forceinline__ void each_piece(Work work) {
#pragma unroll
    for (u32 number = 0; number < 2 * P::PIECES; number++) {
        work(number % P::PIECES, number / P::PIECES);
    }
}

// Whether there is an activation: most products have none, and need no operation for it.
template <u32 FORM> __device__ __forceinline__ bool activates(const GemmParams &p) { return FORM != FLOOR || p.floor > -infinity(); }

// Writes the outputs of this thread's rows of the block's tile, from the sums of the up (or only) weight and
// of the gate. The residual was read ahead. Each part goes over all sums by itself, so that nothing is asked at every piece.
template <class P, bool GATED, u32 FORM, u32 SUMS, class Bias = BiasBelow>
__device__ __forceinline__ void write_tile(const GemmParams &p, u64 row, u64 column, f32 (&d)[SUMS], Ahead &ahead, const Bias &under = {}) {
    i32 width = tile_width<P>(p, column);
    TileRow<P> rows[2] = {{p, row, column, 0}, {p, row, column, 1}};
    auto add = [&](u32 piece, u32 upper, uint4 found) {
        f32 values[8];
        widen_piece(found, values);
#pragma unroll
        for (u32 k = 0; k < 8; k++) {
            d[P::sum(piece, upper, k)] += values[k];
        }
    };
    if (!GATED && p.adds) {
        each_piece<P>([&](u32 piece, u32 upper) { add(piece, upper, read_above<P>(p.y, rows[upper], piece)); });
    }
    if (p.bias) {
#pragma unroll
        for (u32 piece = 0; piece < P::PIECES; piece++) {
            uint4 bias = under.template piece<P>(p, column, width, piece);
            add(piece, 0, bias);
            add(piece, 1, bias);
        }
    }
    if (GATED || activates<FORM>(p)) {
        each_piece<P>([&](u32 piece, u32 upper) {
#pragma unroll
            for (u32 k = 0; k < 8; k++) {
                u32 sum = P::sum(piece, upper, k);
                if constexpr (GATED) {
                    d[sum] *= activate_form<FORM>(p, d[SUMS / 2 + sum]);
                } else {
                    d[sum] = activate_form<FORM>(p, d[sum]);
                }
            }
        });
    }
    if (!GATED && p.residual) {
        each_piece<P>([&](u32 piece, u32 upper) {
            u32 number = upper * P::PIECES + piece, next = number + Ahead::DEPTH;
            uint4 &slot = ahead.pieces[number % Ahead::DEPTH];
            add(piece, upper, slot);
            if (next < 2 * P::PIECES) {
                slot = read_above<P>(p.residual, rows[next / P::PIECES], next % P::PIECES);
            }
        });
    }
    each_piece<P>([&](u32 piece, u32 upper) {
        auto two = [&](u32 k) { return narrow2<element>(d[P::sum(piece, upper, k)], d[P::sum(piece, upper, k + 1)]); };
        uint4 packed = {two(0), two(2), two(4), two(6)};
        if (rows[upper].has(piece)) {
            store_16(p.y + rows[upper].start + piece * 32, packed);
        }
    });
    if constexpr (P::REST != 0) {
#pragma unroll
        for (u32 number = 0; number < P::REST / 4; number++) {
            write_rest<P, FORM>(p, rows[number % 2], column, width, number / 2, number % 2, d);
        }
    }
}
