// Y = act(X·Wᵀ + bias + delta) + residual, or act(X·Gᵀ) ⊙ (X·Wᵀ + bias) + residual, on the tensor cores of Ampere and later, f16 and bf16,
// every size. A delta lies in Y already. The number in a kernel's name is how many bytes it moves at once: what the rows' starts and lengths
// allow. Beside the kernels for Hopper those of 4 and of 2 take over where an operand starts at an odd place, which only the launch knows.

#include "gemm/sm80/tile.cuh"

#ifdef COMPILE_gemm_mma_16
extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) gemm_mma_16(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<16, false>(p, shared);
}
#endif

// Rows on multiples of 16 bytes whose last piece is shorter: what follows in memory is no element of K.
#ifdef COMPILE_gemm_mma_ragged
extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) gemm_mma_ragged(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<16, false, true>(p, shared);
}
#endif

#ifdef COMPILE_gemm_mma_4
extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) gemm_mma_4(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<4, false>(p, shared);
}
#endif

#ifdef COMPILE_gemm_mma_2
extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) gemm_mma_2(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<2, false>(p, shared);
}
#endif

#ifdef COMPILE_gemm_gated_mma_16
extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) gemm_gated_mma_16(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<16, true>(p, shared);
}
#endif

#ifdef COMPILE_gemm_gated_mma_ragged
extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) gemm_gated_mma_ragged(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<16, true, true>(p, shared);
}
#endif

#ifdef COMPILE_gemm_gated_mma_4
extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) gemm_gated_mma_4(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<4, true>(p, shared);
}
#endif

#ifdef COMPILE_gemm_gated_mma_2
extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) gemm_gated_mma_2(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<2, true>(p, shared);
}
#endif
