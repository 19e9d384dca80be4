// kernels/ptx/types.cuh for g++.
#pragma once

#include <immintrin.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

inline f32 widen(f32 value) { return value; }
inline f32 widen(f16 value) { return _cvtsh_ss(value.bits); }
inline f32 widen(bf16 value) { return __uint_as_float(u32(value.bits) << 16); }

template <class T> T narrow(f32 value);
template <> inline f32 narrow<f32>(f32 value) { return value; }
template <> inline f16 narrow<f16>(f32 value) { return {_cvtss_sh(value, 0)}; }
template <> inline bf16 narrow<bf16>(f32 value) {
    u32 bits = __float_as_uint(value);
    // To nearest, ties to even; a NaN stays one.
    return {value != value ? u16(0x7fff) : u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

template <class T> u32 narrow2(f32 low, f32 high) { return narrow<T>(low).bits | u32(narrow<T>(high).bits) << 16; }

inline f32 infinity() { return __uint_as_float(0x7f800000u); }

#ifdef ELEMENT
typedef ELEMENT element;
#endif
