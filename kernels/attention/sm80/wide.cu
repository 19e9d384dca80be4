// O = softmax(scale·Q·Kᵀ + mask)·V on the tensor cores of Ampere and later, for sequences without lists and with many queries.

#include "attention/sm80/held.cuh"
#include "attention/sm80/wide.cuh"
#include "attention/sm80/halves.cuh"
#include "ptx/grid.cuh"

constexpr int GENERAL_BYTES = (ROWS<1> + 2 * KEYS) * Swizzled::PITCH * 2;
static_assert((HEAD_DIM <= 128 ? (ROWS<2> + 2 * KEYS) * Swizzled::PITCH * 2 : GENERAL_BYTES + HANDED_BYTES) == SHARED_BYTES, "what the host sets aside");

// Every row of Q, K and V starts on a multiple of 16 bytes. A warp takes 32 rows, and reads K and V half as often as one of 16 rows does.
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
