// Y = act(X·Wᵀ + bias) + residual on the tensor cores of Hopper, f16 and bf16. TMA wants every row on a multiple of 16 bytes,
// so rows of an odd length are copied first. Where an operand itself starts at an odd place, the kernels for Ampere take over.

#include "tile/wgmma_basis.cuh"
#include "linear/mma.cuh"
#include "tile/repack_operands.cuh"
#include "linear/adapted_params.cuh"

extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) linear_wgmma(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_gemm<WGMMA_COLUMNS, WGMMA_STAGES, false, ACTIVATION_FORM, false, false, WGMMA_ACROSS>(p, shared);
}

// For a long K where tiles are few. A kernel of its own: the same loop is 2 us slower at 512 rows beside the code for parts.
#if WGMMA_CUTS
extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) linear_wgmma_cut(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_gemm<WGMMA_COLUMNS, WGMMA_STAGES, false, ACTIVATION_FORM, true, false, WGMMA_ACROSS>(p, shared);
}
#endif

// With what adapters add, their basis as further rows of W.
#if WGMMA_BASIS
extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) linear_wgmma_basis(const __grid_constant__ AdaptedParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_basis_gemm<ACTIVATION_FORM>(p.gemm, shared, p.sums);
}
#endif

// For outputs that cannot be moved 16 bytes at a time, cut or not.
extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) linear_wgmma_odd(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_gemm<WGMMA_COLUMNS, WGMMA_STAGES, false, ACTIVATION_FORM, WGMMA_CUTS, true, WGMMA_ACROSS>(p, shared);
}
