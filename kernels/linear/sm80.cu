// Y = act(X·Wᵀ + bias + delta) + residual on the tensor cores of Ampere and later, f16 and bf16, every size. The number in a
// kernel's name is how many bytes it moves at once: what the rows' starts and lengths allow.

#include "tile/mma_gemm.cuh"
#include "linear/delta.cuh"
#include "linear/mma_params.cuh"
#include "linear/repack.cuh"

// The adapters' share.
struct Delta {
    const LinearMmaParams &p;

    __device__ __forceinline__ f32 operator()(u64 row, u64 column) const {
        return p.token_adapter ? delta_of(p.token_adapter[row], p.projected, p.output, row, column) : 0.0f;
    }
};

extern "C" __global__ void __launch_bounds__(PROJECT_THREADS) linear_project(const LinearParams p) {
    __shared__ Projection space;
    project_tokens(p, space);
}

extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) linear_mma_16(const LinearMmaParams p) {
    extern __shared__ __align__(128) char shared[];
    mma_gemm<16, false>(p.gemm, shared, Delta{p});
}

extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) linear_mma_4(const LinearMmaParams p) {
    extern __shared__ __align__(128) char shared[];
    mma_gemm<4, false>(p.gemm, shared, Delta{p});
}

extern "C" __global__ void __launch_bounds__(MMA_THREADS, 2) linear_mma_2(const LinearMmaParams p) {
    extern __shared__ __align__(128) char shared[];
    mma_gemm<2, false>(p.gemm, shared, Delta{p});
}
