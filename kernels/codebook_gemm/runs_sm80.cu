// y[t] (+)= s_a · x[t]·I_a·Q_a·O_aᵀ where tokens come in runs of one adapter, on the tensor cores: a dense input factor.
//
// Two kernels. The first has blocks of two kinds. Some decode the output factor of every adapter once, into fragments of mma in the
// workspace: whatever run of tokens then needs them reads them as they are. The others leave g = x·I·Q of each token there, in 16 bits:
// TOKENS tokens a tile, d_in split over SHARES warps, a block's tiles one after another with the input factor kept in shared memory and
// the next tile's x on its way. The second kernel multiplies the two; what it moves is y and little else.
//
// Sums of a token run in one order that depends on d_in alone, and rows of mma do not mix: a token gets the same bits whoever is
// beside it. f16 has few exponents: a power of two is taken out of each token's g and each adapter's codebook, and comes back in f32.

#include "codebook_gemm/runs_project.cuh"

// Decoding comes first, so that it does not wait for long blocks to end.
template <u32 SLICES, bool ALIGNED = true> __device__ __forceinline__ void project(const RunsMmaParams &p) {
    u32 number = blockIdx.x;
    if (number < p.decoding) {
#pragma unroll
        for (u32 s = 0; s < SLICES; s++) {
            if (number < p.slices[s].decoding) {
                decode(p.slices[s], number);
                return;
            }
            number -= p.slices[s].decoding;
        }
        return;
    }
    // An index counts fewer than 2^31 tokens.
    u32 tiles = u32((p.tokens + TOKENS - 1) / TOKENS), begin = (number - p.decoding) * u32(p.tiles_each), end = begin + u32(p.tiles_each);
    project_tiles<SLICES, ALIGNED>(p, begin, end < tiles ? end : tiles);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 2) codebook_gemm_project(const __grid_constant__ RunsMmaParams p) { project<1>(p); }

extern "C" __global__ void __launch_bounds__(BLOCK, 1) codebook_gemm_project_any(const __grid_constant__ RunsMmaParams p) { project<1, false>(p); }

#if RANK == 16
extern "C" __global__ void __launch_bounds__(BLOCK, 2) codebook_gemm_project_3(const __grid_constant__ RunsMmaParams p) { project<3>(p); }
#endif

// ---- y (+)= s·g·Oᵀ ----

// 16 bits in each half.
__device__ __forceinline__ f32 low_half(u32 both) { return widen(element{u16(both)}); }
__device__ __forceinline__ f32 high_half(u32 both) { return widen(element{u16(both >> 16)}); }

constexpr u32 EXPAND_WARPS = 4, HELD = 2, STRIP = HELD * GROUP;   // groups of columns of a warp
constexpr u32 TILES = 4, ROWS = 16 * TILES;                       // its rows

// A warp's part of y: ROWS tokens from `first` on, STRIP columns from `column` on. ADD: to what is there.
template <bool ADD> struct Expansion {
    const RunsSlice &slice;
    u64 first, column;
    i32 adapters[TILES / 2];   // of the token in a lane's place, and of that 32 further on; -2 past the last

    // Of a lane's two rows of 16.
    struct Rows {
        i32 adapter[2];
        u32 a[DEPTHS][4];
        f32 scale[2];
        uint4 before[HELD][2];
    };

    __device__ __forceinline__ u64 row_of(u32 tile, u32 half) const { return first + tile * 16 + threadIdx.x % 32 / 4 + 8 * half; }
    __device__ __forceinline__ u64 column_of_group(u32 k) const { return column + k * GROUP + threadIdx.x % 4 * 8; }
    __device__ __forceinline__ bool whole(u32 k) const { return slice.y_vector && column_of_group(k) + 8 <= slice.output.d; }

    __device__ __forceinline__ void fetch(u32 tile, Rows &rows) const {
        i32 adapter = tile < TILES / 2 ? adapters[0] : adapters[1];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            i32 own = rows.adapter[half] = __shfl_sync(ALL_LANES, adapter, tile * 16 % 32 + threadIdx.x % 32 / 4 + 8 * half);
            u64 row = row_of(tile, half);
            rows.scale[half] = own >= 0 ? slice.token_scale[row] * slice.table_scale[own] : 0.0f;
#pragma unroll
            for (u32 depth = 0; depth < DEPTHS; depth++) {
                uint2 pair = make_uint2(0, 0);
                if (own >= 0) {
                    pair = *reinterpret_cast<const uint2 *>(slice.projected + row * RANK + depth * 16 + threadIdx.x % 4 * 4);
                }
                rows.a[depth][half] = pair.x;
                rows.a[depth][half + 2] = pair.y;
            }
            if constexpr (ADD) {
#pragma unroll
                for (u32 k = 0; k < HELD; k++) {
                    rows.before[k][half] = make_uint4(0, 0, 0, 0);
                    if (own >= 0 && whole(k)) {
                        rows.before[k][half] = *reinterpret_cast<const uint4 *>(slice.y + row * slice.y_stride + column_of_group(k));
                    }
                }
            }
        }
    }

    // Eight columns of a row.
    __device__ __forceinline__ void store(u64 row, u32 k, const f32 (&value)[8], const uint4 &before) const {
        element *to = slice.y + row * slice.y_stride + column_of_group(k);
        if (whole(k)) {
            const u32 words[4] = {before.x, before.y, before.z, before.w};
            u32 made[4];
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                made[e] = narrow2<element>((ADD ? low_half(words[e]) : 0.0f) + value[2 * e], (ADD ? high_half(words[e]) : 0.0f) + value[2 * e + 1]);
            }
            store_16(to, make_uint4(made[0], made[1], made[2], made[3]));
            return;
        }
#pragma unroll
        for (u32 e = 0; e < 8; e++) {
            if (column_of_group(k) + e < slice.output.d) {
                to[e] = narrow<element>((ADD ? widen(to[e]) : 0.0f) + value[e]);
            }
        }
    }

    // The strip's fragments of one adapter.
    __device__ __forceinline__ void fetch_fragments(i32 adapter, u32 (&b)[HELD][DEPTHS][4][2]) const {
        u64 groups = (slice.output.d + GROUP - 1) / GROUP, group = column / GROUP;
        const uint4 *from = reinterpret_cast<const uint4 *>(slice.fragments) + fragment_place(u64(adapter) * groups + group, 0, 0);
#pragma unroll
        for (u32 n = 0; n < HELD * DEPTHS * 2; n++) {
            u32 k = n / (DEPTHS * 2), depth = n / 2 % DEPTHS, i = n % 2 * 2;
            uint4 words = make_uint4(0, 0, 0, 0);
            if (group + k < groups) {
                words = from[n * 32];
            }
            b[k][depth][i][0] = words.x;
            b[k][depth][i][1] = words.y;
            b[k][depth][i + 1][0] = words.z;
            b[k][depth][i + 1][1] = words.w;
        }
    }

    __device__ __forceinline__ void run() const {
        Rows rows;
        fetch(0, rows);
        i32 decoded = -1;
        u32 b[HELD][DEPTHS][4][2] = {};
#pragma unroll 1
        for (u32 tile = 0; tile < TILES; tile++) {
            Rows coming = rows;
            if (tile + 1 < TILES) {
                fetch(tile + 1, coming);
            }
            f32 sum[HELD][4][4] = {};
            u32 left[2] = {__ballot_sync(ALL_LANES, rows.adapter[0] >= 0), __ballot_sync(ALL_LANES, rows.adapter[1] >= 0)};
            // Once for each adapter that the 16 rows have: mostly one.
#pragma unroll 1
            while (left[0] | left[1]) {
                i32 low = __shfl_sync(ALL_LANES, rows.adapter[0], left[0] ? __ffs(left[0]) - 1 : 0);
                i32 high = __shfl_sync(ALL_LANES, rows.adapter[1], left[1] ? __ffs(left[1]) - 1 : 0);
                i32 adapter = left[0] ? low : high;
                bool mine[2] = {rows.adapter[0] == adapter, rows.adapter[1] == adapter};
                left[0] &= ~__ballot_sync(ALL_LANES, mine[0]);
                left[1] &= ~__ballot_sync(ALL_LANES, mine[1]);
                if (adapter != decoded) {
                    decoded = adapter;
                    fetch_fragments(adapter, b);
                }
#pragma unroll
                for (u32 at = 0; at < HELD * 4; at++) {
                    f32 d[4] = {};
#pragma unroll
                    for (u32 depth = 0; depth < DEPTHS; depth++) {
                        mma_m16n8k16<element>(d, rows.a[depth], b[at / 4][depth][at % 4]);
                    }
#pragma unroll
                    for (u32 e = 0; e < 4; e++) {
                        // Chosen, not multiplied by zero: another adapter's values need not be finite.
                        sum[at / 4][at % 4][e] = mine[e / 2] ? d[e] : sum[at / 4][at % 4][e];
                    }
                }
            }
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                if (rows.adapter[half] >= 0 || (rows.adapter[half] == -1 && !ADD)) {
#pragma unroll
                    for (u32 k = 0; k < HELD; k++) {
                        f32 value[8];
#pragma unroll
                        for (u32 e = 0; e < 8; e++) {
                            value[e] = rows.scale[half] * sum[k][e % 4][2 * half + e / 4];
                        }
                        store(row_of(tile, half), k, value, rows.before[k][half]);
                    }
                }
            }
            rows = coming;
        }
    }
};

template <bool ADD> __device__ __forceinline__ void expand(const RunsMmaParams &p) {
    const RunsSlice &slice = p.slices[blockIdx.y];
    u64 strips = (slice.output.d + STRIP - 1) / STRIP, units = (p.tokens + ROWS - 1) / ROWS * strips;
    u64 unit = u64(blockIdx.x) * EXPAND_WARPS + threadIdx.x / 32;
    // The kernel after this one may start with this one, which started when all before the first kernel had ended.
    grid_launch_next();
    Expansion<ADD> expansion = {slice};
    auto place = [&] {
        expansion.first = unit / strips * ROWS;
        expansion.column = unit % strips * STRIP;
#pragma unroll
        for (u32 i = 0; i < TILES / 2; i++) {
            u64 token = expansion.first + i * 32 + threadIdx.x % 32;
            expansion.adapters[i] = unit < units && token < p.tokens ? p.token_adapter[token] : -2;
        }
    };
    place();
    grid_wait();
#pragma unroll 1
    while (unit < units) {
        expansion.run();
        unit += u64(gridDim.x) * EXPAND_WARPS;
        place();
    }
}

extern "C" __global__ void __launch_bounds__(32 * EXPAND_WARPS, 3) codebook_gemm_expand_add(const __grid_constant__ RunsMmaParams p) { expand<true>(p); }

extern "C" __global__ void __launch_bounds__(32 * EXPAND_WARPS, RANK == 16 ? 4 : 3) codebook_gemm_expand_over(const __grid_constant__ RunsMmaParams p) { expand<false>(p); }
