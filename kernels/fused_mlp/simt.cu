// Y = act(X·W1ᵀ + b1)·W2ᵀ + b2 + residual and its gated form, on the ordinary cores: every size, f32 as well.
//
// The host walks over chunks of tokens, and of d_ff where one row of the intermediate is too large for the workspace:
// `mlp_up` leaves the intermediate [rows, hidden] in the workspace, `mlp_down` takes it on to y. Over several chunks of
// d_ff the sums of `mlp_down` wait in `partial` [rows, d_out] f32.

#include "tile/activation.cuh"
#include "gemm/gemm.cuh"
#include "fused_mlp/params.cuh"

#ifdef COMPILE_mlp_up
extern "C" __global__ void __launch_bounds__(THREADS) mlp_up(const FusedMlpParams p) {
    u64 across = (p.hidden + TILE - 1) / TILE, tiles = (p.rows + TILE - 1) / TILE * across;
    for (u64 index = blockIdx.x; index < tiles; index += gridDim.x) {
        Tile tile = {index / across * TILE, index % across * TILE, p.rows, p.hidden, p.d_model, p.x_stride, p.w1_stride};
        f32 sum[2][EACH][EACH];
        if (p.wg) {
            multiply<2>(tile, p.x, {p.w1, p.wg}, sum);
        } else {
            f32 up[1][EACH][EACH];
            multiply<1>(tile, p.x, {p.w1}, up);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    sum[0][i][j] = up[0][i][j];
                    sum[1][i][j] = 0.0f;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                u64 row = tile.row + tile_row(i), column = tile.column + tile_column(j);
                if (row < p.rows && column < p.hidden) {
                    f32 up = sum[0][i][j] + (p.b1 ? widen(p.b1[column]) : 0.0f);
                    f32 value = p.wg ? activate(p.activation, sum[1][i][j]) * up : activate(p.activation, up);
                    p.intermediate[row * p.hidden + column] = narrow<element>(value);
                }
            }
        }
    }
}
#endif

#ifdef COMPILE_mlp_down
extern "C" __global__ void __launch_bounds__(THREADS) mlp_down(const FusedMlpParams p) {
    u64 across = (p.d_out + TILE - 1) / TILE, tiles = (p.rows + TILE - 1) / TILE * across;
    for (u64 index = blockIdx.x; index < tiles; index += gridDim.x) {
        Tile tile = {index / across * TILE, index % across * TILE, p.rows, p.d_out, p.hidden, p.hidden, p.w2_stride};
        f32 sum[1][EACH][EACH];
        multiply<1>(tile, p.intermediate, {p.w2}, sum);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                u64 row = tile.row + tile_row(i), column = tile.column + tile_column(j);
                if (row >= p.rows || column >= p.d_out) {
                    continue;
                }
                u64 at = row * p.d_out + column;
                f32 value = sum[0][i][j] + (p.first ? 0.0f : p.partial[at]);
                if (!p.last) {
                    p.partial[at] = value;
                    continue;
                }
                value += p.b2 ? widen(p.b2[column]) : 0.0f;
                value += p.residual ? widen(p.residual[at]) : 0.0f;
                p.y[at] = narrow<element>(value);
            }
        }
    }
}
#endif
