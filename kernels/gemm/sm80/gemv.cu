// Few rows of X, a small W in registers; and the same of rows that begin and end anywhere.

#include "gemm/sm80/gemv.cuh"

#if GEMV_ALIGNED
extern "C" __global__ void __launch_bounds__(GEMV_THREADS, GEMV_CHUNKS * GEMV_WEIGHTS > 8 ? 1 : 2) linear_gemv(const GemvParams p) {
    extern __shared__ __align__(16) char shared[];
    gemv_few(p, shared);
}
#else
extern "C" __global__ void __launch_bounds__(GEMV_THREADS, 2) linear_gemv_anywhere(const GemvParams p) {
    extern __shared__ __align__(16) char shared[];
    gemv_few(p, shared);
}
#endif
