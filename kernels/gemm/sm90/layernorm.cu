// Y = LayerNorm(X·Wᵀ + bias + residual) on the tensor cores of Hopper, f16 and bf16, where a tile holds whole rows. Where an operand
// starts at an odd place, the kernels for Ampere leave the sums in Y, rounded once, and the rows are normalised there.

#include "gemm/layernorm_params.cuh"
#include "gemm/layernorm_rows_params.cuh"
#include "gemm/sm90/layernorm.cuh"
#include "gemm/layernorm_lora_params.cuh"

#ifdef COMPILE_linear_layernorm
extern "C" __global__ void __launch_bounds__(LAYERNORM_THREADS, 1) linear_layernorm(const __grid_constant__ LayernormParams p) {
    extern __shared__ __align__(1024) char shared[];
    layernorm_gemm<>(p, shared);
}
#endif

// With what adapters add, their basis as further rows of W.
#ifdef COMPILE_linear_layernorm_lora
extern "C" __global__ void __launch_bounds__(LAYERNORM_THREADS, 1) linear_layernorm_lora(const __grid_constant__ LayernormLoraParams p) {
    extern __shared__ __align__(1024) char shared[];
    layernorm_gemm<true>(p.norm, shared, p.sums);
}
#endif

// A warp a row.
#ifdef COMPILE_linear_layernorm_rows
extern "C" __global__ void __launch_bounds__(256) linear_layernorm_rows(const LayernormRowsParams p) {
    constexpr u32 EACH = LAYERNORM_COLUMNS / 32;
    u32 lane = threadIdx.x % 32;
    auto whole = [](f32 value) {
#pragma unroll
        for (u32 half = 16; half > 0; half /= 2) {
            value += shuffle_xor(value, half);
        }
        return value;
    };
    for (u64 row = u64(blockIdx.x) * 8 + threadIdx.x / 32; row < p.rows; row += u64(gridDim.x) * 8) {
        element *y = p.y + row * LAYERNORM_COLUMNS + lane;
        f32 z[EACH], sum = 0.0f, squares = 0.0f;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            z[i] = widen(y[i * 32]);
            sum += z[i];
        }
        f32 mean = whole(sum) / f32(LAYERNORM_COLUMNS);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            z[i] -= mean;
            squares += z[i] * z[i];
        }
        f32 factor = 1.0f / sqrtf(whole(squares) / f32(LAYERNORM_COLUMNS) + p.eps);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            u32 column = i * 32 + lane;
            y[i * 32] = narrow<element>(z[i] * factor * widen(p.weight[column]) + widen(p.shift[column]));
        }
    }
}
#endif
