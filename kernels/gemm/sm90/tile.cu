// Y = act(X·Wᵀ + bias) + residual, or act(X·Gᵀ) ⊙ (X·Wᵀ + bias) + residual, on the tensor cores of Hopper, f16 and bf16. TMA wants every row
// on a multiple of 16 bytes, so rows of an odd length are copied first. Where an operand itself starts at an odd place, the kernels for Ampere
// take over.

#include "gemm/sm90/split_k_multicast.cuh"
#include "gemm/sm90/split_k_cluster.cuh"
#include "gemm/sm90/tiles.cuh"
#ifdef COMPILE_gemm_wgmma_basis
#include "gemm/sm90/lora.cuh"
#include "gemm/adapted_params.cuh"
#endif

#if WGMMA_BOTH
typedef PartsParams TileParams;
#else
typedef GemmParams TileParams;
#endif

// ODD: for outputs that cannot be moved 16 bytes at a time.
template <bool ODD> __device__ __forceinline__ void product_tiles(const TileParams &p, char *shared) {
#if WGMMA_BOTH
    wgmma_parts<WGMMA_COLUMNS, WGMMA_STAGES, WGMMA_PARTS, ACTIVATION_FORM, ODD>(p, shared);
#elif WGMMA_SINGLE
    wgmma_single<WGMMA_COLUMNS, WGMMA_STAGES, WGMMA_PARTS, ACTIVATION_FORM, ODD>(p, shared);
#else
    if constexpr (ODD) {
        wgmma_gemm<WGMMA_COLUMNS, WGMMA_STAGES, false, ACTIVATION_FORM, true>(p, shared);
    } else {
        wgmma_tiles<WGMMA_COLUMNS, WGMMA_LAST, WGMMA_STAGES, WGMMA_IN_TURNS, WGMMA_GATED, ACTIVATION_FORM>(p, shared);
    }
#endif
}

#ifdef COMPILE_gemm_wgmma
extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) gemm_wgmma(const __grid_constant__ TileParams p) {
    extern __shared__ __align__(1024) char shared[];
    product_tiles<false>(p, shared);
}
#endif

#ifdef COMPILE_gemm_wgmma_odd
extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) gemm_wgmma_odd(const __grid_constant__ TileParams p) {
    extern __shared__ __align__(1024) char shared[];
    product_tiles<true>(p, shared);
}
#endif

// With what adapters add, their basis as further rows of W.
#ifdef COMPILE_gemm_wgmma_basis
extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) gemm_wgmma_basis(const __grid_constant__ AdaptedParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_basis_gemm<ACTIVATION_FORM>(p.gemm, shared, p.sums);
}
#endif
