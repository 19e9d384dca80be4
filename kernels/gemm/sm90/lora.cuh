// Y = act(X·Wᵀ + bias + what adapters of one basis add) + residual on the tensor cores of Hopper: gemm/sm90/mainloop.cuh where each stage
// has 16 more rows behind those of W, the basis's columns, so that h comes out of the same products as the sums. W is brought in
// the order of gemm/ordered_outputs.cuh.
#pragma once

#include "gemm/adapter_sums.cuh"
#include "gemm/ordered_outputs.cuh"
#include "gemm/sm90/mainloop.cuh"

template <u32 FORM> __device__ __forceinline__ void wgmma_lora_gemm(const GemmParams &p, char *shared, const AdapterSums &sums) {
    static_assert(CLUSTER == 2, "two blocks share the tile of W");
    constexpr u32 OUTPUTS = WGMMA_COLUMNS, W_BYTES = OUTPUTS * PANEL, WIDTH = OUTPUTS + BASIS_ROWS, RUNS = OUTPUTS / 32;
    const AdapterSlice &slice = sums.slices[0];
    WgmmaRing<WIDTH, WGMMA_STAGES> ring(shared);
    // As in wgmma_gemm: uniform.
    u32 group = shuffle_from(threadIdx.x / 128, 0), rank = cluster_rank();
    if (threadIdx.x == 0) {
        ring.init();
    }
    cluster_arrive();
    cluster_wait();
    grid_launch_next();
    grid_wait();
    u32 down = u32((p.rows + WGMMA_ROWS * CLUSTER - 1) / (WGMMA_ROWS * CLUSTER)), across = u32((p.columns + OUTPUTS - 1) / OUTPUTS);
    u32 steps = u32((p.depth + WGMMA_DEPTH - 1) / WGMMA_DEPTH), stage = 0, phase = 0;
    auto advance = [&] { ring.advance(stage, phase); };
    if (group == 2) {
        registers_give<40>();
        if (threadIdx.x == 256) {
            tma_prefetch_map(&p.x_map);
            tma_prefetch_map(&p.w_map);
            for (u32 index = blockIdx.x / CLUSTER; index < down * across; index += gridDim.x / CLUSTER) {
                u32 row, column;
                tile_place<BAND>(index, down, across, row, column);
                i32 y = i32((row * CLUSTER + rank) * WGMMA_ROWS), from = i32(column * RUNS + rank * (RUNS / 2));
                for (u32 step = 0; step < steps; step++) {
                    ring.wait_free(stage, phase);
                    u64 *full = ring.expect(stage);
                    char *x_tile = ring.x_tile(stage), *w_tile = x_tile + WGMMA_X_BYTES;
                    i32 k = i32(step * WGMMA_DEPTH);
                    tma_load_2d(x_tile, &p.x_map, full, k, y);
                    bulk_load(w_tile + W_BYTES, slice.basis + step * (BASIS_BYTES / 2), BASIS_BYTES, full);
                    tma_load_5d_multicast(w_tile + rank * (W_BYTES / 2), &p.w_map, full, k, 0, 0, 0, from, 3);
                    advance();
                }
            }
        }
        __syncwarp();
    } else {
        registers_take<232>();
        f32 d[WIDTH / 2];
        for (u32 index = blockIdx.x / CLUSTER; index < down * across; index += gridDim.x / CLUSTER) {
            u32 tile_row, tile_column;
            tile_place<BAND>(index, down, across, tile_row, tile_column);
            u64 first = u64(tile_row * CLUSTER + rank) * WGMMA_ROWS + group * 64, column = u64(tile_column) * OUTPUTS;
            AdapterRows rows;
            // Half of the columns: more would be spilled.
            FragmentsHeld<RUNS / 2> held;
            i64 left = i64(p.columns - column);
            // What the warp's first adapter adds by: on its way during all of K.
            rows.fetch_adapters(sums, first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, p.rows);
            held.template fetch<IN_TILES>(slice, sums.groups, rows.first(), column, left);
            u32 last = ring.multiply(stage, phase, group, 0, steps, d);
            wgmma_wait<0>();
            wgmma_hold(d);
            ring.release(last);
            rows.take(d + OUTPUTS / 2);
            rows.add<IN_TILES, RUNS>(slice, sums.groups, column, left, held, d);
            BiasFar bias = {p.bias ? p.bias + column : nullptr};
            if (p.residual) {
                write_rows<FORM, RUNS, true, false>(p, bias, first, column, d);
            } else {
                write_rows<FORM, RUNS, false, false>(p, bias, first, column, d);
            }
        }
    }
    // The other block may still write into this one, or arrive at its barriers.
    cluster_arrive();
    cluster_wait();
}
