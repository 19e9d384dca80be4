// A product's tiles on the tensor cores of Hopper, of whichever kind the host has chosen, for outputs that are moved 16 bytes at a time.
#pragma once

#include "gemm/sm90/pingpong.cuh"
#include "gemm/sm90/mixed_width.cuh"

// Of one width or of two; PINGPONG: of a warpgroup each.
template <u32 COLUMNS, u32 LAST, u32 RING, bool PINGPONG, bool GATED, u32 FORM> __device__ __forceinline__ void wgmma_tiles(const GemmParams &p, char *shared) {
    static_assert(!GATED || (LAST == COLUMNS && !PINGPONG), "a gated product has one width, and both warp groups share its tiles");
    static_assert(!PINGPONG || LAST == COLUMNS, "turns have one width");
    if constexpr (PINGPONG) {
        wgmma_pingpong<COLUMNS, RING, FORM>(p, shared);
    } else if constexpr (LAST == COLUMNS) {
        wgmma_gemm<COLUMNS, RING, GATED, FORM, false>(p, shared);
    } else {
        wgmma_mixed_width<COLUMNS, LAST, RING, FORM>(p, shared);
    }
}
