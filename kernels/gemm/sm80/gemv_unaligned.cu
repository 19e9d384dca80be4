// Y = act(X·Wᵀ + bias) + residual for up to 16 rows, f16 and bf16, where rows of W start anywhere.

#include "gemm/sm80/gemv_unaligned.cuh"

extern "C" __global__ void __launch_bounds__(GEMV_THREADS, 1) linear_gemv_unaligned(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(128) char shared[];
    gemv_gemm(p, shared);
}
