// Tiles of X·Wᵀ on the tensor cores of Hopper: one warp brings operands by TMA into a ring of stages, two warp groups multiply
// with wgmma, 64 rows each. Blocks stay and take tile after tile; the next tile's operands arrive while outputs are written.
//
// Where tiles are fewer than multiprocessors, K may be cut into parts (p.parts): blocks of their own take each, leave their sums in
// the workspace and finish a part of the tile's columns each, always adding up in the order of the parts.
//
// The host defines the tile: 128 × WGMMA_COLUMNS sums, 64 elements of K a stage, WGMMA_STAGES stages. CLUSTER (1 or 2) blocks
// one below the other share the tile of W: each brings half of it to all of them.
//
// Adapters of one basis: its columns are 16 more rows behind W's, as in tile/stationary_gemm.cuh.
#pragma once

#include "ptx/cluster.cuh"
#include "ptx/copy.cuh"
#include "ptx/wgmma.cuh"
#include "tile/activation.cuh"
#include "tile/adapter_sums.cuh"
#include "tile/ordered_outputs.cuh"

constexpr int WGMMA_ROWS = 128, WGMMA_DEPTH = 64, WGMMA_THREADS = 384;
constexpr u32 PANEL = WGMMA_DEPTH * 2;   // bytes of a row of a stage: the width of the swizzle
constexpr u32 WGMMA_X_BYTES = WGMMA_ROWS * PANEL, WGMMA_W_BYTES = WGMMA_COLUMNS * PANEL;
constexpr u32 WGMMA_STAGE = WGMMA_X_BYTES + WGMMA_W_BYTES;
constexpr u32 BAND = 16 / CLUSTER;

// Of four values of each of four neighbouring lanes, lane t gets value t of every one of them.
__device__ __forceinline__ void transpose_quad(u32 (&v)[4]) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 step = 1; step < 4; step *= 2) {
        bool upper = lane & step;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if ((i & step) == 0) {
                u32 other = __shfl_xor_sync(0xffffffff, upper ? v[i] : v[i + step], step);
                v[i] = upper ? other : v[i];
                v[i + step] = upper ? v[i + step] : other;
            }
        }
    }
}

// Two neighbouring values at `from`, in f32; zeros for what is not there.
template <bool VECTOR> __device__ __forceinline__ void read_pair(const element *from, bool first, bool second, f32 (&pair)[2]) {
    if constexpr (VECTOR) {
        u32 both = first ? *(const u32 *)from : 0;
        pair[0] = low_half(both);
        pair[1] = high_half(both);
    } else {
        pair[0] = first ? widen(from[0]) : 0.0f;
        pair[1] = second ? widen(from[1]) : 0.0f;
    }
}

// Which part of K a block has, of how many.
struct Cut {
    static constexpr u32 CHUNKS = WGMMA_COLUMNS / 32, MOST = 4;
    u32 part, parts;

    // Whether it finishes the tile's `chunk`th 32 columns.
    __device__ __forceinline__ bool owns(u32 chunk) const { return chunk * parts / CHUNKS == part; }
};

// Adds what Y holds to the sums of this warp group's 64 rows that the cut finishes. VECTOR: two columns at a time.
template <bool VECTOR> __device__ __forceinline__ void add_outputs(const GemmParams &p, u64 row, u64 column, Cut cut, f32 (&d)[WGMMA_COLUMNS / 2]) {
    u32 thread = threadIdx.x % 128, quad = thread % 4;
    row += thread / 32 * 16 + thread % 32 / 4;
    i64 left = i64(p.columns - column);
    const element *y = p.y + row * p.y_stride + column;
#pragma unroll
    for (int block = 0; block < WGMMA_COLUMNS / 8; block++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            bool there = row + half * 8 < p.rows && cut.owns(block / 4);
            i64 c = block * 8 + quad * 2;
            f32 before[2];
            read_pair<VECTOR>(y + half * 8 * p.y_stride + c, there && c < left, there && c + 1 < left, before);
            d[block * 4 + half * 2] += before[0];
            d[block * 4 + half * 2 + 1] += before[1];
        }
    }
}

// Brings the sums of one warp group's rows over all parts of K to where they are finished: of what d holds, the chunks that the cut
// owns. `rows` counts warp groups over all tiles.
__device__ __forceinline__ void exchange_sums(const GemmParams &p, u64 rows, Cut cut, f32 (&d)[WGMMA_COLUMNS / 2]) {
    u32 thread = threadIdx.x % 128, barrier = 1 + threadIdx.x / 128;
    float4 *sums = (float4 *)p.partial + rows * cut.parts * Cut::CHUNKS * 4 * 128 + thread;
    auto place = [&](u32 from, u32 chunk, u32 i) { return sums + ((from * Cut::CHUNKS + chunk) * 4 + i) * 128; };
#pragma unroll
    for (u32 chunk = 0; chunk < Cut::CHUNKS; chunk++) {
        if (!cut.owns(chunk)) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const f32 *own = d + chunk * 16 + i * 4;
                *place(cut.part, chunk, i) = {own[0], own[1], own[2], own[3]};
            }
        }
    }
    named_barrier_sync(barrier, 128);
    if (thread == 0) {
        u32 *arrived = p.arrived + rows * 2, *left = arrived + 1;
        count_up(arrived);
        wait_for_count(arrived, cut.parts);
        // The last one readies both for the next launch.
        if (count_up(left) == cut.parts - 1) {
            *arrived = 0;
            *left = 0;
        }
    }
    named_barrier_sync(barrier, 128);
#pragma unroll
    for (u32 chunk = 0; chunk < Cut::CHUNKS; chunk++) {
        if (cut.owns(chunk)) {
            float4 found[Cut::MOST][4];
#pragma unroll
            for (u32 from = 0; from < Cut::MOST; from++) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const f32 *own = d + chunk * 16 + i * 4;
                    float4 mine = {own[0], own[1], own[2], own[3]};
                    found[from][i] = from == cut.part || from >= cut.parts ? mine : *place(from, chunk, i);
                }
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                float4 sum = found[0][i];
#pragma unroll
                for (u32 from = 1; from < Cut::MOST; from++) {
                    if (from < cut.parts) {
                        sum.x += found[from][i].x;
                        sum.y += found[from][i].y;
                        sum.z += found[from][i].z;
                        sum.w += found[from][i].w;
                    }
                }
                d[chunk * 16 + i * 4] = sum.x;
                d[chunk * 16 + i * 4 + 1] = sum.y;
                d[chunk * 16 + i * 4 + 2] = sum.z;
                d[chunk * 16 + i * 4 + 3] = sum.w;
            }
        }
    }
}

// Writes the outputs of this warp group's 64 rows that the cut finishes, from the sums of the up (or only) weight and of the gate.
// VECTOR: 16 bytes at a time.
template <bool GATED, u32 FORM, bool VECTOR>
__device__ __forceinline__ void write_tile(const GemmParams &p, u64 row, u64 column, Cut cut, const f32 (&d)[WGMMA_COLUMNS / 2]) {
    constexpr int OUTPUTS = GATED ? WGMMA_COLUMNS / 2 : WGMMA_COLUMNS;
    u32 thread = threadIdx.x % 128, quad = thread % 4;
    row += thread / 32 * 16 + thread % 32 / 4;
    // Columns of this tile, and where this thread's pairs start.
    i64 left = i64(p.columns - column);
    const element *bias = p.bias + column + quad * 2;
    u64 start = row * p.y_stride + column;
#pragma unroll
    for (int block = 0; block < OUTPUTS / 8; block += 4) {
        if (block * 8 >= left) {
            break;
        }
        if (!cut.owns(block / 4)) {
            continue;
        }
        f32 added[4][2] = {};
        if (p.bias) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                i64 c = (block + j) * 8 + quad * 2;
                read_pair<VECTOR>(bias + (block + j) * 8, c < left, c + 1 < left, added[j]);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            bool there = row + half * 8 < p.rows;
            u64 at = start + half * 8 * p.y_stride;
            f32 residual[4][2] = {};
            if (p.residual) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    i64 c = (block + j) * 8 + quad * 2;
                    read_pair<VECTOR>(p.residual + at + c, there && c < left, there && c + 1 < left, residual[j]);
                }
            }
            u32 packed[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                f32 value[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    f32 up = d[(block + j) * 4 + half * 2 + e] + added[j][e];
                    if constexpr (GATED) {
                        value[e] = activate_form<FORM>(p, d[OUTPUTS / 2 + (block + j) * 4 + half * 2 + e]) * up;
                    } else {
                        value[e] = activate_form<FORM>(p, up);
                    }
                    value[e] += residual[j][e];
                }
                packed[j] = narrow2<element>(value[0], value[1]);
            }
            if constexpr (VECTOR) {
                // Each lane has a pair in four blocks of eight columns; now it gets one whole block.
                transpose_quad(packed);
                if (there && (block + i32(quad)) * 8 < left) {
                    *(u32x4 *)(p.y + at + (block + quad) * 8) = {packed[0], packed[1], packed[2], packed[3]};
                }
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    i64 c = (block + j) * 8 + quad * 2;
                    if (there && c < left) {
                        p.y[at + c] = element{u16(packed[j])};
                    }
                    if (there && c + 1 < left) {
                        p.y[at + c + 1] = element{u16(packed[j] >> 16)};
                    }
                }
            }
        }
    }
}

// Y = act(X·Wᵀ + bias) + residual, or act(X·Gᵀ) ⊙ (X·Wᵀ + bias) where GATED: then half the columns of a tile are of each weight.
// CUT: K may be cut into parts. BASIS: the adapters' part comes to the sums; W is brought in the order of tile/ordered_outputs.cuh.
template <bool GATED, u32 FORM, bool CUT, bool BASIS = false>
__device__ __forceinline__ void wgmma_gemm(const GemmParams &p, char *shared, const AdapterSums &sums = {}) {
    static_assert(!BASIS || (!GATED && !CUT && CLUSTER == 2), "a product by itself");
    constexpr u64 OUTPUTS = GATED ? WGMMA_COLUMNS / 2 : WGMMA_COLUMNS;
    constexpr u32 STAGE = WGMMA_STAGE + (BASIS ? BASIS_BYTES : 0), WIDTH = WGMMA_COLUMNS + (BASIS ? BASIS_ROWS : 0), RUNS = WGMMA_COLUMNS / 32;
    const AdapterSlice &slice = sums.slices[0];
    char *tiles = shared + (1024 - shared_address(shared) % 1024) % 1024;
    if constexpr (CUT) {
        hold_address(tiles);
    }
    u64 *full = (u64 *)(tiles + WGMMA_STAGES * STAGE), *empty = full + WGMMA_STAGES;
    u32 group = threadIdx.x / 128, rank = CLUSTER > 1 ? cluster_rank() : 0;
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < WGMMA_STAGES; stage++) {
            mbarrier_init(&full[stage], 1);
            // Both warp groups of every block that reads what this one brings.
            mbarrier_init(&empty[stage], 2 * CLUSTER);
        }
        fence_mbarrier_init();
    }
    if constexpr (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }
    // Where the host lets this kernel start early, its operands are still being written; or Y alone, which is read last.
    grid_launch_next();
    if (!p.adds) {
        grid_wait();
    }
    u64 down = (p.rows + WGMMA_ROWS * CLUSTER - 1) / (WGMMA_ROWS * CLUSTER), across = (p.columns + OUTPUTS - 1) / OUTPUTS;
    u32 steps = u32((p.depth + WGMMA_DEPTH - 1) / WGMMA_DEPTH);
    u32 stage = 0, phase = 0, parts = CUT ? p.parts : 1;
    auto advance = [&] {
        if (++stage == WGMMA_STAGES) {
            stage = 0;
            phase ^= 1;
        }
    };
    if (group == 2) {
        registers_give<40>();
        if (threadIdx.x == 256) {
            tma_prefetch_map(&p.x_map);
            tma_prefetch_map(&p.w_map);
            for (u64 index = blockIdx.x / CLUSTER; index < down * across * parts; index += gridDim.x / CLUSTER) {
                u64 row, column;
                tile_place<BAND>(index / parts, down, across, row, column);
                u32 part = u32(index % parts);
                i32 y = i32((row * CLUSTER + rank) * WGMMA_ROWS), first = i32(column * OUTPUTS);
                for (u32 step = steps * part / parts; step < steps * (part + 1) / parts; step++) {
                    mbarrier_wait(&empty[stage], phase ^ 1);
                    mbarrier_arrive_expect(&full[stage], STAGE);
                    char *x_tile = tiles + stage * STAGE, *w_tile = x_tile + WGMMA_X_BYTES;
                    i32 k = i32(step * WGMMA_DEPTH);
                    tma_load_2d(x_tile, &p.x_map, &full[stage], k, y);
                    if constexpr (BASIS) {
                        bulk_load(w_tile + WGMMA_W_BYTES, slice.basis + step * (BASIS_BYTES / 2), BASIS_BYTES, &full[stage]);
                    }
#pragma unroll
                    for (u32 half = 0; half < 2; half++) {
                        const tensor_map *map = GATED && half ? &p.gate_map : &p.w_map;
                        char *to = w_tile + half * (WGMMA_W_BYTES / 2);
                        i32 from = GATED ? first : first + half * (WGMMA_COLUMNS / 2);
                        if constexpr (CLUSTER == 1) {
                            tma_load_2d(to, map, &full[stage], k, from);
                        } else if (BASIS && half == rank) {
                            tma_load_5d_multicast(to, map, &full[stage], k, 0, 0, 0, from / 32, 3);
                        } else if (half == rank) {
                            tma_load_2d_multicast(to, map, &full[stage], k, from, 3);
                        }
                    }
                    advance();
                }
            }
        }
        __syncwarp();
    } else {
        registers_take<232>();
        f32 d[WIDTH / 2];
        auto release = [&](u32 which) {
            if constexpr (CLUSTER == 1) {
                if (threadIdx.x % 128 == 0) {
                    mbarrier_arrive(&empty[which]);
                }
            } else if (threadIdx.x % 128 < CLUSTER) {
                mbarrier_arrive_remote_relaxed(&empty[which], threadIdx.x % 128);
            }
        };
        for (u64 index = blockIdx.x / CLUSTER; index < down * across * parts; index += gridDim.x / CLUSTER) {
            u64 row, column;
            tile_place<BAND>(index / parts, down, across, row, column);
            Cut cut = {u32(index % parts), parts};
            AdapterRows rows;
            // Half of the columns: more would be spilled.
            FragmentsHeld<RUNS / 2> held;
            if constexpr (BASIS) {
                // What the warp's first adapter adds by: on its way during all of K.
                u64 own = (row * CLUSTER + rank) * WGMMA_ROWS + group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
                rows.fetch_adapters(sums, own, p.rows);
                held.template fetch<IN_TILES>(slice, sums.groups, rows.first(), column * OUTPUTS, i64(p.columns - column * OUTPUTS));
            }
            u32 before = 0, begin = steps * cut.part / parts, end = steps * (cut.part + 1) / parts;
            for (u32 step = begin; step < end; step++) {
                mbarrier_wait(&full[stage], phase);
                u32 x_tile = shared_address(tiles) + stage * STAGE, w_tile = x_tile + WGMMA_X_BYTES;
                u64 x = wgmma_descriptor(x_tile + group * 64 * PANEL, 16, 8 * PANEL, SWIZZLE_128);
                u64 w = wgmma_descriptor(w_tile, 16, 8 * PANEL, SWIZZLE_128);
                wgmma_fence();
#pragma unroll
                for (u32 k = 0; k < WGMMA_DEPTH / 16; k++) {
                    // 16 elements are 32 bytes; addresses in descriptors count 16.
                    wgmma_ss<element, WIDTH>(d, x + k * 2, w + k * 2, step > begin || k > 0);
                }
                wgmma_commit();
                // All but this step's are done, and so is the stage before.
                wgmma_wait<1>();
                if (step > begin) {
                    release(before);
                }
                before = stage;
                advance();
            }
            wgmma_wait<0>();
            wgmma_hold(d);
            release(before);
            u64 first = (row * CLUSTER + rank) * WGMMA_ROWS + group * 64;
            if constexpr (BASIS) {
                i64 left = i64(p.columns - column * OUTPUTS);
                rows.take(d + WGMMA_COLUMNS / 2);
                rows.add<IN_TILES, RUNS>(slice, sums.groups, column * OUTPUTS, left, held, d);
                BiasFar bias = {p.bias ? p.bias + column * OUTPUTS : nullptr};
                if (p.residual) {
                    write_rows<FORM, RUNS, true, false>(p, bias, first, column * OUTPUTS, d);
                } else {
                    write_rows<FORM, RUNS, false, false>(p, bias, first, column * OUTPUTS, d);
                }
            }
            if constexpr (CUT) {
                if (parts > 1) {
                    exchange_sums(p, (index / parts * CLUSTER + rank) * 2 + group, cut, d);
                }
            }
            if constexpr (!GATED && !BASIS) {
                if (p.adds) {
                    grid_wait();
                    if (p.vector) {
                        add_outputs<true>(p, first, column * OUTPUTS, cut, d);
                    } else {
                        add_outputs<false>(p, first, column * OUTPUTS, cut, d);
                    }
                }
            }
            if constexpr (BASIS) {
                // Written above.
            } else if (p.vector) {
                write_tile<GATED, FORM, true>(p, first, column * OUTPUTS, cut, d);
            } else {
                write_tile<GATED, FORM, false>(p, first, column * OUTPUTS, cut, d);
            }
        }
    }
    if constexpr (CLUSTER > 1) {
        // The other block may still write into this one, or arrive at its barriers.
        cluster_arrive();
        cluster_wait();
    }
}
