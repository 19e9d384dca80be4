// kernels/ptx/mma.cuh for g++. The last lane of a warp to come does the work of all.
#pragma once

#include "ptx/copy.cuh"

// COUNT tiles of 8 × 8: lane l gets row l / 4, columns 2·(l % 4) and the next, or of the transposed tile.
template <int COUNT> void emulated_ldmatrix(u32 (&to)[COUNT], u32 address, bool transposed) {
    struct Lane {
        u32 *to, address;
    };
    EmulatedLanes<Lane>({to, address}, [&](const EmulatedLanes<Lane> &lanes) {
        for (u32 i = 0; i < COUNT; i++) {
            const u16 *rows[8];
            for (u32 r = 0; r < 8; r++) {
                rows[r] = (const u16 *)emulated_shared(lanes[i * 8 + r].address, 16);
            }
            for (u32 lane = 0; lane < 32; lane++) {
                u32 row = lane / 4, column = lane % 4 * 2;
                u16 low = transposed ? rows[column][row] : rows[row][column], high = transposed ? rows[column + 1][row] : rows[row][column + 1];
                lanes[lane].to[i] = low | u32(high) << 16;
            }
        }
    });
}

inline void ldmatrix_x4(u32 (&to)[4], u32 address) { emulated_ldmatrix(to, address, false); }
inline void ldmatrix_x2(u32 (&to)[2], u32 address) { emulated_ldmatrix(to, address, false); }
inline void ldmatrix_x4_transposed(u32 (&to)[4], u32 address) { emulated_ldmatrix(to, address, true); }
inline void ldmatrix_x2_transposed(u32 (&to)[2], u32 address) { emulated_ldmatrix(to, address, true); }

inline u32 transpose_8x8(u32 pair) {
    EmulatedLanes<u32> lanes(pair);
    u32 lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2, shift = row % 2 * 16;
    return (lanes[column * 4 + row / 2] >> shift & 0xffff) | (lanes[(column + 1) * 4 + row / 2] >> shift & 0xffff) << 16;
}

template <class T> void mma_m16n8k16(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    typedef f32 Eight __attribute__((vector_size(32)));
    struct Lane {
        f32 *d;
        u32 a[4], b[2];
    };
    EmulatedLanes<Lane>({d, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, [](const EmulatedLanes<Lane> &lanes) {
        f32 left[16][16];
        Eight right[16], sum[16];
        auto half = [](u32 both, u32 which) { return widen(T{u16(both >> 16 * which)}); };
        for (u32 lane = 0; lane < 32; lane++) {
            u32 high = lane / 4, low = lane % 4 * 2;
            for (u32 i = 0; i < 8; i++) {
                left[high + i / 2 % 2 * 8][low + i / 4 * 8 + i % 2] = half(lanes[lane].a[i / 2], i % 2);
            }
            for (u32 i = 0; i < 4; i++) {
                right[low + i / 2 * 8 + i % 2][high] = half(lanes[lane].b[i / 2], i % 2);
                sum[high + i / 2 * 8][low + i % 2] = lanes[lane].d[i];
            }
        }
        for (u32 row = 0; row < 16; row++) {
            for (u32 k = 0; k < 16; k++) {
                sum[row] += left[row][k] * right[k];
            }
        }
        for (u32 lane = 0; lane < 32; lane++) {
            for (u32 i = 0; i < 4; i++) {
                lanes[lane].d[i] = sum[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
            }
        }
    });
}
