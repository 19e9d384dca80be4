// S2LC's form of the codebook GEMM on the tensor cores: a dense input factor V, a coded output factor U, rank at most RANK.
//
// A block takes 16 tokens (a tile of the tokens sorted by adapter) and some columns of y. It gets there in three steps:
//   shrink   h = x·V, d_in split over the warps, each with its own sums;
//   core     g = h·Q of each token's adapter, in f32, rounded once for the tensor cores;
//   expand   y (+)= s·g·Uᵀ, 32 columns a warp at a time: codes become fragments of mma in registers.
// Nothing but y is written to device memory, and sums run in one order, so that results are bitwise the same from run to run.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/mma.cuh"
#include "tile/codes.cuh"
#include "codebook_gemm/tile_params.cuh"

constexpr u32 ROWS = 16;                            // tokens of a tile
constexpr u32 WARPS = 8;
constexpr u32 THREADS = 32 * WARPS;
constexpr u32 GROUP = 32;                           // columns of y a warp expands at once: codes start on a word there
constexpr u32 STEP = 32 * WARPS;                    // rows of V that the warps take at once, 32 each
constexpr u32 STAGE = RANK == 16 ? 2 * STEP : STEP; // rows of V in a buffer
constexpr u32 STEPS = STAGE / STEP;
constexpr u32 DEPTHS = RANK / 16;                   // steps of mma over the rank
constexpr u32 V_STRIDE = RANK + 8;                  // elements; the padding spreads eight rows over all banks
constexpr u32 G_STRIDE = RANK + 8;
constexpr u32 JOINT = 28;                           // where the sums of both stages start in a table
constexpr u32 TABLE = 160;                          // entries of an adapter's table: one stage's as in the record, then 128 sums
constexpr u32 ALL_LANES = 0xffffffffu;

// Which tokens a tile has, and what their adapters share.
struct Tile {
    i32 token[ROWS];            // -1 past the last
    i32 adapter[ROWS];
    i32 basis[ROWS];
    f32 scaling[ROWS];          // s of the token's adapter; later times the power of two taken out of g
    i32 segment_adapter[ROWS];  // of each run of rows that share an adapter
    u32 segment_first[ROWS + 1];
    f32 segment_scale[ROWS];    // the power of two taken out of the adapter's table
    i32 bases[ROWS];            // the different ones
    u32 rows, segments, base_count;
};

// Dynamic shared memory. What the warps summed takes the place of V, which is then no longer needed.
struct Space {
    union {
        alignas(128) element v[2][STAGE][V_STRIDE];
        f32 part[WARPS][ROWS][RANK];
    };
    alignas(16) element g[ROWS][G_STRIDE];
    f32 h[ROWS][RANK];
    element table[ROWS][TABLE];
};

// The power of two below `value`, within what has an exact inverse.
__device__ __forceinline__ u32 exponent_below(f32 value) {
    u32 exponent = __float_as_uint(value) >> 23 & 255;
    return exponent < 1 ? 1 : exponent > 252 ? 252 : exponent;
}
__device__ __forceinline__ f32 power(u32 exponent) { return __uint_as_float(exponent << 23); }
__device__ __forceinline__ f32 inverse_power(u32 exponent) { return __uint_as_float((254 - exponent) << 23); }

// The tile's tokens. The first warp reads them; everyone may use them after the next barrier. Which tokens have an adapter stands
// in the index, not in the launch: a replay may bring others.
__device__ __forceinline__ void read_tile(const TileParams &p, u32 index, Tile &tile) {
    if (threadIdx.x >= 32) {
        return;
    }
    u32 lane = threadIdx.x, below = (1u << lane) - 1;
    u64 place = u64(index) * ROWS + lane;
    const i32 *adapters = p.index + 2, *order = adapters + p.tokens;
    i32 token = lane < ROWS && place < p.tokens ? order[place] : -1;
    i32 adapter = token < 0 ? -1 : adapters[token];
    i32 basis = token < 0 ? -1 : p.input.basis_of ? p.input.basis_of[adapter] : 0;
    i32 before = __shfl_up_sync(ALL_LANES, adapter, 1);
    u32 starts = __ballot_sync(ALL_LANES, adapter >= 0 && (lane == 0 || adapter != before));
    u32 same = __match_any_sync(ALL_LANES, basis);
    bool first = basis >= 0 && (same & below) == 0;
    u32 firsts = __ballot_sync(ALL_LANES, first);
    u32 rows = __popc(__ballot_sync(ALL_LANES, adapter >= 0));
    if (lane < ROWS) {
        tile.token[lane] = token;
        tile.adapter[lane] = adapter;
        tile.basis[lane] = basis;
        tile.scaling[lane] = adapter < 0 ? 0.0f : p.scaling[adapter];
    }
    if (starts >> lane & 1) {
        u32 segment = __popc(starts & below);
        tile.segment_adapter[segment] = adapter;
        tile.segment_first[segment] = lane;
    }
    if (first) {
        tile.bases[__popc(firsts & below)] = basis;
    }
    if (lane == 0) {
        tile.rows = rows;
        tile.segments = __popc(starts);
        tile.base_count = __popc(firsts);
        tile.segment_first[__popc(starts)] = rows;
    }
}

// Zeros for the tokens without an adapter among the tile's share of all tokens, in columns [first, end).
__device__ __forceinline__ void clear_rows(const TileParams &p, u32 index, u64 first, u64 end) {
    for (u32 row = threadIdx.x / 32; row < ROWS; row += WARPS) {
        u64 token = u64(index) * ROWS + row;
        if (token >= p.tokens || p.index[2 + token] >= 0) {
            continue;
        }
        for (u64 o = first + threadIdx.x % 32; o < end; o += 32) {
            p.y[token * p.y_stride + o] = narrow<element>(0.0f);
        }
    }
}

// ---- shrink ----

// Where row `k` of V lies in its buffer. A lane takes eight successive elements of x at once; the k index of mma follows them,
// and V follows that, so that eight rows of a tile of ldmatrix are neighbours.
__device__ __forceinline__ u32 slot(u32 k) { return (k & ~31u) | (k >> 2 & 1) << 4 | (k >> 1 & 1) << 3 | (k >> 3 & 3) << 1 | (k & 1); }

// Brings rows [start, start + STAGE) of a basis, zeros from `end` on and past the rank, as one group of cp.async.
__device__ __forceinline__ void fetch_v(const TileParams &p, i32 basis, u64 start, u64 end, element (&v)[STAGE][V_STRIDE]) {
    const element *values = p.input.values + u64(basis) * p.input.d * p.input.rank;
    if (p.v_aligned) {
        constexpr u32 PIECES = RANK / 8;
#pragma unroll
        for (u32 piece = threadIdx.x; piece < STAGE * PIECES; piece += THREADS) {
            u32 k = piece / PIECES, j = piece % PIECES * 8;
            bool inside = start + k < end && j < p.input.rank;
            const element *from = inside ? values + (start + k) * p.input.rank + j : p.input.values;
            cp_async_16(shared_address(&v[slot(k)][j]), from, inside ? 16 : 0);
        }
    } else {
#pragma unroll 4
        for (u32 at = threadIdx.x; at < STAGE * RANK; at += THREADS) {
            u32 k = at / RANK, j = at % RANK;
            bool inside = start + k < end && j < p.input.rank;
            v[slot(k)][j].bits = inside ? values[(start + k) * p.input.rank + j].bits : u16(0);
        }
    }
    cp_async_commit();
}

// Eight elements of a row of x from `k` on, zeros from `end` on.
__device__ __forceinline__ uint4 fetch_x(const element *row, u64 k, u64 end, bool aligned) {
    uint4 piece = make_uint4(0, 0, 0, 0);
    if (!row || k >= end) {
        return piece;
    }
    if (aligned && k + 8 <= end) {
        return *reinterpret_cast<const uint4 *>(row + k);
    }
    u32 words[4] = {};
#pragma unroll
    for (u32 e = 0; e < 8; e++) {
        if (k + e < end) {
            words[e / 2] |= u32(row[k + e].bits) << e % 2 * 16;
        }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// sum[n] = this warp's share of x·V over [begin, end), as mma's D: columns 8n and on. The first buffer of V is under way.
__device__ __forceinline__ void shrink(const TileParams &p, const Tile &tile, Space &space, u64 begin, u64 end, f32 (&sum)[RANK / 8][4]) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 row = lane / 4;
    const element *rows[2];
    f32 own[RANK / 8][4] = {};
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        i32 token = tile.token[row + 8 * half];
        rows[half] = token < 0 ? nullptr : p.x + u64(token) * p.x_stride;
    }
#pragma unroll
    for (u32 n = 0; n < RANK / 8; n++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            sum[n][i] = 0.0f;
        }
    }
    u32 stages = begin < end ? u32((end - begin + STAGE - 1) / STAGE) : 0, total = stages * tile.base_count;
    uint4 x[STEPS][2];
    auto fetch = [&](u32 stage) {
        u64 start = begin + u64(stage % stages) * STAGE + warp * 32 + lane % 4 * 8;
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                x[step][half] = fetch_x(rows[half], start + step * STEP, end, p.x_aligned);
            }
        }
    };
    if (total > 0) {
        fetch(0);
    }
    for (u32 stage = 0; stage < total; stage++) {
        u32 next = stage + 1;
        if (next < total) {
            fetch_v(p, tile.bases[next / stages], begin + u64(next % stages) * STAGE, end, space.v[next % 2]);
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        uint4 now[STEPS][2];
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            now[step][0] = x[step][0];
            now[step][1] = x[step][1];
        }
        if (next < total) {
            fetch(next);
        }
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            u32 base = step * STEP + warp * 32;
            if (begin + u64(stage % stages) * STAGE + base >= end) {
                break;
            }
            const u32 words[2][4] = {{now[step][0].x, now[step][0].y, now[step][0].z, now[step][0].w},
                                     {now[step][1].x, now[step][1].y, now[step][1].z, now[step][1].w}};
#pragma unroll
            for (u32 s = 0; s < 2; s++) {
                const u32 a[4] = {words[0][2 * s], words[1][2 * s], words[0][2 * s + 1], words[1][2 * s + 1]};
#pragma unroll
                for (u32 n = 0; n < RANK / 8; n += 2) {
                    u32 both[4];
                    ldmatrix_x4_transposed(both, shared_address(&space.v[stage % 2][base + s * 16 + lane % 16][n * 8 + lane / 16 * 8]));
                    const u32 left[2] = {both[0], both[1]}, right[2] = {both[2], both[3]};
                    mma_m16n8k16<element>(own[n], a, left);
                    mma_m16n8k16<element>(own[n + 1], a, right);
                }
            }
        }
        // The buffer is free again; after the last stage, so is the place that the sums take.
        __syncthreads();
        if (next % stages == 0) {
            i32 basis = tile.bases[stage / stages];
            bool mine[2] = {tile.basis[row] == basis, tile.basis[row + 8] == basis};
#pragma unroll
            for (u32 n = 0; n < RANK / 8; n++) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    sum[n][i] = mine[i / 2] ? own[n][i] : sum[n][i];
                    own[n][i] = 0.0f;
                }
            }
        }
    }
}

// Leaves what each warp summed in shared memory.
__device__ __forceinline__ void share_sums(Space &space, const f32 (&sum)[RANK / 8][4]) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (u32 n = 0; n < RANK / 8; n++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            *reinterpret_cast<float2 *>(&space.part[warp][lane / 4 + 8 * half][n * 8 + lane % 4 * 2]) = make_float2(sum[n][2 * half], sum[n][2 * half + 1]);
        }
    }
    __syncthreads();
}

// Thread 16·row + c gets columns c, c + 16, … of the row, summed over `count` parts in their order.
__device__ __forceinline__ void sum_parts(const f32 (*part)[ROWS][RANK], u32 count, f32 (&h)[DEPTHS]) {
#pragma unroll
    for (u32 d = 0; d < DEPTHS; d++) {
        h[d] = 0.0f;
    }
#pragma unroll 8
    for (u32 from = 0; from < count; from++) {
#pragma unroll
        for (u32 d = 0; d < DEPTHS; d++) {
            h[d] += part[from][threadIdx.x / 16][d * 16 + threadIdx.x % 16];
        }
    }
}

// ---- core ----

// space.g = h·Q for each row, in 16 bits. f16 has few exponents: a power of two moves from g to the row's scaling.
__device__ __forceinline__ void apply_core(const TileParams &p, Tile &tile, Space &space, f32 (&h)[DEPTHS]) {
    u32 row = threadIdx.x / 16, c = threadIdx.x % 16, rank = p.input.rank;
    i32 adapter = tile.adapter[row];
    if (p.core) {
        // A row stays in one warp.
#pragma unroll
        for (u32 d = 0; d < DEPTHS; d++) {
            space.h[row][d * 16 + c] = h[d];
        }
        __syncwarp();
        const f32 *core = p.core + u64(adapter < 0 ? 0 : adapter) * rank * rank;
#pragma unroll
        for (u32 d = 0; d < DEPTHS; d++) {
            u32 j = d * 16 + c;
            f32 sum = 0.0f;
            if (adapter >= 0 && j < rank) {
#pragma unroll 8
                for (u32 i = 0; i < rank; i++) {
                    sum += space.h[row][i] * core[u64(i) * rank + j];
                }
            }
            h[d] = sum;
        }
    }
    f32 greatest = 0.0f;
#pragma unroll
    for (u32 d = 0; d < DEPTHS; d++) {
        greatest = fmaxf(greatest, fabsf(h[d]));
    }
#pragma unroll
    for (u32 distance = 8; distance > 0; distance /= 2) {
        greatest = fmaxf(greatest, __shfl_xor_sync(ALL_LANES, greatest, distance));
    }
    u32 exponent = exponent_below(greatest);
#pragma unroll
    for (u32 d = 0; d < DEPTHS; d++) {
        space.g[row][d * 16 + c] = narrow<element>(h[d] * inverse_power(exponent));
    }
    if (c == 0) {
        tile.scaling[row] *= power(exponent);
    }
    __syncthreads();
}
