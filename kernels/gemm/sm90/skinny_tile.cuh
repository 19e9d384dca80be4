// X·Wᵀ of up to 128 rows in launches that follow each other: every block has one tile of outputs, or SEVERAL one after another, or a part of one's
// K, and W and X have rings of their own. What W's holds is asked for before the launch before has ended; X comes from L2, and
// its way from there takes so long that it has as many bytes under way.
//
// The blocks of a cluster share a tile of outputs, each with a part of K: each finishes some of the tile's eights of columns, adding up in the
// order of the parts. Results are bitwise the same from run to run.
//
// The gated form has rows of both weights in a stage, W's and behind them G's, which one instruction multiplies: a thread has both sums of an output.
#pragma once

#include "ptx/copy.cuh"
#include "gemm/outputs.cuh"
#include "gemm/sm90/ring.cuh"

// Registers of a thread for sums and bias: with more of them some are spilled.
constexpr u32 SUMS_AND_BIAS = 144;

// COUNT places of BYTES bytes, filled and emptied in turn: barriers of both, and where one of its users is.
template <u32 BYTES, u32 COUNT> struct SkinnyTileRing {
    static constexpr u32 LENGTH = COUNT, SIZE = BYTES * COUNT;

    char *tiles;
    u64 *full, *empty;
    u32 stage = 0, phase = 0;

    __device__ __forceinline__ SkinnyTileRing(char *tiles, u64 *barriers) : tiles(tiles), full(barriers), empty(barriers + COUNT) {}

    // By one thread.
    __device__ __forceinline__ void init() const {
        for (u32 i = 0; i < COUNT; i++) {
            mbarrier_init(&full[i], 1);
            // The warpgroups.
            mbarrier_init(&empty[i], 2);
        }
    }

    __device__ __forceinline__ char *place() const { return tiles + stage * BYTES; }

    __device__ __forceinline__ void advance() {
        if (++stage == COUNT) {
            stage = 0;
            phase ^= 1;
        }
    }

    // By a warp: waits for room and has it filled with `bytes` by ask(place, barrier), by the one thread that `leads`.
    template <class Ask> __device__ __forceinline__ void bring(bool leads, u32 bytes, Ask ask) {
        mbarrier_wait(&empty[stage], phase ^ 1);
        if (leads) {
            mbarrier_arrive_expect(&full[stage], bytes);
            ask(place(), &full[stage]);
        }
        __syncwarp();
        advance();
    }

    __device__ __forceinline__ void wait() const { mbarrier_wait(&full[stage], phase); }

    // By a warpgroup.
    __device__ __forceinline__ void release(u32 which) const {
        if (threadIdx.x % 128 == 0) {
            mbarrier_arrive(&empty[which]);
        }
    }
};

// A thread's outputs: of MOST eights of columns, `count` of which there are, two neighbours of each of two rows. Their bias is read AT_FIRST, or
// where it is added: behind the products it is waited for, and beside the sums of the widest tiles there are no registers for it.
template <u32 MOST, bool AT_FIRST> struct SkinnyTileOutputs {
    const GemmParams &p;
    u64 row, column;   // of the first of them
    u32 count;
    f32 held[AT_FIRST ? MOST : 1][2];

    __device__ __forceinline__ SkinnyTileOutputs(const GemmParams &p, u64 row, u64 column, u32 count) : p(p), row(row), column(column), count(count) {
        if constexpr (AT_FIRST) {
#pragma unroll
            for (u32 i = 0; i < MOST; i++) {
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    held[i][e] = read_bias(i, e);
                }
            }
        }
    }

    __device__ __forceinline__ bool there(u64 row, u32 i, u32 e) const { return row < p.rows && i < count && column + i * 8 + e < p.columns; }

    __device__ __forceinline__ f32 read_bias(u32 i, u32 e) const { return p.bias && there(row, i, e) ? widen(p.bias[column + i * 8 + e]) : 0.0f; }

    __device__ __forceinline__ f32 bias(u32 i, u32 e) const {
        if constexpr (AT_FIRST) {
            return held[i][e];
        } else {
            return read_bias(i, e);
        }
    }

    // An output, bias and all, from the sum of W and, where GATED, that of G.
    template <u32 FORM, bool GATED> __device__ __forceinline__ f32 output(f32 sum, f32 gate) const {
        if constexpr (GATED) {
            return sum * activate_form<FORM>(p, gate);
        } else {
            return activate_form<FORM>(p, sum);
        }
    }

    // The two of one row. WORDS: they move at once; else the second may not be there.
    template <u32 FORM, bool GATED, bool WORDS> __device__ __forceinline__ void write_two(u64 row, u32 i, float2 sums, float2 gates) const {
        u64 at = row * p.y_stride + column + i * 8;
        f32 values[2] = {output<FORM, GATED>(sums.x + bias(i, 0), gates.x), output<FORM, GATED>(sums.y + bias(i, 1), gates.y)};
        if constexpr (WORDS) {
            if (there(row, i, 0)) {
                u32 more = p.residual ? *(const u32 *)(p.residual + at) : 0;
                *(u32 *)(p.y + at) = narrow2<element>(values[0] + low_half(more), values[1] + high_half(more));
            }
        } else {
#pragma unroll
            for (u32 e = 0; e < 2; e++) {
                if (there(row, i, e)) {
                    p.y[at + e] = narrow<element>(values[e] + (p.residual ? widen(p.residual[at + e]) : 0.0f));
                }
            }
        }
    }

    template <u32 FORM, bool GATED, bool WORDS, class Of, class Gate> __device__ __forceinline__ void write_all(Of of, Gate gate) const {
#pragma unroll
        for (u32 i = 0; i < MOST; i++) {
            float4 sums = of(i), gates = gate(i);
            write_two<FORM, GATED, WORDS>(row, i, {sums.x, sums.y}, {gates.x, gates.y});
            write_two<FORM, GATED, WORDS>(row + 8, i, {sums.z, sums.w}, {gates.z, gates.w});
        }
    }

    // All, from the sums of each eight, as D has them in ptx/wgmma.cuh, that `of` gives, and `gate` of the other weight where GATED.
    template <u32 FORM, bool GATED, class Of, class Gate> __device__ __forceinline__ void write(Of of, Gate gate) const {
        if (p.vector) {
            write_all<FORM, GATED, true>(of, gate);
        } else {
            write_all<FORM, GATED, false>(of, gate);
        }
    }
};

// Goes on to a block's next tile, as many blocks on as there are, where it has SEVERAL and there is one.
template <u32 COLUMNS, bool SEVERAL> __device__ __forceinline__ bool next_skinny_tile(const GemmParams &p, u32 &first) {
    if constexpr (SEVERAL) {
        first += gridDim.x * COLUMNS;
        return first < u32(p.columns);
    } else {
        return false;
    }
}

// Y = act(X·Wᵀ + bias) + residual, or act(X·Gᵀ) ⊙ (X·Wᵀ + bias) where GATED. COLUMNS: outputs of a tile.
template <u32 COLUMNS, u32 W_STAGES, u32 X_STAGES, u32 PARTS, u32 FORM, bool GATED = false, bool SEVERAL = false>
__device__ __forceinline__ void wgmma_skinny_tile(const GemmParams &p, char *shared) {
    constexpr u32 EIGHTS = COLUMNS / 8, MOST = (EIGHTS + PARTS - 1) / PARTS, SUMS_BYTES = MOST * 4096;
    constexpr u32 WIDTH = GATED ? 2 * COLUMNS : COLUMNS, W_BYTES = WIDTH * PANEL;
    using W = SkinnyTileRing<W_BYTES, W_STAGES>;
    using X = SkinnyTileRing<WGMMA_X_BYTES, X_STAGES>;
    static_assert(PARTS == 1 || (!GATED && !SEVERAL), "parts exchange the sums of one weight and one tile");
    static_assert(PARTS * SUMS_BYTES <= W::SIZE + X::SIZE, "sums take the place of the stages");
    char *tiles = shared + (1024 - shared_address(shared) % 1024) % 1024;
    u64 *barriers = (u64 *)(tiles + W::SIZE + X::SIZE);
    W w(tiles, barriers);
    X x(tiles + W::SIZE, barriers + 2 * W_STAGES);
    // Said so that the compiler knows that a warp has one.
    u32 warp = shuffle_from(threadIdx.x / 32, 0), part = PARTS == 1 ? 0 : shuffle_from(cluster_rank(), 0);
    grid_launch_next();
    u32 steps = u32((p.depth + WGMMA_DEPTH - 1) / WGMMA_DEPTH), begin = steps * part / PARTS, end = steps * (part + 1) / PARTS;
    u32 first = blockIdx.x / PARTS * COLUMNS, bytes = u32(p.rows + 7) / 8 * 8 * PANEL;
    if (threadIdx.x == 256) {
        w.init();
        x.init();
        fence_mbarrier_init();
    }
    __syncwarp();
    // Who brings W made the barriers, and does not wait for the others.
    if (warp == 8) {
        named_barrier_arrive(OPEN_BARRIER, WGMMA_THREADS);
    } else {
        named_barrier_sync(OPEN_BARRIER, WGMMA_THREADS);
    }
    if (warp >= 8) {
        registers_give<56>();
        bool leads = elect_one();
        if (warp == 8) {
            if (!p.weights_early) {
                grid_wait();
            }
            do {
                for (u32 step = begin; step < end; step++) {
                    w.bring(leads, W_BYTES, [&](char *to, u64 *full) {
                        tma_load_2d_by(EVICT_FIRST, to, &p.w_map, full, i32(step * WGMMA_DEPTH), i32(first));
                        if constexpr (GATED) {
                            tma_load_2d_by(EVICT_FIRST, to + COLUMNS * PANEL, &p.gate_map, full, i32(step * WGMMA_DEPTH), i32(first));
                        }
                    });
                }
            } while (next_skinny_tile<COLUMNS, SEVERAL>(p, first));
        } else if (warp == 9) {
            grid_wait();
            do {
                for (u32 step = begin; step < end; step++) {
                    x.bring(leads, bytes, [&](char *to, u64 *full) { tma_load_2d(to, &p.x_map, full, i32(step * WGMMA_DEPTH), 0); });
                }
            } while (next_skinny_tile<COLUMNS, SEVERAL>(p, first));
        }
        __syncwarp();
        if constexpr (PARTS > 1) {
            cluster_arrive_relaxed();
            cluster_wait();
            cluster_arrive();
            cluster_wait();
        }
    } else {
        registers_take<224>();
        u32 group = warp / 4, lane = threadIdx.x % 32, from = EIGHTS * part / PARTS, count = EIGHTS * (part + 1) / PARTS - from;
        u64 x_tiles = wgmma_descriptor(shared_address(x.tiles) + group * 64 * PANEL, 16, 8 * PANEL, SWIZZLE_128);
        u64 w_tiles = wgmma_descriptor(shared_address(w.tiles), 16, 8 * PANEL, SWIZZLE_128);
        if (!p.weights_early) {
            grid_wait();
        }
        do {
            SkinnyTileOutputs<MOST, WIDTH / 2 + 2 * MOST <= SUMS_AND_BIAS> outputs(p, warp * 16 + lane / 4, first + from * 8 + lane % 4 * 2, count);
            f32 d[WIDTH / 2];
            if (PARTS > 1 && begin == end) {
#pragma unroll
                for (u32 i = 0; i < WIDTH / 2; i++) {
                    d[i] = 0.0f;
                }
            }
            u32 before[2] = {0, 0};
            for (u32 step = begin; step < end; step++) {
                x.wait();
                w.wait();
                u64 a = wgmma_moved(x_tiles, x.stage * WGMMA_X_BYTES), b = wgmma_moved(w_tiles, w.stage * W_BYTES);
                multiply_stage<WIDTH>(d, a, b, step > begin);
                // All but this step's are done.
                wgmma_wait<1>();
                if (step > begin) {
                    w.release(before[0]);
                    x.release(before[1]);
                }
                before[0] = w.stage;
                before[1] = x.stage;
                w.advance();
                x.advance();
            }
            // Before it Y may still be read, and the residual written.
            grid_wait();
            wgmma_wait<0>();
            wgmma_hold(d);
            auto eight = [&](u32 i) { return float4{d[i * 4], d[i * 4 + 1], d[i * 4 + 2], d[i * 4 + 3]}; };
            if constexpr (PARTS == 1) {
                if constexpr (SEVERAL) {
                    w.release(before[0]);
                    x.release(before[1]);
                }
                outputs.template write<FORM, GATED>(eight, [&](u32 i) { return eight(GATED ? EIGHTS + i : i); });
            } else {
                // Nothing is under way to any block's stages any more, and nobody reads them.
                cluster_arrive_relaxed();
                cluster_wait();
                u32 place = shared_address(tiles) + threadIdx.x * 16;
#pragma unroll
                for (u32 to = 0; to < PARTS; to++) {
                    u32 there = cluster_address(place + part * SUMS_BYTES, to);
#pragma unroll
                    for (u32 i = EIGHTS * to / PARTS; i < EIGHTS * (to + 1) / PARTS; i++) {
                        cluster_write(there + (i - EIGHTS * to / PARTS) * 4096, eight(i));
                    }
                }
                cluster_arrive();
                cluster_wait();
                auto sum = [&](u32 i) {
                    float4 sums = {};
#pragma unroll
                    for (u32 other = 0; other < PARTS; other++) {
                        float4 more = *(const float4 *)(tiles + other * SUMS_BYTES + i * 4096 + threadIdx.x * 16);
                        sums = {sums.x + more.x, sums.y + more.y, sums.z + more.z, sums.w + more.w};
                    }
                    return sums;
                };
                outputs.template write<FORM, false>(sum, [](u32) { return float4{}; });
            }
        } while (next_skinny_tile<COLUMNS, SEVERAL>(p, first));
        __syncwarp();
    }
}
