// Tiles of X·Wᵀ for a K of a step or two, where a launch's start and end take most of the time: one tile a block, all of K asked for at once,
// no cluster to meet, and room for several blocks on an SM.
#pragma once

#include "gemm/sm90/mainloop.cuh"

constexpr int SINGLE_SHOT_THREADS = 256;

// Y = act(X·Wᵀ + bias) + residual, for a K of at most STEPS steps; what adapters add is not looked for.
template <u32 COLUMNS, u32 STEPS, u32 FORM> __device__ __forceinline__ void wgmma_single_shot(const GemmParams &p, char *shared) {
    using P = Places<COLUMNS>;
    constexpr u32 W_BYTES = COLUMNS * PANEL, STAGE = WGMMA_X_BYTES + W_BYTES;
    char *tiles = shared + (1024 - shared_address(shared) % 1024) % 1024;
    u64 *full = (u64 *)(tiles + STEPS * STAGE);
    u32 down = u32((p.rows + WGMMA_ROWS - 1) / WGMMA_ROWS), steps = u32((p.depth + WGMMA_DEPTH - 1) / WGMMA_DEPTH);
    u64 row = u64(blockIdx.x % down) * WGMMA_ROWS, column = u64(blockIdx.x / down) * COLUMNS;
    grid_launch_next();
    if (threadIdx.x == 0) {
        for (u32 step = 0; step < steps; step++) {
            mbarrier_init(&full[step], 1);
        }
        fence_mbarrier_init();
        TileRows x(p, u32(row));
        grid_wait();
        for (u32 step = 0; step < steps; step++) {
            char *x_tile = tiles + step * STAGE, *w_tile = x_tile + WGMMA_X_BYTES;
            i32 k = i32(step * WGMMA_DEPTH);
            mbarrier_arrive_expect(&full[step], x.bytes + W_BYTES);
            x.load(p, x_tile, &full[step], k, i32(row));
#pragma unroll
            for (u32 run = 0; run < COLUMNS / 32; run++) {
                tma_load_4d(w_tile + run * 32 * PANEL, &p.w_map, &full[step], k, 0, i32(column) / 8 + i32(run * 4), 0);
            }
        }
    }
    __syncthreads();
    u32 group = shuffle_from(threadIdx.x / 128, 0);
    f32 d[COLUMNS / 2];
    u64 x_tiles = wgmma_descriptor(shared_address(tiles) + group * 64 * PANEL, 16, 8 * PANEL, SWIZZLE_128);
    u64 w_tiles = wgmma_descriptor(shared_address(tiles) + WGMMA_X_BYTES, 16, 8 * PANEL, SWIZZLE_128);
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
        if (step < steps) {
            mbarrier_wait(&full[step], 0);
            u64 x = wgmma_moved(x_tiles, step * STAGE), w = wgmma_moved(w_tiles, step * STAGE);
            multiply_stage<COLUMNS>(d, x, w, step > 0);
        }
    }
    // Where the host lets this kernel start early, the residual is still being written, or read where outputs go.
    grid_wait();
    Ahead ahead;
    if (p.residual) {
        read_ahead<P>(p, row, column, ahead);
    }
    wgmma_wait<0>();
    wgmma_hold(d);
    write_tile<P, false, FORM>(p, row, column, d, ahead);
}
