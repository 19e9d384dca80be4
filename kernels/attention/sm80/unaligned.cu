// Attention of operands whose rows start anywhere: wherever a start is known only at launch.

#include "attention/sm80/tile.cuh"
#include "ptx/grid.cuh"

extern "C" __global__ void __launch_bounds__(WARP_THREADS, TOGETHER) attention_sm80_narrow(const AttentionParams p) {
    extern __shared__ __align__(128) element shared[];
    grid_wait();
    attend<false>(p, shared);
}
