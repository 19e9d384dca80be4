// Numbers: fixed-size integers, and the 16-bit floating-point types as storage with exact or once-rounded
// conversion. No system header is included, so that a user needs the driver and NVRTC and nothing else.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

static_assert(sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(void *) == 8, "a 64-bit device");

// IEEE 754 binary16.
struct f16 {
    u16 bits;
};

// The upper half of a binary32.
struct bf16 {
    u16 bits;
};

__device__ __forceinline__ f32 widen(f32 value) { return value; }

__device__ __forceinline__ f32 widen(f16 value) {
    f32 wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}

__device__ __forceinline__ f32 widen(bf16 value) { return __uint_as_float(u32(value.bits) << 16); }

// Rounding is to nearest, ties to even; too large becomes infinite.
template <class T> __device__ __forceinline__ T narrow(f32 value);

template <> __device__ __forceinline__ f32 narrow<f32>(f32 value) { return value; }

template <> __device__ __forceinline__ f16 narrow<f16>(f32 value) {
    f16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(value));
    return half;
}

template <> __device__ __forceinline__ bf16 narrow<bf16>(f32 value) {
    bf16 half;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half.bits) : "f"(value));
    return half;
}

// Two values in one register, `low` in the low half: the form that the tensor cores read.
template <class T> __device__ __forceinline__ u32 narrow2(f32 low, f32 high);

template <> __device__ __forceinline__ u32 narrow2<f16>(f32 low, f32 high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

template <> __device__ __forceinline__ u32 narrow2<bf16>(f32 low, f32 high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ __forceinline__ f32 infinity() { return __uint_as_float(0x7f800000u); }

// The dtype of the operation that is being compiled.
#ifdef ELEMENT
typedef ELEMENT element;
#endif
