// Y = act(X·Wᵀ + bias) + residual, or act(X·Gᵀ) ⊙ (X·Wᵀ + bias) + residual, for 65 to 128 rows on Hopper, f16 and bf16: tiles of outputs, or a
// part of one's K, a block. It asks for as much of the weights as fits before the launch before has ended. Where an operand starts at an odd
// place, the kernels for Ampere take over.

#include "gemm/sm90/skinny_tile.cuh"

extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) gemm_skinny_tile(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_skinny_tile<SKINNY_TILE_COLUMNS, SKINNY_TILE_STAGES, TOKEN_STAGES, SKINNY_TILE_PARTS, ACTIVATION_FORM, SKINNY_TILE_GATED, SKINNY_TILE_SEVERAL>(p, shared);
}
