// O = softmax(scale·Q·Kᵀ + mask)·V on the tensor cores of Ampere and later: every form, size and stride, f16 and bf16.

#include "attention/repack.cuh"
#include "attention/lists.cuh"
#include "attention/narrow.cuh"
#include "attention/sm80_wide.cuh"

// Every row of Q, K and V starts on a multiple of 16 bytes.
extern "C" __global__ void __launch_bounds__(WARP_THREADS, TOGETHER) attention_sm80(const AttentionParams p) {
    extern __shared__ __align__(16) element shared[];
    grid_wait();
    attend<true, true, 1>(p, shared);
}

// As the first, for sequences without lists and with many queries: a warp takes
// 32 rows where its registers can, and reads K and V half as often.
extern "C" __global__ void __launch_bounds__(WARP_THREADS, 2) attention_sm80_wide(const AttentionParams p) {
    extern __shared__ __align__(16) element shared[];
    grid_wait();
    attend_wide<WIDE>(p, shared);
}
