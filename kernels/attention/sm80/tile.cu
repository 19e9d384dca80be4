// O = softmax(scale·Q·Kᵀ + mask)·V on the tensor cores of Ampere and later: every form, size and stride, f16 and bf16.

#include "attention/repack.cuh"
#include "attention/block_lists.cuh"
#include "attention/sm80/unaligned.cuh"
#include "attention/sm80/held.cuh"
#include "attention/sm80/wide.cuh"
#include "attention/sm80/halves.cuh"

constexpr int GENERAL_BYTES = (ROWS<1> + 2 * KEYS) * Swizzled::PITCH * 2;
constexpr int WIDE_BYTES = HEAD_DIM <= 128 ? (ROWS<2> + 2 * KEYS) * Swizzled::PITCH * 2 : GENERAL_BYTES + HANDED_BYTES;
static_assert(SHARED_BYTES == WIDE_BYTES || SHARED_BYTES == GENERAL_BYTES, "what the host sets aside");

// Every row of Q, K and V starts on a multiple of 16 bytes.
extern "C" __global__ void __launch_bounds__(WARP_THREADS, TOGETHER) attention_sm80(const AttentionParams p) {
    extern __shared__ __align__(128) element shared[];
    grid_wait();
    attend<true>(p, shared);
}

// As the first, for sequences without lists and with many queries: a warp takes 32 rows, and reads K and V half as often.
extern "C" __global__ void __launch_bounds__(WARP_THREADS, 2) attention_sm80_wide(const AttentionParams p) {
    extern __shared__ __align__(128) element shared[];
    grid_wait();
    if constexpr (HEAD_DIM <= 80) {
        attend_held(p, shared);
    } else if constexpr (HEAD_DIM <= 128) {
        attend_wide(p, shared);
    } else {
        attend_halves(p, shared);
    }
}
