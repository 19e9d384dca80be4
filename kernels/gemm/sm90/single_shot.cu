// Y = act(X·Wᵀ + bias) + residual on the tensor cores of Hopper for a K of a step or two, f16 and bf16. Where an operand starts at an odd
// place, the kernels for Ampere take over.

#include "gemm/sm90/single_shot.cuh"

extern "C" __global__ void __launch_bounds__(SINGLE_SHOT_THREADS, SINGLE_SHOT_BLOCKS) linear_single_shot(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_single_shot<WGMMA_COLUMNS, SINGLE_SHOT_STEPS, ACTIVATION_FORM>(p, shared);
}
