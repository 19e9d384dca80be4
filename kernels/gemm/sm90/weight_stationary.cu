// Y = act(X·Wᵀ + bias) + residual on the tensor cores of Hopper for many rows and a short K, f16 and bf16. Where an operand starts at
// an odd place, the kernels for Ampere take over.

#include "gemm/sm90/weight_stationary.cuh"
#include "gemm/adapted_params.cuh"

#ifdef COMPILE_linear_weight_stationary
extern "C" __global__ void __launch_bounds__(WEIGHT_STATIONARY_THREADS, 1) linear_weight_stationary(const __grid_constant__ GemmParams p) {
    extern __shared__ __align__(1024) char shared[];
    weight_stationary_gemm<ACTIVATION_FORM>(p, shared);
}
#endif

// With what adapters add, of which a kernel before this one has left h.
#ifdef COMPILE_linear_weight_stationary_adapted
extern "C" __global__ void __launch_bounds__(WEIGHT_STATIONARY_THREADS, 1) linear_weight_stationary_adapted(const __grid_constant__ AdaptedParams p) {
    extern __shared__ __align__(1024) char shared[];
    weight_stationary_gemm<ACTIVATION_FORM, SHRUNK>(p.gemm, shared, p.sums);
}
#endif

// And with their basis as further rows of W.
#ifdef COMPILE_linear_weight_stationary_lora
extern "C" __global__ void __launch_bounds__(WEIGHT_STATIONARY_THREADS, 1) linear_weight_stationary_lora(const __grid_constant__ AdaptedParams p) {
    extern __shared__ __align__(1024) char shared[];
    weight_stationary_gemm<ACTIVATION_FORM, WITH_LORA>(p.gemm, shared, p.sums);
}
#endif
