// The way to Y where its rows do not start on multiples of 16 bytes, or are not whole in eights: through shared memory, eight of a warp's
// rows at a time. A row lies there by pairs of outputs, as the sums come, moved by as many pairs as it is from a multiple of 16 bytes
// in Y. So it is off by one element or by none, and goes out in words of 16 bytes: a row's words side by side in a warp, each
// shifted with the last pair of the word before. The words at a row's ends, which it shares with others, go element by element, all rows' at once.
// What is added comes in the same way, the other way round.
#pragma once

#include "ptx/special.cuh"
#include "gemm/sm90/epilogue.cuh"

constexpr u32 UNALIGNED_ROWS = 8;   // of a warp, at a time: as the lower and the upper rows of its sums

// The rows of one warp from Y's row `row` and output `column` on, and their room in shared memory.
template <class P> struct UnalignedRows {
    // A row's whole words, and one for what it is moved by: rows are then four banks from each other. Lanes of a row, and steps of a warp.
    static constexpr u32 WORDS = P::PIECES * 4 + P::REST / 8, LINE = (WORDS + 1) * 8, LANES = WORDS > 16 ? 32 : 16, STEPS = UNALIGNED_ROWS * LANES / 32;

    const GemmParams &p;
    element *lines;
    u64 start, stride;   // of the first row's place `column`, and of the next row's from there, in bytes
    i32 rows;            // that there are
    i32 width;           // outputs of the tile that there are
    u32 lane, word;      // this lane, and which of a row's words it moves

    // The word that a row's place `column` lies in, and elements from its start to there.
    struct Place {
        element *start;
        i32 shift;
    };

    __device__ __forceinline__ UnalignedRows(const GemmParams &p, element *lines, u64 row, u64 column, i32 width)
        : p(p), lines(lines), start((row * p.y_stride + column) * 2), stride(p.y_stride * 2),
          rows(row >= p.rows ? 0 : p.rows - row < 2 * UNALIGNED_ROWS ? i32(p.rows - row) : i32(2 * UNALIGNED_ROWS)), width(width), lane(threadIdx.x % 32),
          word(threadIdx.x % LANES) {}

    __device__ __forceinline__ bool there(u32 r) const { return i32(r) < rows; }

    __device__ __forceinline__ Place place(const element *of, u32 r) const {
        u64 at = u64(of) + start + r * stride;
        return {(element *)(at & ~u64(15)), i32(u32(at) % 16 / 2)};
    }

    // Which row of the eight this lane moves a word of in a step.
    __device__ __forceinline__ u32 row_of(u32 step) const { return step * (32 / LANES) + lane / LANES; }

    // Whether all of this lane's word of a row is there, and is this tile's.
    __device__ __forceinline__ bool whole(u32 r, i32 shift) const {
        return there(r) & (i32(word * 8) >= shift) & (i32(word * 8 + 8) <= shift + width);
    }

    // Where this thread's outputs of its lower or upper row lie: two of each eight.
    __device__ __forceinline__ element *own(const element *of, u32 upper) const {
        u32 r = lane / 4;
        return lines + r * LINE + place(of, upper * UNALIGNED_ROWS + r).shift / 2 * 2 + lane % 4 * 2;
    }

    // move(far, near) for the elements of words that a row shares with others: a lane for either end of a row.
    template <class Move> __device__ __forceinline__ void move_ends(const element *of, u32 upper, Move move) const {
        u32 r = lane % UNALIGNED_ROWS;
        bool high = lane >= UNALIGNED_ROWS;
        Place at = place(of, upper * UNALIGNED_ROWS + r);
        i32 begin = at.shift, end = at.shift + width, lowest = begin / 8 * 8, from = high ? end / 8 * 8 : lowest;
        // A row that ends in the word where it begins has one end, and a word that is whole has gone.
        bool some = lane < 2 * UNALIGNED_ROWS && there(upper * UNALIGNED_ROWS + r) && (high ? from > lowest : begin > lowest || end < lowest + 8);
        element *far = at.start + from, *near = lines + r * LINE + from - at.shift % 2;
#pragma unroll
        for (i32 i = 0; i < 8; i++) {
            if (some & (from + i >= begin) & (from + i < end)) {
                move(far[i], near[i]);
            }
        }
    }

    // Asks for the whole words of eight rows.
    __device__ __forceinline__ void fetch(const element *of, u32 upper, uint4 (&words)[STEPS]) const {
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            u32 r = upper * UNALIGNED_ROWS + row_of(step);
            Place from = place(of, r);
            words[step] = whole(r, from.shift) ? *(const uint4 *)(from.start + word * 8) : uint4{0, 0, 0, 0};
        }
    }

    // Puts them, and the ends of the rows, where the threads that own them look.
    __device__ __forceinline__ void bring(const element *of, u32 upper, const uint4 (&words)[STEPS]) const {
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            uint4 own = words[step];
            u32 next = shuffle_from(own.x, lane + 1), bits = u32(place(of, upper * UNALIGNED_ROWS + row_of(step)).shift % 2) * 16;
            if (word < WORDS) {
                *(uint4 *)(lines + row_of(step) * LINE + word * 8) = {__funnelshift_r(own.x, own.y, bits), __funnelshift_r(own.y, own.z, bits),
                                                                      __funnelshift_r(own.z, own.w, bits), __funnelshift_r(own.w, next, bits)};
            }
        }
        __syncwarp();
        move_ends(of, upper, [](const element &far, element &near) { near = far; });
        __syncwarp();
    }

    // Adds the elements of `of` to the sums.
    template <u32 SUMS> __device__ __forceinline__ void add(const element *of, f32 (&d)[SUMS]) const {
        uint4 words[STEPS];
        fetch(of, 0, words);
#pragma unroll
        for (u32 upper = 0; upper < 2; upper++) {
            bring(of, upper, words);
            if (upper == 0) {
                fetch(of, 1, words);
            }
            const element *found = own(of, upper);
#pragma unroll
            for (u32 i = 0; i < SUMS / 4; i++) {
                u32 two = *(const u32 *)(found + i * 8);
                d[i * 4 + upper * 2] += low_half(two);
                d[i * 4 + upper * 2 + 1] += high_half(two);
            }
            __syncwarp();
        }
    }

    // Writes the outputs.
    template <u32 SUMS> __device__ __forceinline__ void write(const f32 (&d)[SUMS]) const {
#pragma unroll
        for (u32 upper = 0; upper < 2; upper++) {
            element *to = own(p.y, upper);
#pragma unroll
            for (u32 i = 0; i < SUMS / 4; i++) {
                *(u32 *)(to + i * 8) = narrow2<element>(d[i * 4 + upper * 2], d[i * 4 + upper * 2 + 1]);
            }
            __syncwarp();
            // All reads before the first write: none waits for one of those.
            uint4 words[STEPS];
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) {
                words[step] = *(const uint4 *)(lines + row_of(step) * LINE + (word < WORDS ? word : 0) * 8);
            }
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) {
                u32 r = upper * UNALIGNED_ROWS + row_of(step);
                Place at = place(p.y, r);
                uint4 own = words[step];
                u32 before = shuffle_up(own.w, 1), bits = u32(at.shift % 2) * 16;
                uint4 moved = {__funnelshift_l(before, own.x, bits), __funnelshift_l(own.x, own.y, bits), __funnelshift_l(own.y, own.z, bits),
                               __funnelshift_l(own.z, own.w, bits)};
                if (whole(r, at.shift)) {
                    store_16(at.start + word * 8, moved);
                }
            }
            move_ends(p.y, upper, [](element &far, const element &near) { far = near; });
            __syncwarp();
        }
    }
};

// As write_tile, with W's rows in the order of the outputs. `room`: of shared memory, 8 · UNALIGNED_ROWS lines, from a multiple of 16 on.
template <class P, u32 FORM, u32 SUMS>
__device__ __forceinline__ void write_unaligned_tile(const GemmParams &p, u64 row, u64 column, f32 (&d)[SUMS], char *room) {
    // Said so that the compiler knows that all lanes have one.
    u32 warp = shuffle_from(threadIdx.x / 32, 0);
    i32 width = tile_width<P>(p, column);
    element *lines = (element *)room + warp * UNALIGNED_ROWS * UnalignedRows<P>::LINE;
    UnalignedRows<P> rows(p, lines, row + warp * 16, column, width);
    if (p.adds) {
        rows.add(p.y, d);
    }
    if (p.bias) {
#pragma unroll
        for (u32 i = 0; i < SUMS / 4; i++) {
#pragma unroll
            for (u32 e = 0; e < 2; e++) {
                // The sums of two rows, as D has them in ptx/wgmma.cuh.
                i32 output = i32(i * 8 + threadIdx.x % 4 * 2 + e);
                f32 bias = output < width ? widen(p.bias[column + output]) : 0.0f;
                d[i * 4 + e] += bias;
                d[i * 4 + e + 2] += bias;
            }
        }
    }
    if (activates<FORM>(p)) {
#pragma unroll
        for (u32 i = 0; i < SUMS; i++) {
            d[i] = activate_form<FORM>(p, d[i]);
        }
    }
    if (p.residual) {
        rows.add(p.residual, d);
    }
    rows.write(d);
}
