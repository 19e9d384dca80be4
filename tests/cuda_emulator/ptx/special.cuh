// kernels/ptx/special.cuh for g++.
#pragma once

#include "ptx/warp.cuh"

inline f32 exp2_fast(f32 value) { return exp2f(value); }

inline f32 reciprocal_fast(f32 value) { return 1.0f / value; }

inline f32 max_or_nan(f32 a, f32 b) { return a > b || a != a ? a : b; }

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

inline u32 lanes_where(bool holds) {
    Lanes<bool> lanes(holds);
    u32 all = 0;
    for (u32 lane = 0; lane < 32; lane++) {
        all |= u32(lanes[lane]) << lane;
    }
    return all;
}

inline u32 count_ones(u32 bits) { return u32(__builtin_popcount(bits)); }

inline u32 shuffle_from(u32 value, u32 lane) {
    Lanes<u32> lanes(value);
    return lanes[lane];
}

inline u32 shuffle_up(u32 value, u32 count) {
    Lanes<u32> lanes(value);
    u32 lane = threadIdx.x % 32;
    return lanes[lane < count ? lane : lane - count];
}

inline u32 first_lane(bool holds) {
    Lanes<bool> lanes(holds);
    u32 lane = 0;
    while (!lanes[lane]) {
        lane++;
    }
    return lane;
}

// One thread runs at a time.
inline u32 count_arrival(u32 *counter) { return (*counter)++; }
