// Y = act(X·Wᵀ + bias + delta) + residual on the tensor cores of Ampere and later, f16 and bf16, every size. A delta lies in Y
// already. The number in a kernel's name is how many bytes it moves at once: what the rows' starts and lengths allow.

#include "gemm/sm80/fallback.cuh"
#include "tile/repack_operands.cuh"

extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) linear_mma_16(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<16, false>(p, shared);
}

// Rows on multiples of 16 bytes whose last piece is shorter: what follows in memory is no element of K.
extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) linear_mma_ragged(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    mma_gemm<16, false, true>(p, shared);
}
