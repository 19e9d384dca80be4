// y[t] (+)= s_a · x[t]·I_a·Q_a·O_aᵀ where tokens come in runs of one adapter, on the tensor cores: a dense input factor.
//
// Two kernels. The first has blocks of two kinds. Some decode the output factor of every adapter once, into fragments of mma in the
// workspace: whatever run of tokens then needs them reads them as they are. The others leave g = x·I·Q of each token there, in 16 bits:
// TOKENS tokens a tile, d_in split over SHARES warps, a block's tiles one after another with the input factor kept in shared memory and
// the next tile's x on its way. The second kernel multiplies the two; what it moves is y and little else.
//
// Sums of a token run in one order that depends on d_in alone, and rows of mma do not mix: a token gets the same bits whoever is
// beside it. f16 has few exponents: a power of two is taken out of each token's g and each adapter's codebook, and comes back in f32.

#include "codebook_gemm/sgmv_long_shrink.cuh"
#include "tile/columns.cuh"

// Decoding comes first, so that it does not wait for long blocks to end.
template <u32 SLICES, bool ALIGNED = true> __device__ __forceinline__ void sgmv_long_shrink(const SgmvLongParams &p) {
    u32 number = blockIdx.x;
    if (number < p.decoding) {
#pragma unroll
        for (u32 s = 0; s < SLICES; s++) {
            if (number < p.slices[s].decoding) {
                decode(p, p.slices[s], number);
                return;
            }
            number -= p.slices[s].decoding;
        }
        return;
    }
    // An index counts fewer than 2^31 tokens.
    u32 tiles = u32((p.tokens + TOKENS - 1) / TOKENS), begin = (number - p.decoding) * u32(p.tiles_each), end = begin + u32(p.tiles_each);
    shrink_tiles<SLICES, ALIGNED, SLICES == 1 ? 3 : 1>(p, begin, end < tiles ? end : tiles);
}

#ifdef COMPILE_codebook_gemm_shrink
extern "C" __global__ void __launch_bounds__(BLOCK, 2) codebook_gemm_shrink(const __grid_constant__ SgmvLongParams p) { sgmv_long_shrink<1>(p); }
#endif

#ifdef COMPILE_codebook_gemm_shrink_any
extern "C" __global__ void __launch_bounds__(BLOCK, 1) codebook_gemm_shrink_any(const __grid_constant__ SgmvLongParams p) { sgmv_long_shrink<1, false>(p); }
#endif

#ifdef COMPILE_codebook_gemm_shrink_3
extern "C" __global__ void __launch_bounds__(BLOCK, 2) codebook_gemm_shrink_3(const __grid_constant__ SgmvLongParams p) { sgmv_long_shrink<3>(p); }
#endif

// What does not depend on tokens, of up to three slices, for a product that computes h itself: after the blocks that decode, one for each
// 64 rows of an input factor.
#ifdef COMPILE_codebook_gemm_unpack
extern "C" __global__ void __launch_bounds__(BLOCK, 2) codebook_gemm_unpack(const __grid_constant__ SgmvLongParams p) {
    u32 number = blockIdx.x, steps = u32((p.d_in + BASIS_DEPTH - 1) / BASIS_DEPTH);
#pragma unroll
    for (u32 s = 0; s < 3; s++) {
        if (number < p.slices[s].decoding) {
            decode<true>(p, p.slices[s], number);
            return;
        }
        number -= p.slices[s].decoding;
    }
    turn_basis(p.slices[number / steps], number % steps);
}
#endif

// ---- y (+)= s·h·(O·Qᵀ)ᵀ ----

constexpr u32 EXPAND_WARPS = 4, HELD = 2, STRIP = HELD * GROUP;   // groups of columns of a warp
constexpr u32 TILES = 4, ROWS = 16 * TILES;                       // its rows

typedef u32 Fragments[HELD][DEPTHS][4][2];

// A warp's part of y: ROWS tokens from `first` on, STRIP columns from `column` on. ADD: to what is there. VECTOR: rows of y are whole
// multiples of 16 bytes.
template <bool ADD, bool VECTOR> struct Expansion {
    const SgmvLongParams &p;
    const SgmvLongSlice &slice;
    u32 first, column;
    u32 groups;                // of 32 columns, in a row
    i32 adapters[TILES / 2];   // of the token in a lane's place, and of that 32 further on; -2 past the last
    // Of the lane's first row: its part of the strip, of h, and the scale.
    element *y;
    const element *shrunk;
    const f32 *token_scale;

    // What a lane needs of its two rows of 16.
    struct Rows {
        i32 adapter[2];
        u32 a[DEPTHS][4];
        f32 scale[2];
    };

    __device__ __forceinline__ Expansion(const SgmvLongParams &p, const SgmvLongSlice &slice, u32 unit) : p(p), slice(slice) {
        u32 lane = threadIdx.x % 32, strips = u32((slice.output.d + STRIP - 1) / STRIP), rows = unit / strips;
        first = rows * ROWS;
        column = (unit - rows * strips) * STRIP;
        groups = u32((slice.output.d + GROUP - 1) / GROUP);
#pragma unroll
        for (u32 i = 0; i < TILES / 2; i++) {
            u32 token = first + i * 32 + lane;
            adapters[i] = token < p.tokens ? p.token_adapter[token] : -2;
        }
        u64 row = first + lane / 4;
        y = slice.y + row * slice.y_stride + column + lane % 4 * 8;
        shrunk = slice.shrunk + row * RANK + lane % 4 * 4;
        token_scale = slice.token_scale + row;
    }

    __device__ __forceinline__ bool inside(u32 k) const { return column + k * GROUP + threadIdx.x % 4 * 8 < slice.output.d; }

    __device__ __forceinline__ void fetch(u32 tile, Rows &rows) const {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 row = tile * 16 + 8 * half;
            rows.adapter[half] = __shfl_sync(ALL_LANES, adapters[tile / 2], row % 32 + threadIdx.x % 32 / 4);
            bool own = rows.adapter[half] >= 0;
            rows.scale[half] = own ? token_scale[row] : 0.0f;
#pragma unroll
            for (u32 depth = 0; depth < DEPTHS; depth++) {
                uint2 pair = make_uint2(0, 0);
                if (own) {
                    pair = *reinterpret_cast<const uint2 *>(shrunk + row * RANK + depth * 16);
                }
                rows.a[depth][half] = pair.x;
                rows.a[depth][half + 2] = pair.y;
            }
        }
    }

    __device__ __forceinline__ void fetch_before(u32 tile, const i32 (&adapter)[2], uint4 (&before)[HELD][2]) const {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
#pragma unroll
            for (u32 k = 0; k < HELD; k++) {
                before[k][half] = make_uint4(0, 0, 0, 0);
                if (adapter[half] >= 0 && inside(k)) {
                    before[k][half] = *reinterpret_cast<const uint4 *>(y + (tile * 16 + half * 8) * slice.y_stride + k * GROUP);
                }
            }
        }
    }

    // Eight columns of a row.
    __device__ __forceinline__ void store(u32 row, u32 k, const f32 (&value)[8], const uint4 &before) const {
        element *to = y + row * slice.y_stride + k * GROUP;
        if constexpr (VECTOR) {
            store_columns(to, value, ADD, before);
        } else {
            store_columns(to, value, ADD, slice.output.d - (column + k * GROUP + threadIdx.x % 4 * 8));
        }
    }

    // The strip's fragments of one adapter. Gives what its values are multiplied by.
    __device__ __forceinline__ f32 fetch_fragments(i32 adapter, Fragments &b) const {
        u32 group = column / GROUP;
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
        return slice.table_scale[adapter];
    }

    __device__ __forceinline__ void multiply(const Rows &rows, const Fragments &b, u32 at, f32 (&d)[4]) const {
#pragma unroll
        for (u32 depth = 0; depth < DEPTHS; depth++) {
            mma_m16n8k16<element>(d, rows.a[depth], b[at / 4][depth][at % 4]);
        }
    }

    __device__ __forceinline__ void run() const {
        Rows rows[TILES];
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            fetch(tile, rows[tile]);
        }
        uint4 before[HELD][2] = {};
        if constexpr (ADD && VECTOR) {
            fetch_before(0, rows[0].adapter, before);
        }
        i32 decoded = -1;
        f32 table_scale = 0.0f;
        Fragments b = {};
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            const Rows &own = rows[tile];
            uint4 coming[HELD][2] = {};
            if constexpr (ADD && VECTOR) {
                if (tile + 1 < TILES) {
                    fetch_before(tile + 1, rows[tile + 1].adapter, coming);
                }
            }
            f32 sum[HELD][4][4] = {}, scale[2] = {};
            u32 left[2] = {__ballot_sync(ALL_LANES, own.adapter[0] >= 0), __ballot_sync(ALL_LANES, own.adapter[1] >= 0)};
            // Once for each adapter that the 16 rows have: mostly one.
#pragma unroll 1
            while (left[0] | left[1]) {
                i32 low = __shfl_sync(ALL_LANES, own.adapter[0], left[0] ? __ffs(left[0]) - 1 : 0);
                i32 high = __shfl_sync(ALL_LANES, own.adapter[1], left[1] ? __ffs(left[1]) - 1 : 0);
                i32 adapter = left[0] ? low : high;
                bool mine[2] = {own.adapter[0] == adapter, own.adapter[1] == adapter};
                left[0] &= ~__ballot_sync(ALL_LANES, mine[0]);
                left[1] &= ~__ballot_sync(ALL_LANES, mine[1]);
                if (adapter != decoded) {
                    decoded = adapter;
                    table_scale = fetch_fragments(adapter, b);
                }
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    scale[half] = mine[half] ? own.scale[half] * table_scale : scale[half];
                }
                if (__all_sync(ALL_LANES, mine[0] && mine[1])) {
#pragma unroll
                    for (u32 at = 0; at < HELD * 4; at++) {
                        multiply(own, b, at, sum[at / 4][at % 4]);
                    }
                    break;
                }
#pragma unroll
                for (u32 at = 0; at < HELD * 4; at++) {
                    f32 d[4] = {};
                    multiply(own, b, at, d);
#pragma unroll
                    for (u32 e = 0; e < 4; e++) {
                        // Chosen, not multiplied by zero: another adapter's values need not be finite.
                        sum[at / 4][at % 4][e] = mine[e / 2] ? d[e] : sum[at / 4][at % 4][e];
                    }
                }
            }
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                if (own.adapter[half] >= 0 || (own.adapter[half] == -1 && !ADD)) {
#pragma unroll
                    for (u32 k = 0; k < HELD; k++) {
                        if (inside(k)) {
                            f32 value[8];
#pragma unroll
                            for (u32 e = 0; e < 8; e++) {
                                value[e] = scale[half] * sum[k][e / 2][2 * half + e % 2];
                            }
                            store(tile * 16 + half * 8, k, value, before[k][half]);
                        }
                    }
                }
            }
#pragma unroll
            for (u32 k = 0; k < HELD; k++) {
                before[k][0] = coming[k][0];
                before[k][1] = coming[k][1];
            }
        }
    }
};

// A warp for each unit of ROWS tokens and STRIP columns; those of a row of y are neighbours.
template <bool ADD, bool VECTOR> __device__ __forceinline__ void expand(const SgmvLongParams &p) {
    // The kernel after this one may start with this one, which started when all before the first kernel had ended.
    grid_launch_next();
    Expansion<ADD, VECTOR> expansion(p, p.slices[blockIdx.y], blockIdx.x * EXPAND_WARPS + threadIdx.x / 32);
    grid_wait();
    if (expansion.first < p.tokens) {
        expansion.run();
    }
}

#ifdef COMPILE_codebook_gemm_expand
extern "C" __global__ void __launch_bounds__(32 * EXPAND_WARPS, RANK == 16 ? 4 : 3) codebook_gemm_expand(const __grid_constant__ SgmvLongParams p) { expand<false, true>(p); }
#endif

#ifdef COMPILE_codebook_gemm_expand_add
extern "C" __global__ void __launch_bounds__(32 * EXPAND_WARPS, 3) codebook_gemm_expand_add(const __grid_constant__ SgmvLongParams p) { expand<true, true>(p); }
#endif

#ifdef COMPILE_codebook_gemm_expand_any
extern "C" __global__ void __launch_bounds__(32 * EXPAND_WARPS, 1) codebook_gemm_expand_any(const __grid_constant__ SgmvLongParams p) { expand<false, false>(p); }
#endif

#ifdef COMPILE_codebook_gemm_expand_any_add
extern "C" __global__ void __launch_bounds__(32 * EXPAND_WARPS, 1) codebook_gemm_expand_any_add(const __grid_constant__ SgmvLongParams p) { expand<true, false>(p); }
#endif
