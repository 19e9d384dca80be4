// Y = act(X'·Gᵀ) ⊙ (X·Wᵀ) of a gate and what it lets through, each with rows of its own, on the ordinary cores: every size and place. Sums in f32,
// nothing rounded before Y. It stands in where operands start at places that TMA cannot read.

#include "tile/activation.cuh"
#include "gemm/gemm.cuh"
#include "gemm/gated_pair_params.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) gemm_gated_pair(const GatedPairParams p) {
    u64 across = (p.columns + TILE - 1) / TILE, tiles = (p.rows + TILE - 1) / TILE * across;
    for (u64 index = blockIdx.x; index < tiles; index += gridDim.x) {
        Tile tile = {index / across * TILE, index % across * TILE, p.rows, p.columns, p.gate_depth, p.gate_x_stride, p.gate_w_stride};
        f32 gate[1][EACH][EACH], sum[1][EACH][EACH];
        multiply<1>(tile, p.gate_x, {p.gate_w}, gate);
        tile.depth = p.depth;
        tile.x_stride = p.x_stride;
        tile.w_stride = p.w_stride;
        multiply<1>(tile, p.x, {p.w}, sum);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                u64 row = tile.row + tile_row(i), column = tile.column + tile_column(j);
                if (row < p.rows && column < p.columns) {
                    p.y[row * p.columns + column] = narrow<element>(activate(p.activation, gate[0][i][j]) * sum[0][i][j]);
                }
            }
        }
    }
}
