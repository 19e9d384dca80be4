// Y = act(X·Wᵀ + bias) + residual, or act(X·Gᵀ) ⊙ (X·Wᵀ + bias) + residual, on the tensor cores of Hopper, f16 and bf16. TMA wants every row
// on a multiple of 16 bytes, so rows of an odd length are copied first. Where an operand itself starts at an odd place, the kernels for Ampere
// take over.

#include "gemm/sm90/split_k_multicast.cuh"
#include "gemm/sm90/split_k_cluster.cuh"
#include "gemm/sm90/tiles.cuh"
#ifdef COMPILE_gemm_wgmma_lora
#include "gemm/sm90/lora.cuh"
#include "gemm/adapted_params.cuh"
#endif

#if WGMMA_SPLIT_K_MULTICAST
typedef SplitKParams TileParams;
#else
typedef GemmParams TileParams;
#endif

// UNALIGNED: for outputs that cannot be moved 16 bytes at a time.
template <bool UNALIGNED> __device__ __forceinline__ void product_tiles(const TileParams &p, char *shared) {
#if WGMMA_SPLIT_K_MULTICAST
    wgmma_split_k_multicast<WGMMA_COLUMNS, WGMMA_STAGES, WGMMA_PARTS, ACTIVATION_FORM, UNALIGNED>(p, shared);
#elif WGMMA_SPLIT_K_CLUSTER
    wgmma_split_k_cluster<WGMMA_COLUMNS, WGMMA_STAGES, WGMMA_PARTS, ACTIVATION_FORM, UNALIGNED>(p, shared);
#else
    if constexpr (UNALIGNED) {
        wgmma_gemm<WGMMA_COLUMNS, WGMMA_STAGES, false, ACTIVATION_FORM, true>(p, shared);
    } else {
        wgmma_tiles<WGMMA_COLUMNS, WGMMA_LAST, WGMMA_STAGES, WGMMA_PINGPONG, WGMMA_GATED, ACTIVATION_FORM>(p, shared);
    }
#endif
}

#ifdef COMPILE_gemm_wgmma
extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) gemm_wgmma(const __grid_constant__ TileParams p) {
    extern __shared__ __align__(1024) char shared[];
    product_tiles<false>(p, shared);
}
#endif

#ifdef COMPILE_gemm_wgmma_unaligned
extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) gemm_wgmma_unaligned(const __grid_constant__ TileParams p) {
    extern __shared__ __align__(1024) char shared[];
    product_tiles<true>(p, shared);
}
#endif

// With what adapters add, their basis as further rows of W.
#ifdef COMPILE_gemm_wgmma_lora
extern "C" __global__ void __launch_bounds__(WGMMA_THREADS, 1) gemm_wgmma_lora(const __grid_constant__ AdaptedParams p) {
    extern __shared__ __align__(1024) char shared[];
    wgmma_lora_gemm<ACTIVATION_FORM>(p.gemm, shared, p.sums);
}
#endif
