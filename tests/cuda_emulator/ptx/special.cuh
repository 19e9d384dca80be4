// kernels/ptx/special.cuh for g++.
#pragma once

#include "ptx/warp.cuh"

inline f32 exp2_fast(f32 value) { return exp2f(value); }

inline u32 and_or(u32 value, u32 mask, u32 base) { return (value & mask) | base; }

inline f32 shuffle_xor(f32 value, u32 mask) {
    Lanes<f32> lanes(value);
    return lanes[threadIdx.x % 32 ^ mask];
}

inline bool any_lane(bool holds) {
    Lanes<bool> lanes(holds);
    bool any = false;
    for (u32 lane = 0; lane < 32; lane++) {
        any |= lanes[lane];
    }
    return any;
}
