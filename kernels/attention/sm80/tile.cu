// O = softmax(scale·Q·Kᵀ + mask)·V on the tensor cores of Ampere and later: every form, size and stride, f16 and bf16.

#include "attention/sm80/tile.cuh"
#include "ptx/grid.cuh"

static_assert((ROWS<1> + 2 * KEYS) * Swizzled::PITCH * 2 == SHARED_BYTES, "what the host sets aside");

// Every row of Q, K and V starts on a multiple of 16 bytes.
extern "C" __global__ void __launch_bounds__(WARP_THREADS, TOGETHER) attention_sm80(const AttentionParams p) {
    extern __shared__ __align__(128) element shared[];
    grid_wait();
    attend<true>(p, shared);
}
