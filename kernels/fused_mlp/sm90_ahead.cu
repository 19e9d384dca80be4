// Y = act(X·W1ᵀ + b1)·W2ᵀ + b2 + residual, gated or not, for 65 to 128 tokens on Hopper, f16 and bf16: two launches, a tile of outputs a block.
// Each asks for as much of its weights as fits before the launch before has ended. Where an operand starts at an odd place, the kernels for Ampere take over.

#include "gemm/sm90/skinny_tile.cuh"
#include "fused_mlp/mma.cuh"
#include "tile/repack_operands.cuh"

extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) mlp_up_ahead(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_ahead<UP_COLUMNS, UP_STAGES, UP_TOKEN_STAGES, UP_PARTS, ACTIVATION_FORM, MLP_GATED, AHEAD_SEVERAL>(p, shared);
}

extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) mlp_down_ahead(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_ahead<DOWN_COLUMNS, DOWN_STAGES, DOWN_TOKEN_STAGES, DOWN_PARTS, FLOOR>(p, shared);
}
