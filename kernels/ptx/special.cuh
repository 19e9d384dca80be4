// Functions of the special-function unit, to about 2 ulp, bits, and exchange inside a warp.
#pragma once

#include "ptx/types.cuh"

// 2^value; 0 for what would be subnormal, and for -infinity.
__device__ __forceinline__ f32 exp2_fast(f32 value) {
    f32 power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
    return power;
}

// 1 / value; 0 for what would be subnormal.
__device__ __forceinline__ f32 reciprocal_fast(f32 value) {
    f32 inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(value));
    return inverse;
}

// The greater one; not a number where either is none, which fmaxf would hide.
__device__ __forceinline__ f32 max_or_nan(f32 a, f32 b) {
    f32 greater;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
    return greater;
}

// a · b, rounded: no sum behind it becomes one instruction with it.
__device__ __forceinline__ f32 product_rounded(f32 a, f32 b) {
    f32 product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
}

// (value & mask) | base as one instruction: of a base whose low bits it knows to be zero, the compiler makes two.
__device__ __forceinline__ u32 and_or(u32 value, u32 mask, u32 base) {
    u32 result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(value), "r"(mask), "r"(base));
    return result;
}

// The value of the lane whose number differs in the bits of `mask`. All lanes of the warp take part.
__device__ __forceinline__ f32 shuffle_xor(f32 value, u32 mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

// Has a number computed by here, and not where it is used first.
__device__ __forceinline__ void computed_here(i64 &number) { asm volatile("" : "+l"(number)); }

// Whether it holds for any lane of the warp. All take part.
__device__ __forceinline__ bool any_lane(bool holds) { return __any_sync(0xffffffffu, holds) != 0; }

// The bits that any lane of the warp has. All take part.
__device__ __forceinline__ u32 any_lane_bits(u32 bits) {
    u32 all;
    asm volatile("redux.sync.or.b32 %0, %1, 0xffffffff;" : "=r"(all) : "r"(bits));
    return all;
}

// The lanes for which it holds, a bit for each. All take part.
__device__ __forceinline__ u32 lanes_where(bool holds) { return __ballot_sync(0xffffffffu, holds); }

// Bits that are set.
__device__ __forceinline__ u32 count_ones(u32 bits) { return u32(__popc(bits)); }

// The value of lane `lane`, and of the lane `lanes` below (the own one where there is none). All lanes of the warp take part.
__device__ __forceinline__ u32 shuffle_from(u32 value, u32 lane) { return __shfl_sync(0xffffffffu, value, lane); }

__device__ __forceinline__ u32 shuffle_up(u32 value, u32 lanes) { return __shfl_up_sync(0xffffffffu, value, lanes); }

// The first lane for which it holds; it holds for one at least. All take part.
__device__ __forceinline__ u32 first_lane(bool holds) { return __ffs(__ballot_sync(0xffffffffu, holds)) - 1; }

// One more at `counter`; gives what was counted before. What this block wrote before a barrier in front of this is there for
// whoever counts later, and what others wrote before they counted is there for this block, behind a barrier.
__device__ __forceinline__ u32 count_arrival(u32 *counter) {
    u32 before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

// What has been counted at `counter`; what they wrote who counted before is there for this thread.
__device__ __forceinline__ u32 counted(const u32 *counter) {
    u32 count;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    return count;
}
