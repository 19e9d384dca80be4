// Norms of short rows: a warp a row, which stays in registers, so that there is no barrier and one pass over memory.
#pragma once

#include "ptx/grid.cuh"
#include "ptx/special.cuh"
#include "pointwise/kind.cuh"
#include "pointwise/params.cuh"
#include "pointwise/pieces.cuh"

constexpr int NORM_THREADS = 256;

// Lanes fold their sums in halves: every lane then has the same sum, in an order that is always the same.
__device__ __forceinline__ f32 warp_sum(f32 value) {
#pragma unroll
    for (u32 half = 16; half > 0; half /= 2) {
        value += shuffle_xor(value, half);
    }
    return value;
}

// What a lane holds of a row: every 32nd piece, and zeros for those that are not there.
template <int COUNT> __device__ __forceinline__ void load_pieces(Piece (&to)[COUNT], const element *row, u32 count) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        to[i] = i * 32 + lane < count ? reinterpret_cast<const Piece *>(row)[i * 32 + lane] : Piece{};
    }
}

// What is normalised: a row of x and of the residual, or of two tables, which ids say, in the words behind two counts.
template <int COUNT> __device__ __forceinline__ void load_rows(const PointwiseParams &p, u64 row, u32 count, Piece (&x)[COUNT], Piece (&residual)[COUNT]) {
    if (p.kind == EMBEDDING_NORM) {
        i32 id = p.index[2 + row], place = p.places[2 + row];
        load_pieces(x, p.x + i64(id) * i64(p.columns), id < 0 ? 0 : count);
        load_pieces(residual, p.residual + i64(place) * i64(p.columns), place < 0 ? 0 : count);
        return;
    }
    load_pieces(x, p.x + row * p.columns, count);
    if (p.residual) {
        load_pieces(residual, p.residual + row * p.columns, count);
    }
}

// Rows of at most COUNT · 32 pieces, columns a multiple of PIECE, all operands on whole pieces. AHEAD: the next row is on its way
// while one is worked on, for which the registers have to hold both.
template <int COUNT, bool AHEAD> __device__ __forceinline__ void norm_rows(const PointwiseParams &p) {
    u32 lane = threadIdx.x % 32, count = u32(p.columns) / PIECE;
    u64 warps = u64(gridDim.x) * (NORM_THREADS / 32), row = u64(blockIdx.x) * (NORM_THREADS / 32) + threadIdx.x / 32;
    grid_launch_next();
    grid_wait();
    Piece x[COUNT] = {}, residual[COUNT] = {};
    if (AHEAD && row < p.rows) {
        load_rows(p, row, count, x, residual);
    }
#pragma unroll 1
    for (; row < p.rows; row += warps) {
        u64 ahead = AHEAD ? row + warps : row;
        if (!AHEAD) {
            load_rows(p, row, count, x, residual);
        }
        f32 z[COUNT][PIECE];
        f32 sum = 0.0f;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
#pragma unroll
            for (int e = 0; e < PIECE; e++) {
                z[i][e] = Packed<element>::get(x[i], e) + Packed<element>::get(residual[i], e);
                sum += z[i][e];
            }
        }
        if (AHEAD && ahead < p.rows) {
            load_rows(p, ahead, count, x, residual);
        }
        f32 mean = p.kind == LAYER_NORM || p.kind == EMBEDDING_NORM ? warp_sum(sum) / f32(p.columns) : 0.0f;
        f32 squares = 0.0f;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            bool there = i * 32 + lane < count;
#pragma unroll
            for (int e = 0; e < PIECE; e++) {
                z[i][e] -= mean;
                squares += there ? z[i][e] * z[i][e] : 0.0f;
            }
        }
        squares = warp_sum(squares);
        f32 factor = p.kind == L2_NORMALISE ? 1.0f / max_or_nan(sqrtf(squares), 1e-12f) : 1.0f / sqrtf(squares / f32(p.columns) + p.eps);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            u32 number = i * 32 + lane;
            if (number < count) {
                // The same for every row: from the first-level cache.
                Piece weight = p.weight ? reinterpret_cast<const Piece *>(p.weight)[number] : Piece{};
                Piece bias = p.bias ? reinterpret_cast<const Piece *>(p.bias)[number] : Piece{};
                f32 y[PIECE];
#pragma unroll
                for (int e = 0; e < PIECE; e++) {
                    y[e] = z[i][e] * factor * (p.weight ? Packed<element>::get(weight, e) : 1.0f) + Packed<element>::get(bias, e);
                }
                Piece piece;
#pragma unroll
                for (int w = 0; w < WORDS; w++) {
                    piece.words[w] = Packed<element>::word(y, w);
                }
                reinterpret_cast<Piece *>(p.y + row * p.columns)[number] = piece;
            }
        }
    }
}
