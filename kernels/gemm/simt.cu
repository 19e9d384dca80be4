// Y = act(X·Wᵀ + bias + delta) + residual, on the ordinary cores: every size, f32 as well.
//
// X [rows, depth], W [columns, depth], with strides, Y [rows, columns], packed; sums in f32, nothing rounded before Y. Where there is a
// delta, `linear_shrink` first leaves s·h·Q of each token in the workspace, [rows, rank] f32.

#include "tile/activation.cuh"
#include "gemm/gemm.cuh"
#include "gemm/delta.cuh"
#include "gemm/y_element.cuh"

static_assert(THREADS == ROW_SHRINK_THREADS, "both kernels are started with the same block");

#ifdef COMPILE_linear_shrink
extern "C" __global__ void __launch_bounds__(ROW_SHRINK_THREADS) linear_shrink(const LinearParams p) {
    __shared__ Shrinking space;
    shrink_tokens(p, space);
}
#endif

#ifdef COMPILE_linear_simt
extern "C" __global__ void __launch_bounds__(THREADS) linear_simt(const LinearParams p) {
    u64 across = (p.columns + TILE - 1) / TILE, tiles = (p.rows + TILE - 1) / TILE * across;
    for (u64 index = blockIdx.x; index < tiles; index += gridDim.x) {
        Tile tile = {index / across * TILE, index % across * TILE, p.rows, p.columns, p.depth, p.x_stride, p.w_stride};
        f32 sum[1][EACH][EACH];
        multiply<1>(tile, p.x, {p.w}, sum);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            u64 row = tile.row + tile_row(i);
            if (row >= p.rows) {
                break;
            }
            i32 adapter = p.token_adapter ? p.token_adapter[row] : -1;
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                u64 column = tile.column + tile_column(j);
                if (column >= p.columns) {
                    break;
                }
                f32 value = sum[0][i][j];
                if (p.bias) {
                    value += widen(p.bias[column]);
                }
                value += delta_of(adapter, p.shrunk, p.output, row, column);
                value = activate(p.activation, value);
                if (p.residual) {
                    value += widen(p.residual[row * p.columns + column]);
                }
                ((y_element *)p.y)[row * p.columns + column] = narrow<y_element>(value);
            }
        }
    }
}
#endif
