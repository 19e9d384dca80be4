// Y = act(X·Wᵀ + bias) + residual on the tensor cores of Hopper for many rows and a short K, f16 and bf16. Where an operand starts at
// an odd place, the kernels for Ampere take over.

#include "tile/stationary_gemm.cuh"
#include "linear/mma.cuh"
#include "linear/adapted_params.cuh"

extern "C" __global__ void __launch_bounds__(STATIONARY_THREADS, 1) linear_stationary(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    stationary_gemm<ACTIVATION_FORM>(p, shared);
}

// With what adapters add, which a kernel before this one has prepared.
extern "C" __global__ void __launch_bounds__(STATIONARY_THREADS, 1) linear_stationary_adapted(const __grid_constant__ AdaptedParams p) {
    extern __shared__ __align__(1024) char shared[];
    stationary_gemm<ACTIVATION_FORM, true>(p.gemm, shared, p.sums);
}
