// kernels/ptx/wgmma.cuh for g++.
#pragma once

#include "ptx/types.cuh"

inline void wgmma_fence() {}
inline void wgmma_commit() { emulated_wgmma_commit(); }
template <int PENDING> void wgmma_wait() { emulated_wgmma_wait(PENDING); }
template <int COUNT> void wgmma_hold(f32 (&)[COUNT]) {}
inline void hold_address(char *&) {}

enum Swizzle : u64 { SWIZZLE_NONE = 0, SWIZZLE_128 = 1, SWIZZLE_64 = 2, SWIZZLE_32 = 3 };

inline u64 wgmma_descriptor(u32 address, u32 leading, u32 stride, Swizzle swizzle) {
    u64 start = (address & 0x3ffff) >> 4;
    return start | u64((leading & 0x3ffff) >> 4) << 16 | u64((stride & 0x3ffff) >> 4) << 32 | u64(swizzle) << 62;
}

inline u64 wgmma_moved(u64 descriptor, u32 bytes) { return (descriptor & 0xffffffff00000000ull) | (u32(descriptor) + (bytes >> 4)); }

inline u64 wgmma_patterned(u64 descriptor, u32 stride, Swizzle swizzle) {
    return (wgmma_descriptor(0, 0, stride, swizzle) & 0xffffffff00000000ull) | u32(descriptor);
}

inline u64 wgmma_uniform(u64 descriptor) { return (descriptor & 0xffffffff00000000ull) | __shfl_sync(0xffffffffu, u32(descriptor), 0); }

template <class T> constexpr bool is_f16 = false;
template <> constexpr bool is_f16<f16> = true;

template <class T, int N, int A_MN = 0, int B_MN = 0> void wgmma_ss(f32 (&d)[N / 2], u64 a, u64 b, bool accumulate) {
    static_assert(N == 24 || N == 40 || N == 72 || N == 88 || N == 104 || N == 120 || N == 136 || N == 152 || N == 168 || (N % 16 == 0 && N <= 256), "a width that there is");
    emulated_wgmma({d, nullptr, a, b, N, A_MN, B_MN, accumulate, !is_f16<T>});
}

template <class T, int N, int B_MN = 0> void wgmma_rs(f32 (&d)[N / 2], const u32 (&a)[4], u64 b, bool accumulate) {
    static_assert(N % 16 == 0 && N <= 256 && N != 48, "a width that there is");
    emulated_wgmma({d, a, 0, b, N, false, B_MN, accumulate, !is_f16<T>});
}
