// Heads of new tokens: normed where they have a norm, turned by their positions where they are, and some columns of their rows to a pool, at once.
#pragma once

#include "ptx/grid.cuh"
#include "ptx/special.cuh"
#include "pointwise/angle.cuh"
#include "pointwise/heads_params.cuh"
#include "pointwise/pieces.cuh"
#include "pointwise/place.cuh"
#include "tile/reduce.cuh"

constexpr int HEADS_THREADS = 256;
// The most pairs of a head whose sines a block holds.
constexpr int HEADS_PAIRS = 128;

// What is added to a column of row `row` to give its element of y. Columns that lie apart are those in front of the first that is kept, those from it on that
// turn, and the rest: a block of all rows each, one behind the other.
__device__ __forceinline__ u64 row_start(const HeadsParams &p, u64 row, u64 column) {
#ifdef HEADS_APART
    bool front = column < p.first, back = column >= p.columns;
    u64 begin = front ? 0 : back ? p.columns : p.first, end = front ? p.first : back ? p.stride : p.columns;
    return p.rows * begin + row * (end - begin) - begin;
#else
    return row * p.stride;
#endif
}

// The row of the pool for row `row`: by its slot where sequences have no rows of their own, else by its sequence's last positions.
__device__ __forceinline__ i64 kept_place(const HeadsParams &p, u64 row) { return p.each == 0 ? stored_place(p, row) : appended_place(p, row); }

// A pair of pieces of a head of `pieces` pairs, a power of two, normed as norm.cuh norms it, in the same order: first what lies half a head apart.
__device__ __forceinline__ void norm_pieces(const HeadsParams &p, u32 pieces, const Piece &low_weight, const Piece &high_weight, Piece &low, Piece &high) {
    f32 first = 0.0f;
#pragma unroll
    for (int e = 0; e < PIECE; e++) {
        f32 a = Packed<element>::get(low, e);
        first += a * a;
    }
    // There, a lane has both pieces of a head of 256 elements, one after the other.
    f32 second = pieces == 32 ? first : 0.0f;
#pragma unroll
    for (int e = 0; e < PIECE; e++) {
        f32 b = Packed<element>::get(high, e);
        second += b * b;
    }
    f32 squares = pieces == 32 ? second : first + second;
    for (u32 half = pieces / 2; half > 0; half /= 2) {
        squares += shuffle_xor(squares, half);
    }
    f32 factor = 1.0f / sqrtf(squares / f32(p.head_dim) + p.eps), a[PIECE], b[PIECE];
#pragma unroll
    for (int e = 0; e < PIECE; e++) {
        // There, a bias is added, if only of 0.
        a[e] = Packed<element>::get(low, e) * factor * Packed<element>::get(low_weight, e) + 0.0f;
        b[e] = Packed<element>::get(high, e) * factor * Packed<element>::get(high_weight, e) + 0.0f;
    }
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        low.words[w] = Packed<element>::word(a, w);
        high.words[w] = Packed<element>::word(b, w);
    }
}

// Half a head, what is kept and rows are whole pieces, and what is kept behind the last head that turns is whole heads. Blocks with one `blockIdx.x` share
// rows. Where the host knows that nothing under way writes positions and slots (p.early), angles and places are worked out before the wait.
__device__ __forceinline__ void heads_pieces(const HeadsParams &p) {
    __shared__ f32 sines[HEADS_PAIRS], cosines[HEADS_PAIRS];
    u32 half = u32(p.head_dim) / 2, pieces = half / PIECE, turned = u32(p.columns) / (2 * PIECE), j = threadIdx.x;
    u32 reach = u32(p.first + p.kept) / (2 * PIECE), all = reach > turned ? reach : turned;
    u64 first = p.first / PIECE, kept = p.kept / PIECE;
    f64 frequency = j < half && !p.frequencies ? half_turns(p, j) : 0.0;
    bool waited = p.early == 0;
    grid_launch_next();
    if (waited) {
        grid_wait();
    }
    if (j < half && p.frequencies) {
        frequency = half_turns(p, j);
    }
    for (u64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
        if (j < half) {
            sine_cosine(f64(p.positions[row]) * frequency, &sines[j], &cosines[j]);
        }
        i64 place = kept_place(p, row);
        if (!waited) {
            grid_wait();
            waited = true;
        }
        __syncthreads();
        Piece *pool = reinterpret_cast<Piece *>(p.pool + u64(place < 0 ? 0 : place) * p.kept);
        const Piece *weight = reinterpret_cast<const Piece *>(p.weight);
        // All threads take as many turns: lanes exchange sums.
        for (u32 begin = blockIdx.y * HEADS_THREADS; begin < all; begin += gridDim.y * HEADS_THREADS) {
            u32 item = begin + threadIdx.x, head = item / pieces, part = item - head * pieces, at = head * 2 * pieces + part;
            bool there = item < all, turns = item < turned;
            Piece *y = reinterpret_cast<Piece *>(p.y + row_start(p, row, at * PIECE));
            Piece low = {}, high = {};
            if (there) {
                low = y[at];
                high = y[at + pieces];
            }
            if (p.weight) {
                Piece other_low = low, other_high = high;
                norm_pieces(p, pieces, turns ? weight[at] : Piece{}, turns ? weight[at + pieces] : Piece{}, other_low, other_high);
                low = turns ? other_low : low;
                high = turns ? other_high : high;
            }
            if (turns) {
                f32 first_half[PIECE], second_half[PIECE];
#pragma unroll
                for (int e = 0; e < PIECE; e++) {
                    f32 a = Packed<element>::get(low, e), b = Packed<element>::get(high, e);
                    f32 sine = sines[part * PIECE + e], cosine = cosines[part * PIECE + e];
                    first_half[e] = a * cosine - b * sine;
                    second_half[e] = b * cosine + a * sine;
                }
#pragma unroll
                for (int w = 0; w < WORDS; w++) {
                    low.words[w] = Packed<element>::word(first_half, w);
                    high.words[w] = Packed<element>::word(second_half, w);
                }
                y[at] = low;
                y[at + pieces] = high;
            }
            if (there && place >= 0) {
                if (at - first < kept) {
                    pool[at - first] = low;
                }
                if (at + pieces - first < kept) {
                    pool[at + pieces - first] = high;
                }
            }
        }
        // The next row's sines take this place.
        __syncthreads();
    }
}

// The heads of a row at any place, turned by a block.
__device__ __forceinline__ void turn_heads(const HeadsParams &p, u64 row) {
#ifdef HEADS_APART
    HeadsParams part = p;
    part.columns = p.first;
    turn_row<HEADS_THREADS>(part, p.positions[row], p.y + row_start(p, row, 0), p.y + row_start(p, row, 0));
    part.columns = p.columns - p.first;
    element *kept = p.y + row_start(p, row, p.first) + p.first;
    turn_row<HEADS_THREADS>(part, p.positions[row], kept, kept);
#else
    element *y = p.y + row * p.stride;
    turn_row<HEADS_THREADS>(p, p.positions[row], y, y);
#endif
}

// Every size and place: a block a row, one head after another.
__device__ __forceinline__ void heads_elements(const HeadsParams &p) {
    __shared__ f32 scratch[HEADS_THREADS];
    grid_launch_next();
    grid_wait();
    for (u64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
        for (u64 head = 0; p.weight && head < p.columns; head += p.head_dim) {
            element *y = p.y + row_start(p, row, head);
            f32 squares = 0.0f;
            for (u64 c = head + threadIdx.x; c < head + p.head_dim; c += HEADS_THREADS) {
                squares += widen(y[c]) * widen(y[c]);
            }
            squares = block_sum<HEADS_THREADS>(squares, scratch);
            f32 factor = 1.0f / sqrtf(squares / f32(p.head_dim) + p.eps);
            for (u64 c = head + threadIdx.x; c < head + p.head_dim; c += HEADS_THREADS) {
                y[c] = narrow<element>(widen(y[c]) * factor * widen(p.weight[c]) + 0.0f);
            }
        }
        // The elements of a pair were normed by two threads, and what is kept is turned by others.
        __syncthreads();
        turn_heads(p, row);
        __syncthreads();
        i64 place = kept_place(p, row);
        for (u64 c = threadIdx.x; place >= 0 && c < p.kept; c += HEADS_THREADS) {
            p.pool[u64(place) * p.kept + c] = p.y[row_start(p, row, p.first + c) + p.first + c];
        }
    }
}
