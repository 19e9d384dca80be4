// kernels/ptx/special.cuh for g++.
#pragma once

#include "ptx/types.cuh"

inline f32 exp2_fast(f32 value) { return exp2f(value); }

inline f32 reciprocal_fast(f32 value) { return 1.0f / value; }

inline f32 max_or_nan(f32 a, f32 b) { return a > b || a != a ? a : b; }

inline u32 and_or(u32 value, u32 mask, u32 base) { return (value & mask) | base; }

inline f32 shuffle_xor(f32 value, u32 mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

inline bool any_lane(bool holds) { return __any_sync(0xffffffffu, holds); }

inline u32 any_lane_bits(u32 bits) { return __reduce_or_sync(0xffffffffu, bits); }

inline u32 lanes_where(bool holds) { return __ballot_sync(0xffffffffu, holds); }

inline u32 count_ones(u32 bits) { return u32(__popc(bits)); }

inline u32 shuffle_from(u32 value, u32 lane) { return __shfl_sync(0xffffffffu, value, lane); }

inline u32 shuffle_up(u32 value, u32 count) { return __shfl_up_sync(0xffffffffu, value, count); }

inline u32 first_lane(bool holds) { return u32(__ffs(int(__ballot_sync(0xffffffffu, holds))) - 1); }

inline u32 count_arrival(u32 *counter) { return atomicAdd(counter, 1u); }

inline u32 counted(const u32 *counter) { return *(const volatile u32 *)counter; }

inline f32 product_rounded(f32 a, f32 b) { return a * b; }
inline void computed_here(i64 &) {}
