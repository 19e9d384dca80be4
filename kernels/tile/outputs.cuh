// From sums to outputs, as the tensor-core kernels of `linear` and `fused_mlp` share it.
#pragma once

#include "ptx/types.cuh"
#include "tile/gemm_params.cuh"

// 16 bytes that move in one instruction.
struct alignas(16) u32x4 {
    u32 word[4];
};

__device__ __forceinline__ f32 low_half(u32 both) { return widen(element{u16(both)}); }
__device__ __forceinline__ f32 high_half(u32 both) { return widen(element{u16(both >> 16)}); }

// Where tile number `index` lies, in tiles. Neighbours in time are neighbours in a band of BAND rows, so that what they share
// is still in the second-level cache.
template <u32 BAND> __device__ __forceinline__ void tile_place(u64 index, u64 down, u64 across, u64 &row, u64 &column) {
    u64 band = index / (BAND * across), inside = index - band * BAND * across;
    u64 first = band * BAND, height = down - first < BAND ? down - first : BAND;
    row = first + inside % height;
    column = inside / height;
}
