// From sums to outputs, as the tensor-core kernels of `linear` and `fused_mlp` share it.
#pragma once

#include "tile/activation.cuh"
#include "tile/columns.cuh"
#include "gemm/gemm_params.cuh"

// 16 bytes that move in one instruction.
struct alignas(16) u32x4 {
    u32 word[4];
};

// Where tile number `index` lies, in tiles. Neighbours in time are neighbours in a band of BAND rows, so that what they share
// is still in L2.
template <u32 BAND, class T> __device__ __forceinline__ void tile_place(T index, T down, T across, T &row, T &column) {
    T band = index / (BAND * across), inside = index - band * BAND * across;
    T first = band * BAND, height = down - first < BAND ? down - first : BAND;
    row = first + inside % height;
    column = inside / height;
}

// The activations, by what they cost: each has its own code, unrolled over every sum of a thread.
enum ActivationForm : u32 { FLOOR = 0, SIGMOID = 1, EXACT_GELU = 2, AS_IT_IS = 3 };

// With the numbers of `p`. FLOOR: x, but `floor` at least (none: -infinity; relu: 0). SIGMOID: x·σ(x·(a + b·x²)) (silu, and gelu
// with tanh). AS_IT_IS: x, where a kernel has found out that the floor is -infinity. By the fast instructions for e^x and 1/x: their error is far below half a unit of a 16-bit result.
template <u32 FORM> __device__ __forceinline__ f32 activate_form(const GemmParams &p, f32 x) {
    if constexpr (FORM == AS_IT_IS) {
        return x;
    } else if constexpr (FORM == FLOOR) {
        // A NaN stays one.
        return max_or_nan(x, p.floor);
    } else if constexpr (FORM == SIGMOID) {
        // 2 to the power of this is e^(−x·(a + b·x²)), whose subnormal numbers are as good as zero.
        constexpr f32 LOG2_E = 1.4426950408889634f;
        f32 power = x * (-LOG2_E * p.sigmoid_a - LOG2_E * p.sigmoid_b * x * x);
        return x * reciprocal_fast(1.0f + exp2_fast(power));
    } else {
        return activate(GELU_ERF, x);
    }
}
