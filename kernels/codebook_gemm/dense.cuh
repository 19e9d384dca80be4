// The codebook GEMM of dense factors, for LoRA as it is trained: what its kernels share.
//
// A unit is up to ROWS tokens of one adapter, neighbours in the index's order. A block has a unit and a share of a factor, SHARE rows of it, in
// shared memory. Sums of a token run in an order that depends on d_in and the rank alone: parts of a share, then shares. Rows of mma do not mix.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/mma.cuh"
#include "ptx/special.cuh"
#include "tile/columns.cuh"
#include "tile/power.cuh"
#include "codebook_gemm/dense_params.cuh"

constexpr u32 ROWS = 16;                 // tokens of a unit
constexpr u32 THREADS = 32 * WARPS;
constexpr u32 SHARE = SHARE_ELEMENTS / RANK;           // rows of a factor
constexpr u32 PARTS = SHARE / 32 < 8 ? SHARE / 32 : 8; // of a share of I, each with sums of its own
constexpr u32 OF_WARP = PARTS / WARPS;
constexpr u32 DEPTHS = RANK / 16;        // steps of mma over the rank
constexpr u32 G_STRIDE = RANK + 8;
constexpr u32 ALL_LANES = 0xffffffffu;

struct Unit {
    i32 token[ROWS];    // -1 past the last
    f32 scaling[ROWS];  // s of the token times the power of two taken out of g
    u32 start, rows;    // of its tokens, in the order
    i32 adapter;
};

// The unit `number`, without rows past the last one. A warp reads it. The index has at most `most` segments, and empty ones behind its last.
__device__ __forceinline__ void read_unit(const DenseParams &p, u32 number, u32 most, Unit &unit) {
    constexpr u32 EACH = 4;    // segments of a lane at once
    u32 lane = threadIdx.x % 32;
    const i32 *order = p.index + 2 + p.tokens, *segment_adapter = order + p.tokens, *segment_start = segment_adapter + p.tokens;
    u32 before = 0, start = 0, rows = 0;
    i32 adapter = -1;
#pragma unroll 1
    for (u32 base = 0; base < most; base += 32 * EACH) {
        u32 from[EACH + 1], units[EACH], own = 0;
        i32 of[EACH];
#pragma unroll
        for (u32 i = 0; i <= EACH; i++) {
            u32 segment = base + lane * EACH + i;
            from[i] = u32(segment_start[segment < most ? segment : most]);
            if (i < EACH) {
                of[i] = segment < most ? segment_adapter[segment] : -1;
            }
        }
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            units[i] = (from[i + 1] - from[i] + ROWS - 1) / ROWS;
            own += units[i];
        }
        u32 through = own;
#pragma unroll
        for (u32 distance = 1; distance < 32; distance *= 2) {
            u32 below = shuffle_up(through, distance);
            through += lane >= distance ? below : 0;
        }
        u32 first = before + through - own;
        bool here = false;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if (number >= first && number < first + units[i]) {
                here = true;
                start = from[i] + (number - first) * ROWS;
                rows = from[i + 1] - start < ROWS ? from[i + 1] - start : ROWS;
                adapter = of[i];
            }
            first += units[i];
        }
        if (lanes_where(here)) {
            u32 finder = first_lane(here);
            start = shuffle_from(start, finder);
            rows = shuffle_from(rows, finder);
            adapter = i32(shuffle_from(u32(adapter), finder));
            break;
        }
        before += shuffle_from(through, 31);
    }
    if (lane < ROWS) {
        unit.token[lane] = lane < rows ? order[start + lane] : -1;
    }
    if (lane == 0) {
        unit.start = start;
        unit.rows = rows;
        unit.adapter = adapter;
    }
}

// A factor of one adapter.
struct Factor {
    const element *values;
    u32 d, rank;

    // The adapter's among those that lie there.
    __device__ __forceinline__ Factor(const element *all, const i32 *basis_of, i32 adapter, u32 d, u32 rank) : d(d), rank(rank) {
        values = all + u64(basis_of ? basis_of[adapter] : 0) * d * rank;
    }
};

// Brings share `number` of a factor to `to`: eight ranks of a row to where `place(row, piece)` says, in elements; zeros past the last row and past the rank.
// ALIGNED: rows are whole multiples of 16 bytes, and start on them. The share comes in chunks, of which two are on their way at a time: what the launch before
// still has to read queues behind all that this one has asked for.
template <bool ALIGNED, class Place> __device__ __forceinline__ void fetch_share(const Factor &factor, u32 number, element *to, Place place) {
    constexpr u32 PIECES = RANK / 8, EACH = SHARE * PIECES / THREADS, CHUNK = EACH < 4 ? EACH : 4;
    static_assert(SHARE * PIECES % THREADS == 0 && EACH % CHUNK == 0, "chunks are whole");
#pragma unroll 1
    for (u32 chunk = 0; chunk < EACH; chunk += CHUNK) {
        if (chunk >= 2 * CHUNK) {
            cp_async_wait<1>();
        }
#pragma unroll
        for (u32 i = 0; i < CHUNK; i++) {
            u32 at = (chunk + i) * THREADS + threadIdx.x, row = at / PIECES, piece = at % PIECES;
            element *where = to + place(row, piece);
            u32 own = number * SHARE + row;
            const element *from = factor.values + u64(own) * factor.rank + piece * 8;
            if (ALIGNED) {
                bool inside = own < factor.d && piece * 8 < factor.rank;
                cp_async_16(shared_address(where), inside ? from : factor.values, inside ? 16 : 0);
            } else {
#pragma unroll
                for (u32 e = 0; e < 8; e++) {
                    where[e].bits = own < factor.d && piece * 8 + e < factor.rank ? from[e].bits : u16(0);
                }
            }
        }
        cp_async_commit();
    }
}

// ---- shrink ----

// Row `at` of I in shared memory, from piece `piece` of eight ranks on: pieces lie so that eight rows, one behind another, have banks of their own.
__device__ __forceinline__ u32 piece_place(u32 at, u32 piece) {
    constexpr u32 PIECES = RANK / 8;
    return at * RANK + (piece ^ (PIECES >= 8 ? at & 7 : at * PIECES / 8 & (PIECES - 1))) * 8;
}

// Where a piece of row `k` of I lies. A lane takes eight neighbouring elements of x at once, and the k index of mma follows them: so eight rows of a tile of
// ldmatrix are neighbours.
__device__ __forceinline__ u32 input_place(u32 k, u32 piece) {
    return piece_place((k & ~31u) | (k >> 2 & 1) << 4 | (k >> 1 & 1) << 3 | (k >> 3 & 3) << 1 | (k & 1), piece);
}

// Eight elements of a row of x from `place` on, of which `left` are there; zeros for the rest.
template <bool ALIGNED> __device__ __forceinline__ uint4 fetch_x(const element *row, u32 place, i32 left) {
    if (ALIGNED) {
        return row && left > 0 ? *reinterpret_cast<const uint4 *>(row + place) : make_uint4(0, 0, 0, 0);
    }
    u32 words[4] = {};
    if (row) {
#pragma unroll
        for (u32 e = 0; e < 8; e++) {
            if (i32(e) < left) {
                words[e / 2] |= u32(row[place + e].bits) << e % 2 * 16;
            }
        }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// x·I of a block's share.
constexpr u32 STEPS = SHARE / (32 * WARPS);    // of 32 rows of I, for each warp
constexpr u32 STEPS_OF_PART = SHARE / (32 * PARTS);

// A lane's share of the unit's rows of x.
struct Inputs {
    uint4 low[STEPS];    // of a lane's first row
    const element *row[2];
    i32 left;            // of d_in, from the lane's first element on

    // Share `number` of d_in. Reads no x.
    __device__ __forceinline__ void find(const DenseParams &p, const Unit &unit, u32 number) {
        u32 lane = threadIdx.x % 32, own = number * SHARE + threadIdx.x / 32 * (32 * STEPS) + lane % 4 * 8;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            i32 token = unit.token[lane / 4 + 8 * half];
            row[half] = token < 0 ? nullptr : p.x + u64(token) * p.x_stride + own;
        }
        left = i32(p.d_in) - i32(own);
    }

    template <bool ALIGNED> __device__ __forceinline__ void fetch() {
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            low[step] = fetch_x<ALIGNED>(row[0], step * 32, left - i32(step * 32));
        }
    }

    // sum += x·I, of both halves of the rows or the first alone.
    template <bool ALIGNED> __device__ __forceinline__ void multiply(const element *share, bool both, f32 (&all)[OF_WARP][RANK / 8][4]) const {
        constexpr u32 AT_ONCE = STEPS < 4 ? STEPS : 4;
        u32 lane = threadIdx.x % 32, first = threadIdx.x / 32 * (32 * STEPS);
#pragma unroll
        for (u32 base = 0; base < STEPS; base += AT_ONCE) {
            uint4 high[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                high[i] = both ? fetch_x<ALIGNED>(row[1], (base + i) * 32, left - i32((base + i) * 32)) : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                f32 (&sum)[RANK / 8][4] = all[(base + i) / STEPS_OF_PART];
                const u32 words[2][4] = {{low[base + i].x, low[base + i].y, low[base + i].z, low[base + i].w}, {high[i].x, high[i].y, high[i].z, high[i].w}};
#pragma unroll
                for (u32 s = 0; s < 2; s++) {
                    const u32 a[4] = {words[0][2 * s], words[1][2 * s], words[0][2 * s + 1], words[1][2 * s + 1]};
#pragma unroll
                    for (u32 n = 0; n < RANK / 8; n += 2) {
                        u32 b[4], at = first + (base + i) * 32 + s * 16 + lane % 16, piece = n + lane / 16;
                        ldmatrix_x4_transposed(b, shared_address(share + piece_place(at, piece)));
                        const u32 left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
                        mma_m16n8k16<element>(sum[n], a, left);
                        mma_m16n8k16<element>(sum[n + 1], a, right);
                    }
                }
            }
        }
    }
};

typedef f32 Parts[PARTS][ROWS][RANK];

// Where the warp's sums lie for all to read.
__device__ __forceinline__ void leave_parts(Parts &parts, const f32 (&sum)[OF_WARP][RANK / 8][4]) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 own = 0; own < OF_WARP; own++) {
#pragma unroll
        for (u32 n = 0; n < RANK / 8; n++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                *reinterpret_cast<float2 *>(&parts[threadIdx.x / 32 * OF_WARP + own][lane / 4 + 8 * half][n * 8 + lane % 4 * 2]) =
                    make_float2(sum[own][n][2 * half], sum[own][n][2 * half + 1]);
            }
        }
    }
}

// ---- expand ----

constexpr u32 GROUP = 32;                       // columns of y that a warp expands at once
constexpr u32 GROUPS = SHARE / GROUP / WARPS;   // of a warp

// Where a piece of eight ranks of row `n` of O lies: 32 bytes, 16 ranks, stay together, and of the four rows that half a warp reads each has banks of its own.
__device__ __forceinline__ u32 output_place(u32 n, u32 piece) {
    u32 block = n * DEPTHS + piece / 2;
    block ^= RANK == 16 ? (n >> 3 & 1) << 1 : RANK == 32 ? n >> 3 & 1 : (n & 1) | (n >> 3 & 1) << 1;
    return block * 16 + piece % 2 * 8;
}

// The unit's g = h in 16 bits, of thread 8·row + c the ranks 2c + 16i and the next. f16 has few exponents: a power of two moves from g to the row's scaling.
__device__ __forceinline__ void narrow_g(Unit &unit, element (&g)[ROWS][G_STRIDE], const float2 (&h)[DEPTHS], f32 scaling) {
    u32 row = threadIdx.x / 8, c = threadIdx.x % 8;
    if (row >= ROWS) {
        return;
    }
    f32 greatest = 0.0f;
#pragma unroll
    for (u32 d = 0; d < DEPTHS; d++) {
        greatest = fmaxf(greatest, fmaxf(fabsf(h[d].x), fabsf(h[d].y)));
    }
#pragma unroll
    for (u32 distance = 4; distance > 0; distance /= 2) {
        greatest = fmaxf(greatest, shuffle_xor(greatest, distance));
    }
    u32 exponent = exponent_below(greatest);
    f32 inverse = inverse_power(exponent);
#pragma unroll
    for (u32 d = 0; d < DEPTHS; d++) {
        *reinterpret_cast<u32 *>(&g[row][d * 16 + 2 * c]) = narrow2<element>(h[d].x * inverse, h[d].y * inverse);
    }
    if (c == 0) {
        unit.scaling[row] = scaling * power(exponent);
    }
}

// A lane's eight columns of each of its rows of y, in the warp's first group of a share; null where there is no row.
struct Outputs {
    element *to[2];
    u32 column, end;        // the first of them, and the end of all

    // Share `number` of the columns. Reads no y, but has L2 ask for what will be added to.
    __device__ __forceinline__ void find(const DenseSlice &slice, const Unit &unit, u32 number, bool accumulate) {
        column = number * SHARE + threadIdx.x / 32 * (GROUPS * GROUP) + threadIdx.x % 4 * 8;
        end = slice.d_out;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            i32 token = unit.token[threadIdx.x % 32 / 4 + 8 * half];
            to[half] = token < 0 ? nullptr : slice.y + u64(token) * slice.y_stride + column;
            // Two groups of a row are 128 bytes.
#pragma unroll
            for (u32 k = 0; k < GROUPS; k += 2) {
                if (accumulate && to[half] && threadIdx.x % 4 == 0 && column + k * GROUP < end) {
                    prefetch_line(to[half] + k * GROUP);
                }
            }
        }
    }

    // What is there of row `half` from group `first` on, where it is added to.
    template <bool ALIGNED, u32 COUNT> __device__ __forceinline__ void fetch(bool accumulate, u32 half, u32 first, uint4 (&before)[COUNT]) const {
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) {
            bool inside = ALIGNED && accumulate && to[half] && column + (first + k) * GROUP < end;
            before[k] = inside ? *reinterpret_cast<const uint4 *>(to[half] + (first + k) * GROUP) : make_uint4(0, 0, 0, 0);
        }
    }
};

// Groups of the second half of the rows whose y is fetched at once: units have few tokens.
constexpr u32 HIGH = GROUPS < 4 ? GROUPS : 4;

// What is there of y.
struct Before {
    uint4 low[GROUPS], high[HIGH];

    template <bool ALIGNED> __device__ __forceinline__ void fetch(const Outputs &outputs, bool accumulate) {
        outputs.fetch<ALIGNED>(accumulate, 0, 0, low);
        outputs.fetch<ALIGNED>(accumulate, 1, 0, high);
    }
};

// y (+)= s·g·Oᵀ for the columns of which the block's share of O is there.
template <bool ALIGNED>
__device__ __forceinline__ void expand(const Unit &unit, const element (&g)[ROWS][G_STRIDE], const element *share, const Outputs &outputs, Before &before,
                                       bool accumulate) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 a[DEPTHS][4];
#pragma unroll
    for (u32 d = 0; d < DEPTHS; d++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            uint2 two = *reinterpret_cast<const uint2 *>(&g[lane / 4 + 8 * half][d * 16 + lane % 4 * 4]);
            a[d][half] = two.x;
            a[d][half + 2] = two.y;
        }
    }
    f32 scale[2] = {unit.scaling[lane / 4], unit.scaling[lane / 4 + 8]};
#pragma unroll
    for (u32 k = 0; k < GROUPS; k++) {
        if (k > 0 && k % HIGH == 0) {
            outputs.fetch<ALIGNED>(accumulate, 1, k, before.high);
        }
        f32 sum[4][4] = {};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 n = (warp * GROUPS + k) * GROUP + lane / 8 * 8 + 2 * i + (lane / 4 & 1);
#pragma unroll
            for (u32 d = 0; d < DEPTHS; d++) {
                uint2 two = *reinterpret_cast<const uint2 *>(share + output_place(n, 2 * d) + lane % 4 * 4);
                const u32 b[2] = {two.x, two.y};
                mma_m16n8k16<element>(sum[i], a[d], b);
            }
        }
        u32 column = outputs.column + k * GROUP;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            if (outputs.to[half] && column < outputs.end) {
                element *to = outputs.to[half] + k * GROUP;
                f32 value[8];
#pragma unroll
                for (u32 e = 0; e < 8; e++) {
                    value[e] = scale[half] * sum[e / 2][2 * half + e % 2];
                }
                if (ALIGNED) {
                    store_columns(to, value, accumulate, half == 0 ? before.low[k] : before.high[k % HIGH]);
                } else {
                    store_columns(to, value, accumulate, outputs.end - column);
                }
            }
        }
    }
}

// s of the row that narrow_g gives a thread.
__device__ __forceinline__ f32 scaling_of(const DenseParams &p, const Unit &unit) {
    u32 row = threadIdx.x / 8;
    return row < unit.rows ? p.scaling[p.scaled_by_token ? unit.token[row] : unit.adapter] : 0.0f;
}

// Whether a token has no adapter, of an operation that writes y over. Its row is then cleared.
__device__ __forceinline__ bool any_bare(const DenseParams &p) { return !p.accumulate && u32(p.index[1]) < p.tokens; }

// Zeros for tokens without an adapter: rows in turn are a block's.
__device__ __forceinline__ void clear_bare(const DenseParams &p, const DenseSlice &slice) {
#pragma unroll 1
    for (u32 token = blockIdx.x * WARPS + threadIdx.x / 32; token < p.tokens; token += WARPS * gridDim.x) {
        if (p.index[2 + token] < 0) {
#pragma unroll 1
            for (u32 o = threadIdx.x % 32; o < slice.d_out; o += 32) {
                slice.y[u64(token) * slice.y_stride + o] = narrow<element>(0.0f);
            }
        }
    }
}
