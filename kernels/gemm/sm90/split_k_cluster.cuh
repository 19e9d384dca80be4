// Tiles of X·Wᵀ where every block has one: few rows, or a long K where tiles are few. A block leaves its sums in shared memory, where the
// stages were, and outputs go from there to Y row by row, 16 bytes at a time or one by one, whatever the order of the sums was.
//
// The blocks of a cluster share the tile of outputs: each takes a part of K and finishes some of the tile's rows, adding up in the order of
// the parts.
#pragma once

#include "gemm/sm90/mainloop.cuh"
#include "gemm/y_element.cuh"

// The sums of a block's tile, row by row. A row has eight more: those of four rows that a warp stores at once are then in other banks.
template <u32 COLUMNS> struct TileSums {
    static constexpr u32 LINE = COLUMNS + 8;

    f32 *sums;

    // By all threads of warpgroup `group`.
    __device__ __forceinline__ void leave(u32 group, const f32 (&d)[COLUMNS / 2]) const {
        f32 *line = sums + (group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) * LINE + threadIdx.x % 4 * 2;
#pragma unroll
        for (u32 i = 0; i < COLUMNS / 8; i++) {
            *(float2 *)(line + i * 8) = {d[i * 4], d[i * 4 + 1]};
            *(float2 *)(line + 8 * LINE + i * 8) = {d[i * 4 + 2], d[i * 4 + 3]};
        }
    }
};

// COUNT neighbouring sums of any block of the cluster.
template <u32 COUNT> __device__ __forceinline__ void load_sums(u32 from, f32 (&sums)[COUNT]) {
    if constexpr (COUNT == 1) {
        sums[0] = cluster_load(from);
    } else {
#pragma unroll
        for (u32 i = 0; i < COUNT; i += 4) {
            float4 four = cluster_load_16(from + i * 4);
            sums[i] = four.x, sums[i + 1] = four.y, sums[i + 2] = four.z, sums[i + 3] = four.w;
        }
    }
}

__device__ __forceinline__ void add_elements(const element *from, f32 (&values)[1]) { values[0] += widen(*from); }

__device__ __forceinline__ void add_elements(const element *from, f32 (&values)[8]) {
    f32 more[8];
    widen_piece(*(const uint4 *)from, more);
#pragma unroll
    for (u32 k = 0; k < 8; k++) {
        values[k] += more[k];
    }
}

__device__ __forceinline__ void store_elements(y_element *to, const f32 (&values)[1]) { *to = narrow<y_element>(values[0]); }

__device__ __forceinline__ void store_elements(y_element *to, const f32 (&values)[8]) {
    if constexpr (WIDE_Y) {
        auto bits = [&](u32 k) { return __float_as_uint(values[k]); };
        store_16(to, {bits(0), bits(1), bits(2), bits(3)});
        store_16(to + 4, {bits(4), bits(5), bits(6), bits(7)});
    } else {
        auto two = [&](u32 k) { return narrow2<element>(values[k], values[k + 1]); };
        store_16(to, {two(0), two(2), two(4), two(6)});
    }
}

// Writes the outputs of rows `from` to `to` of the tile at row `y`, column `first`, from the sums of the cluster's blocks. By the threads of both warpgroups.
template <u32 COLUMNS, u32 PARTS, u32 FORM, bool UNALIGNED, u32 THREADS = 256, class Sums>
__device__ __forceinline__ void finish_rows(const GemmParams &p, const Sums &own, u64 y, u64 first, u32 from, u32 to) {
    constexpr u32 COUNT = UNALIGNED ? 1 : 8, ITEMS = COLUMNS / COUNT;
    u32 sums = shared_address(own.sums), blocks[PARTS];
#pragma unroll
    for (u32 i = 0; i < PARTS; i++) {
        blocks[i] = cluster_address(sums, i);
    }
    for (u32 item = from * ITEMS + threadIdx.x; item < to * ITEMS; item += THREADS) {
        u32 row = item / ITEMS, column = item % ITEMS * COUNT;
        u64 place = (y + row) * p.y_stride + first + column;
        if (first + column < p.columns) {
            f32 found[PARTS][COUNT];
#pragma unroll
            for (u32 i = 0; i < PARTS; i++) {
                load_sums(blocks[i] + (row * own.LINE + column) * 4, found[i]);
            }
            f32(&values)[COUNT] = found[0];
#pragma unroll
            for (u32 i = 1; i < PARTS; i++) {
#pragma unroll
                for (u32 k = 0; k < COUNT; k++) {
                    values[k] += found[i][k];
                }
            }
            if (p.adds) {
                add_elements(p.y + place, values);
            }
            if (p.bias) {
                add_elements(p.bias + first + column, values);
            }
#pragma unroll
            for (u32 k = 0; k < COUNT; k++) {
                values[k] = activate_form<FORM>(p, values[k]);
            }
            if (p.residual) {
                add_elements(p.residual + place, values);
            }
            store_elements((y_element *)p.y + place, values);
        }
    }
}

// Y = act(X·Wᵀ + bias) + residual.
template <u32 COLUMNS, u32 RING, u32 PARTS, u32 FORM, bool UNALIGNED> __device__ __forceinline__ void wgmma_split_k_cluster(const GemmParams &p, char *shared) {
    static_assert(PARTS == CLUSTER, "they share the tile");
    WgmmaRing<COLUMNS, RING, 1> ring(shared);
    TileSums<COLUMNS> sums{(f32 *)ring.tiles};
    // Said so that the compiler knows that a warp has one.
    u32 warp = shuffle_from(threadIdx.x / 32, 0), part = shuffle_from(cluster_rank(), 0);
    wgmma_open(ring, p);
    __syncthreads();
    wgmma_await(p);
    // Clusters side by side take tiles one below the other: what these share of W is then in L2.
    u32 down = u32((p.rows + WGMMA_ROWS - 1) / WGMMA_ROWS), tile = blockIdx.x / CLUSTER;
    u32 y = tile % down * WGMMA_ROWS, first = tile / down * COLUMNS;
    u32 steps = u32((p.depth + WGMMA_DEPTH - 1) / WGMMA_DEPTH), begin = steps * part / PARTS, end = steps * (part + 1) / PARTS;
    // This block's share of the rows that there are.
    u32 rows = u32(p.rows - y < WGMMA_ROWS ? p.rows - y : WGMMA_ROWS), from = rows * part / PARTS, to = rows * (part + 1) / PARTS;
    u32 stage = 0, phase = 0;
    if (warp >= 8) {
        registers_give<56>();
        if (warp == 8) {
            bool leads = elect_one();
            TileRows x(p, y);
            auto rows = [&](char *x_tile, u64 *full, i32 k) { x.load(p, x_tile, full, k, i32(y)); };
            auto weights = [&](char *w_tile, u64 *full, i32 k) { tma_load_2d_by(weights_hint(p), w_tile, &p.w_map, full, k, i32(first)); };
            ring.bring(stage, phase, leads, begin, end, x.bytes + COLUMNS * PANEL, rows, weights, [&] {
                if (p.residual) {
                    prefetch_residual<COLUMNS>(p, y + from, to - from, first);
                }
            });
        }
        __syncwarp();
        cluster_arrive();
        cluster_wait();
    } else {
        registers_take<224>();
        f32 d[COLUMNS / 2];
        ring.template multiply<false>(stage, phase, warp / 4, begin, end, d);
        wgmma_wait<0>();
        wgmma_hold(d);
        // Sums lie where the stages were: both warpgroups have read those.
        named_barrier_sync(SUMS_BARRIER, 256);
        sums.leave(warp / 4, d);
        if (p.adds) {
            grid_wait();
        }
        cluster_arrive();
        cluster_wait();
        finish_rows<COLUMNS, PARTS, FORM, UNALIGNED>(p, sums, y, first, from, to);
        __syncwarp();
    }
    // The others may still read this block's sums, or arrive at its barriers.
    cluster_arrive();
    cluster_wait();
}
