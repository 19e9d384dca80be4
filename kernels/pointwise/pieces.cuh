// What a lane moves of a row at once.
#pragma once

#include "ptx/types.cuh"

// Elements that a lane moves at once, and the words that they lie in.
constexpr int PIECE = 4, WORDS = PIECE * sizeof(element) / 4;

struct alignas(WORDS * 4) Piece {
    u32 words[WORDS];
};

// Element `e` of words, and word `w` of elements: a word holds two of 16 bits, and one of 32.
template <class T> struct Packed {
    template <class P> static __device__ __forceinline__ f32 get(const P &piece, int e) { return widen(T{u16(piece.words[e / 2] >> e % 2 * 16)}); }
    static __device__ __forceinline__ u32 word(const f32 *values, int w) { return narrow2<T>(values[w * 2], values[w * 2 + 1]); }
};

template <> struct Packed<f32> {
    template <class P> static __device__ __forceinline__ f32 get(const P &piece, int e) { return __uint_as_float(piece.words[e]); }
    static __device__ __forceinline__ u32 word(const f32 *values, int w) { return __float_as_uint(values[w]); }
};
