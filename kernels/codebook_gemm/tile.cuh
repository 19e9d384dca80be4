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
#include "ptx/special.cuh"
#include "tile/codes.cuh"
#include "tile/power.cuh"
#include "codebook_gemm/tile_params.cuh"
#include "codebook_gemm/tile_group.cuh"

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
constexpr u32 TABLE = WIDTH >= 7 ? 128 : 256;       // entries of an adapter's table: 128 sums of both stages, then one stage's
constexpr u32 ALL_LANES = 0xffffffffu;

static_assert(sizeof(f32) * WARPS * ROWS * RANK <= sizeof(element) * STAGE * V_STRIDE, "the sums take the place of a buffer of V");
static_assert(sizeof(element) * STAGE * V_STRIDE >= 64 * THREADS, "what is there of y takes the place of a buffer of V");
static_assert(STAGE * V_STRIDE % 64 == 0 && V_STRIDE % 8 == 0, "buffers and rows start on 16 bytes");

// The parameters of slice `number` of a launch, as a launch of it alone has them.
__device__ __forceinline__ TileParams slice_of(const TileGroup &group, u32 number) {
    const TileSlice &slice = group.slices[number];
    TileParams p = {};
    p.x = group.x;
    p.y = slice.y;
    p.index = group.index;
    p.scaling = group.scaling;
    p.core = slice.core;
    p.tokens = group.tokens;
    p.x_stride = group.x_stride;
    p.y_stride = slice.y_stride;
    p.input.values = slice.values;
    p.input.basis_of = slice.basis_of;
    p.input.d = group.d_in;
    p.input.rank = slice.rank;
    p.output.codes = slice.codes;
    p.output.codebooks = slice.codebooks;
    p.output.d = slice.d_out;
    p.output.rank = slice.rank;
    p.output.coded = 1;
    p.output.bits = slice.bits;
    p.output.words_per_adapter = slice.words_per_adapter;
    p.accumulate = group.accumulate;
    p.x_aligned = p.v_aligned = p.y_aligned = 1;
    p.blocks = group.blocks;
    p.x_early = group.x_early;
    p.y_early = group.y_early;
    p.scaled_by_token = group.scaled_by_token;
    return p;
}

// Which tokens a tile has, and what their adapters share.
struct Tile {
    i32 token[ROWS];            // -1 past the last
    i32 adapter[ROWS];
    i32 basis[ROWS];
    f32 scaling[ROWS];          // from apply_core on: s of the token's adapter times the power of two taken out of g
    u32 row_segment[ROWS];      // which run of rows it is in; ROWS past the last
    i32 segment_adapter[ROWS];  // of each run of rows that share an adapter
    f32 segment_scale[ROWS];    // the power of two taken out of the adapter's table
    i32 bases[ROWS];            // the different ones
    u32 rows, segments, base_count;
    u32 end_group;              // of 32 columns: where the block's end
    u32 codes, pitch;           // in words of the block's shared memory: where codes are, and from one row of them to the next
    u32 segments_at_once, groups_at_once; // whose codes have room
    u32 in_bulk;                // whether rows of codes start on 16 bytes and are copied by the bulk copy engine
    u64 codes_arrived;          // an mbarrier, if so
    u32 bare;                   // bit i: token 16·tile + i has no adapter. Not among the rows above
};

// What each warp summed.
typedef f32 Parts[WARPS][ROWS][RANK];

// Dynamic shared memory, from a multiple of 1024 on. Where a function takes whatever is `Held`, that has the members it uses.
struct Space {
    alignas(128) element table[ROWS][TABLE];   // first: a place in a table is added to its address by OR
    alignas(128) element v[2][STAGE][V_STRIDE];
    u32 codes[CODES_BYTES / 4];
    element g[ROWS][G_STRIDE];
    f32 h[ROWS][RANK];
};

template <class Held> __device__ __forceinline__ Parts &parts_in(Held &space, u32 buffer) { return *reinterpret_cast<Parts *>(space.v[buffer]); }

// In words: where the codes end, and where they may start, if all of d_in fits into one buffer of V or not.
constexpr u32 V_BYTES = sizeof(element) * STAGE * V_STRIDE, TABLES_BYTES = sizeof(element) * ROWS * TABLE;
constexpr u32 CODES_AFTER_ONE = u32(TABLES_BYTES + V_BYTES + sizeof(Parts)) / 4;
constexpr u32 CODES_AFTER_BOTH = (TABLES_BYTES + 2 * V_BYTES) / 4;
constexpr u32 CODES_END = CODES_AFTER_BOTH + CODES_BYTES / 4;

__device__ __forceinline__ u32 codes_place(u32 bases, u64 inputs);
__device__ __forceinline__ void plan_windows(const FactorParams &factor, u32 groups, u32 groups_at_most, u32 place, Tile &tile);

// The tile's tokens, for columns in groups [first, end), at most `held` a warp at once, and `inputs` of d_in. The first warp reads them; everyone may use them after
// the next barrier. Which tokens have an adapter stands in the index, not in the launch: a replay may bring others.
__device__ __forceinline__ void read_tile(const TileParams &p, u32 index, u32 first_group, u32 end_group, u32 held, u64 inputs, Tile &tile) {
    if (threadIdx.x >= 32) {
        return;
    }
    u32 lane = threadIdx.x, below = (1u << lane) - 1;
    u64 place = u64(index) * ROWS + lane;
    const i32 *adapters = p.index + 2, *order = adapters + p.tokens;
    i32 token = lane < ROWS && place < p.tokens ? order[place] : -1;
    i32 adapter = token < 0 ? -1 : adapters[token];
    i32 basis = token < 0 ? -1 : p.input.basis_of ? p.input.basis_of[adapter] : 0;
    bool bare = lane < ROWS && place < p.tokens && adapters[place] < 0;
    u32 bares = __ballot_sync(ALL_LANES, bare);
    i32 before = __shfl_up_sync(ALL_LANES, adapter, 1);
    u32 starts = __ballot_sync(ALL_LANES, adapter >= 0 && (lane == 0 || adapter != before));
    u32 same = __match_any_sync(ALL_LANES, basis);
    bool first = basis >= 0 && (same & below) == 0;
    u32 firsts = __ballot_sync(ALL_LANES, first);
    u32 rows = __popc(__ballot_sync(ALL_LANES, adapter >= 0));
    if (lane < ROWS) {
        tile.token[lane] = token;
        tile.adapter[lane] = adapter;
        tile.row_segment[lane] = adapter < 0 ? ROWS : __popc(starts & (below | 1u << lane)) - 1;
        tile.basis[lane] = basis;
    }
    if (starts >> lane & 1) {
        u32 segment = __popc(starts & below);
        tile.segment_adapter[segment] = adapter;
    }
    if (first) {
        tile.bases[__popc(firsts & below)] = basis;
    }
    if (lane == 0) {
        tile.rows = rows;
        tile.bare = bares;
        tile.segments = __popc(starts);
        tile.base_count = __popc(firsts);
        tile.end_group = end_group;
        plan_windows(p.output, first_group < end_group ? end_group - first_group : 0, held * WARPS, codes_place(__popc(firsts), inputs), tile);
    }
}

// Zeros for the tokens without an adapter in columns [first, end).
__device__ __forceinline__ void clear_rows(const TileParams &p, const Tile &tile, u32 index, u64 first, u64 end) {
#pragma unroll 1
    for (u32 row = threadIdx.x / 32; row < ROWS; row += WARPS) {
        if (tile.bare >> row & 1) {
#pragma unroll 1
            for (u64 o = first + threadIdx.x % 32; o < end; o += 32) {
                p.y[(u64(index) * ROWS + row) * p.y_stride + o] = narrow<element>(0.0f);
            }
        }
    }
}

// ---- shrink ----

// Where row `k` of V lies in its buffer. A lane takes eight successive elements of x at once; the k index of mma follows them,
// and V follows that, so that eight rows of a tile of ldmatrix are neighbours.
__device__ __forceinline__ u32 slot(u32 k) { return (k & ~31u) | (k >> 2 & 1) << 4 | (k >> 1 & 1) << 3 | (k >> 3 & 3) << 1 | (k & 1); }

// ALIGNED, of a kernel: rows of x, V and y start on multiples of 16 bytes and are whole multiples long. Such a kernel is short: in a
// chain of launches, fetching instructions is a good part of the time.

// Brings rows [start, start + STAGE) of a basis, zeros from `end` on and past the rank, as one group of cp.async.
template <bool ALIGNED> __device__ __forceinline__ void fetch_v(const TileParams &p, i32 basis, u64 start, u64 end, element (&v)[STAGE][V_STRIDE]) {
    const element *values = p.input.values + u64(basis) * p.input.d * p.input.rank;
    if (ALIGNED || p.v_aligned) {
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

// Eight elements of a row of x from `place` on, of which `left` are there; zeros for the rest.
template <bool ALIGNED> __device__ __forceinline__ uint4 fetch_x(const element *row, u64 place, i64 left, bool aligned) {
    if (row && (ALIGNED || aligned) && left >= 8) {
        return *reinterpret_cast<const uint4 *>(row + place);
    }
    if (ALIGNED) {
        return make_uint4(0, 0, 0, 0);
    }
    u32 words[4] = {};
    if (row) {
#pragma unroll
        for (u32 e = 0; e < 8; e++) {
            if (i64(e) < left) {
                words[e / 2] |= u32(row[place + e].bits) << e % 2 * 16;
            }
        }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// The rows of x whose share of mma's A a lane holds; null past the last token.
struct Rows {
    const element *x[2];

    __device__ __forceinline__ Rows(const TileParams &p, const Tile &tile) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            i32 token = tile.token[threadIdx.x % 32 / 4 + 8 * half];
            x[half] = token < 0 ? nullptr : p.x + u64(token) * p.x_stride + threadIdx.x / 32 * 32 + threadIdx.x % 4 * 8;
        }
    }
};

// What a lane multiplies of a stage.
struct Inputs {
    uint4 x[STEPS][2];

    template <bool ALIGNED> __device__ __forceinline__ void fetch(const TileParams &p, const Rows &rows, u64 start, u64 end) {
        u32 own = threadIdx.x / 32 * 32 + threadIdx.x % 4 * 8;
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                u64 from = start + step * STEP;
                i64 left = i64(end) - i64(from) - own;
                x[step][half] = fetch_x<ALIGNED>(rows.x[half], from, left, p.x_aligned);
            }
        }
    }
};

// sum += x·V over the warp's 32 rows of V from `v` on: a lane has eight elements of each of its two rows of x.
__device__ __forceinline__ void multiply_v(const uint4 (&x)[2], const element (*v)[V_STRIDE], f32 (&sum)[RANK / 8][4]) {
    u32 lane = threadIdx.x % 32;
    const u32 words[2][4] = {{x[0].x, x[0].y, x[0].z, x[0].w}, {x[1].x, x[1].y, x[1].z, x[1].w}};
#pragma unroll
    for (u32 s = 0; s < 2; s++) {
        const u32 a[4] = {words[0][2 * s], words[1][2 * s], words[0][2 * s + 1], words[1][2 * s + 1]};
#pragma unroll
        for (u32 n = 0; n < RANK / 8; n += 2) {
            u32 both[4];
            ldmatrix_x4_transposed(both, shared_address(&v[s * 16 + lane % 16][n * 8 + lane / 16 * 8]));
            const u32 left[2] = {both[0], both[1]}, right[2] = {both[2], both[3]};
            mma_m16n8k16<element>(sum[n], a, left);
            mma_m16n8k16<element>(sum[n + 1], a, right);
        }
    }
}

// Where the warp's sums lie for all to read.
__device__ __forceinline__ void leave_part(f32 (&part)[ROWS][RANK], const f32 (&sum)[RANK / 8][4]) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 n = 0; n < RANK / 8; n++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            *reinterpret_cast<float2 *>(&part[lane / 4 + 8 * half][n * 8 + lane % 4 * 2]) = make_float2(sum[n][2 * half], sum[n][2 * half + 1]);
        }
    }
}

// Which buffer of V what each warp summed of x·V over [begin, end) lies in, for all to read; nobody reads the other one any more. The first buffer of V is filled, and `now` are this lane's inputs
// to it. The rest of V and x comes while what is there is multiplied. ONCE: there is no rest, and one basis, which spares registers.
template <bool ALIGNED, bool ONCE = false, class Held>
__device__ __forceinline__ u32 shrink(const TileParams &p, const Tile &tile, const Rows &rows, Inputs &now, Held &space, u64 begin, u64 end) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    f32 sum[RANK / 8][4] = {}, own[RANK / 8][4] = {};
    u64 start = begin;
    u32 buffer = 0;
    for (u32 base = 0; base < (ONCE ? 1 : tile.base_count);) {
        u64 next_start = !ONCE && start + STAGE < end ? start + STAGE : begin;
        u32 next_base = next_start == begin ? base + 1 : base;
        bool more = !ONCE && next_base < tile.base_count;
        Inputs coming = {};
        if (more) {
            fetch_v<ALIGNED>(p, tile.bases[next_base], next_start, end, space.v[buffer ^ 1]);
            coming.fetch<ALIGNED>(p, rows, next_start, end);
        }
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            u32 place = step * STEP + warp * 32;
            if (start + place >= end) {
                break;
            }
            multiply_v(now.x[step], &space.v[buffer][place], own);
        }
        if (next_base != base) {
            // A row belongs to one basis.
            bool one = ONCE || tile.base_count == 1;
            bool mine[2] = {one || tile.basis[lane / 4] == tile.bases[base], one || tile.basis[lane / 4 + 8] == tile.bases[base]};
#pragma unroll
            for (u32 n = 0; n < RANK / 8; n++) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    sum[n][i] = mine[i / 2] ? own[n][i] : sum[n][i];
                    own[n][i] = 0.0f;
                }
            }
        }
        buffer ^= 1;
        if (more) {
            cp_async_wait<0>();
            __syncthreads();
            now = coming;
        }
        start = next_start;
        base = next_base;
    }
    // In the buffer that nobody reads any more: of the last stage others may still read.
    Parts &parts = parts_in(space, buffer);
    leave_part(parts[warp], sum);
    __syncthreads();
    return buffer;
}

// Thread 16·row + c gets columns c, c + 16, … of the row, summed over all parts in their order.
template <u32 COUNT> __device__ __forceinline__ void sum_parts(const f32 (&part)[COUNT][ROWS][RANK], f32 (&h)[DEPTHS]) {
#pragma unroll
    for (u32 d = 0; d < DEPTHS; d++) {
        h[d] = 0.0f;
    }
#pragma unroll
    for (u32 from = 0; from < COUNT; from++) {
#pragma unroll
        for (u32 d = 0; d < DEPTHS; d++) {
            h[d] += part[from][threadIdx.x / 16][d * 16 + threadIdx.x % 16];
        }
    }
}

// ---- core ----

// s of the adapter, or of the token, of the row that apply_core gives a thread: fetched long before, since nothing else waits for it.
__device__ __forceinline__ f32 fetch_scaling(const TileParams &p, const Tile &tile) {
    i32 adapter = tile.adapter[threadIdx.x / 16];
    return adapter < 0 ? 0.0f : p.scaling[p.scaled_by_token ? tile.token[threadIdx.x / 16] : adapter];
}

// space.g = h·Q for each row, in 16 bits. f16 has few exponents: a power of two moves from g to the row's scaling.
template <class Held> __device__ __forceinline__ void apply_core(const TileParams &p, Tile &tile, Held &space, f32 (&h)[DEPTHS], f32 scaling) {
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
        tile.scaling[row] = scaling * power(exponent);
    }
    __syncthreads();
}
