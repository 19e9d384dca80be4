// O = softmax(scale·Q·Kᵀ + mask)·V on the tensor cores of Ampere and later: every form, size and stride, f16 and bf16.

#include "attention/sm80.cuh"

// Every row of Q, K and V starts on a multiple of 16 bytes.
extern "C" __global__ void __launch_bounds__(WARP_THREADS, TOGETHER) attention_sm80(const AttentionParams p) {
    extern __shared__ __align__(16) element shared[];
    attend<true>(p, shared);
}

// Rows start anywhere.
extern "C" __global__ void __launch_bounds__(WARP_THREADS, TOGETHER) attention_sm80_narrow(const AttentionParams p) {
    extern __shared__ __align__(16) element shared[];
    attend<false>(p, shared);
}
