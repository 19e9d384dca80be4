// kernels/ptx/mma.cuh for g++.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/warp.cuh"

// COUNT tiles of 8 × 8: lane l gets row l / 4, columns 2·(l % 4) and the next, or of the transposed tile.
template <int COUNT> void emulated_ldmatrix(u32 (&to)[COUNT], u32 address, bool transposed) {
    Lanes<u32> addresses(address);
    u32 lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    for (u32 i = 0; i < COUNT; i++) {
        u16 both[2];
        for (u32 e = 0; e < 2; e++) {
            u32 r = transposed ? column + e : row, c = transposed ? row : column + e;
            memcpy(&both[e], emulated_place()->shared + addresses[i * 8 + r] + c * 2, 2);
        }
        to[i] = both[0] | u32(both[1]) << 16;
    }
}

inline void ldmatrix_x4(u32 (&to)[4], u32 address) { emulated_ldmatrix(to, address, false); }
inline void ldmatrix_x2(u32 (&to)[2], u32 address) { emulated_ldmatrix(to, address, false); }
inline void ldmatrix_x4_transposed(u32 (&to)[4], u32 address) { emulated_ldmatrix(to, address, true); }
inline void ldmatrix_x2_transposed(u32 (&to)[2], u32 address) { emulated_ldmatrix(to, address, true); }

struct Fragments {
    u32 a[4], b[2];
};

template <class T> void mma_m16n8k16(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    Lanes<Fragments> lanes({{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
    u32 lane = threadIdx.x % 32;
    auto half = [](u32 both, u32 which) { return widen(T{u16(both >> 16 * which)}); };
    for (u32 i = 0; i < 4; i++) {
        u32 row = i / 2, column = lane % 4 * 2 + i % 2;
        for (u32 k = 0; k < 16; k++) {
            u32 pair = k % 8 / 2, upper = k / 8;
            f32 left = half(lanes[lane / 4 * 4 + pair].a[row + 2 * upper], k % 2);
            d[i] += left * half(lanes[column * 4 + pair].b[upper], k % 2);
        }
    }
}
