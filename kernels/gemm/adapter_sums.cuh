// What adapters add to a product's sums, for a rank of 16 at most, from what codebook_gemm/sgmv_long.cu has prepared: each adapter's
// output factor, and of each token h = x·I. Either a kernel before has left h too, or the product multiplies by the input factor itself,
// as 16 more rows of W.
#pragma once

#include "ptx/mma.cuh"
#include "ptx/special.cuh"
#include "gemm/adapter_params.cuh"
#include "tile/power.cuh"

// Rows of an input factor, turned over, behind W's rows, and the sums of a thread that they take.
constexpr u32 BASIS_ROWS = 16, BASIS_SUMS = BASIS_ROWS / 2;
// Bytes of what one step of 64 elements of K has of them, as they are to lie in shared memory.
constexpr u32 BASIS_BYTES = BASIS_ROWS * 128;
// Bytes, and words, of an output factor for a run of 32 columns.
constexpr u32 RUN_BYTES = 1024, RUN_WORDS = RUN_BYTES / 4;

// How output factors lie in memory: as fragments of mma.sync, 16 bytes a lane and pair of fragments; or as wgmma reads them from shared
// memory without a swizzle, tiles of 8 columns and 8 ranks, which are fragments too, 4 bytes a lane.
enum FactorOrder : u32 { IN_FRAGMENTS = 0, IN_TILES = 1 };

// Which adapters rows [row, row + ROWS) of `rows` have, a bit each: there are fewer than 32. All of the warp take part, and get the same.
template <u32 ROWS> __device__ __forceinline__ u32 adapters_of(const AdapterSums &sums, u32 row, u32 rows) {
    u32 own = 0;
#pragma unroll
    for (u32 part = 0; part < ROWS / 32; part++) {
        u32 at = row + part * 32 + threadIdx.x % 32;
        i32 adapter = at < rows ? sums.token_adapter[at] : -1;
        own |= adapter < 0 ? 0 : 1u << adapter;
    }
    return any_lane_bits(own);
}

// The first of a set, which is taken out of it.
__device__ __forceinline__ i32 take_first(u32 &set) {
    i32 first = __ffs(set) - 1;
    set &= set - 1;
    return first;
}

// The four fragments of a run of 32 columns, in the order of the sums: the n index q of fragment i takes column 8·(q / 2) + 2i + q % 2.
struct RunFragments {
    u32 b[4][2];

    template <FactorOrder ORDER> __device__ __forceinline__ void read(const u32 *from) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if constexpr (ORDER == IN_TILES) {
                b[i][0] = from[i * 64 + lane];
                b[i][1] = from[i * 64 + 32 + lane];
            } else if (i % 2 == 0) {
                uint4 both = reinterpret_cast<const uint4 *>(from)[i / 2 * 32 + lane];
                b[i][0] = both.x;
                b[i][1] = both.y;
                b[i + 1][0] = both.z;
                b[i + 1][1] = both.w;
            }
        }
    }
};

// Where an adapter's output factor lies from a slice's `column` on, a multiple of 32.
__device__ __forceinline__ const u32 *factor_at(const AdapterSlice &slice, u32 groups, i32 adapter, u64 column) {
    return slice.fragments + (u64(u32(adapter)) * groups + column / 32) * RUN_WORDS;
}

// One adapter's fragments of RUNS runs, fetched ahead.
template <u32 RUNS> struct FragmentsHeld {
    static constexpr u32 RUNS_HELD = RUNS;
    i32 adapter;
    RunFragments runs[RUNS];

    // Those of `left` columns from the slice's `column` on, where there is such an adapter.
    template <FactorOrder ORDER> __device__ __forceinline__ void fetch(const AdapterSlice &slice, u32 groups, i32 which, u64 column, i64 left) {
        adapter = which >= 0 ? which : -2;
        const u32 *from = factor_at(slice, groups, which, column);
#pragma unroll
        for (u32 run = 0; run < RUNS; run++) {
            runs[run] = {};
            if (which >= 0 && i64(run * 32) < left) {
                runs[run].template read<ORDER>(from + run * RUN_WORDS);
            }
        }
    }
};

// None.
struct FragmentsFar {
    static constexpr i32 adapter = -2;
    static constexpr u32 RUNS_HELD = 0;
    RunFragments runs[1];
};

// Of a lane's two rows of its warp's 16, 8 apart: the adapter (-1 for none), h as mma's A, and what h was divided by.
struct AdapterRows {
    i32 adapter[2];
    u32 a[4];
    f32 scale[2];

    // Adapters of rows from `row` on, of `rows`.
    __device__ __forceinline__ void fetch_adapters(const AdapterSums &sums, u64 row, u64 rows) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            adapter[half] = row + half * 8 < rows ? sums.token_adapter[row + half * 8] : -1;
        }
    }

    // And h of one slice, as a kernel has left it.
    __device__ __forceinline__ void fetch(const AdapterSums &sums, const AdapterSlice &slice, u64 row, u64 rows) {
        fetch_adapters(sums, row, rows);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u64 own = row + half * 8;
            uint2 pair = make_uint2(0, 0);
            scale[half] = 0.0f;
            if (own < rows) {
                // What lies there of a token without an adapter reaches no sums.
                pair = *reinterpret_cast<const uint2 *>(slice.shrunk + own * BASIS_ROWS + threadIdx.x % 4 * 4);
                scale[half] = slice.token_scale[own];
            }
            a[half] = pair.x;
            a[half + 2] = pair.y;
        }
    }

    // And what h is multiplied by for each, for wgmma.
    __device__ __forceinline__ void fetch_scales(const AdapterSlice &slice) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            scale[half] = adapter[half] >= 0 ? slice.table_scale[adapter[half]] : 0.0f;
        }
    }

    // A, with zeros in the rows of others.
    __device__ __forceinline__ void only(i32 which, u32 (&of)[4]) const {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            of[i] = adapter[i % 2] == which ? a[i] : 0;
        }
    }

    // h from the product's sums, times `factor`.
    __device__ __forceinline__ void take(const f32 *h, const f32 (&factor)[2]) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            a[half] = narrow2<element>(h[half * 2] * factor[half], h[half * 2 + 1] * factor[half]);
            a[half + 2] = narrow2<element>(h[half * 2 + 4] * factor[half], h[half * 2 + 5] * factor[half]);
        }
    }

    // The same, a power of two taken out of each row: f16 has few exponents.
    __device__ __forceinline__ void take(const f32 *h) {
        f32 inverse[2];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            f32 greatest = fmaxf(fmaxf(fabsf(h[half * 2]), fabsf(h[half * 2 + 1])), fmaxf(fabsf(h[half * 2 + 4]), fabsf(h[half * 2 + 5])));
            greatest = fmaxf(greatest, shuffle_xor(greatest, 1));
            greatest = fmaxf(greatest, shuffle_xor(greatest, 2));
            u32 exponent = exponent_below(greatest);
            inverse[half] = inverse_power(exponent);
            scale[half] = power(exponent);
        }
        take(h, inverse);
    }

    // The first adapter that the 16 rows have, -1 where they have none.
    __device__ __forceinline__ i32 first() const {
        u32 lower = __ballot_sync(0xffffffffu, adapter[0] >= 0), upper = __ballot_sync(0xffffffffu, adapter[1] >= 0);
        i32 low = __shfl_sync(0xffffffffu, adapter[0], lower ? __ffs(lower) - 1 : 0), high = __shfl_sync(0xffffffffu, adapter[1], upper ? __ffs(upper) - 1 : 0);
        return lower ? low : high;
    }

    // Adds to the sums of `left` columns from the slice's `column` on, a multiple of 32. Lane t of four has columns 8t to 8t + 7 of each 32, two a
    // fragment, as d[run · 16 + fragment · 4 + half · 2 ...]. `held`: some adapter's fragments of these columns.
    template <FactorOrder ORDER, u32 RUNS, class Held, u32 COUNT>
    __device__ __forceinline__ void add(const AdapterSlice &slice, u32 groups, u64 column, i64 left, const Held &held, f32 (&d)[COUNT]) const {
        u32 rest[2] = {__ballot_sync(0xffffffffu, adapter[0] >= 0), __ballot_sync(0xffffffffu, adapter[1] >= 0)};
        // Once for each adapter that the 16 rows have: mostly one.
#pragma unroll 1
        while (rest[0] | rest[1]) {
            i32 low = __shfl_sync(0xffffffffu, adapter[0], rest[0] ? __ffs(rest[0]) - 1 : 0);
            i32 high = __shfl_sync(0xffffffffu, adapter[1], rest[1] ? __ffs(rest[1]) - 1 : 0);
            i32 which = rest[0] ? low : high;
            bool mine[2] = {adapter[0] == which, adapter[1] == which};
            rest[0] &= ~__ballot_sync(0xffffffffu, mine[0]);
            rest[1] &= ~__ballot_sync(0xffffffffu, mine[1]);
            f32 table = slice.table_scale[which], factor[2] = {scale[0] * table, scale[1] * table};
            auto multiply = [&](u32 run, const RunFragments &fragments) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    f32 sum[4] = {};
                    mma_m16n8k16<element>(sum, a, fragments.b[i]);
#pragma unroll
                    for (u32 e = 0; e < 4; e++) {
                        // Chosen, not multiplied by zero: another adapter's values need not be finite.
                        if (mine[e / 2]) {
                            d[run * 16 + i * 4 + e] += factor[e / 2] * sum[e];
                        }
                    }
                }
            };
            const u32 *from = factor_at(slice, groups, which, column);
            auto beyond = [&](u32 run) { return i64(run * 32) >= left; };
            if (Held::RUNS_HELD > 0 && which == held.adapter) {
                // While these are multiplied the others come.
                constexpr u32 HELD = Held::RUNS_HELD > 0 ? Held::RUNS_HELD : 1;
                RunFragments rest[RUNS > HELD ? RUNS - HELD : 1] = {};
#pragma unroll
                for (u32 run = HELD; run < RUNS; run++) {
                    if (!beyond(run)) {
                        rest[run - HELD].template read<ORDER>(from + run * RUN_WORDS);
                    }
                }
#pragma unroll
                for (u32 run = 0; run < RUNS; run++) {
                    if (beyond(run)) {
                        break;
                    }
                    multiply(run, run < HELD ? held.runs[run % HELD] : rest[run < HELD ? 0 : run - HELD]);
                }
                continue;
            }
            RunFragments ahead = {};
            if (left > 0) {
                ahead.read<ORDER>(from);
            }
#pragma unroll
            for (u32 run = 0; run < RUNS; run++) {
                if (beyond(run)) {
                    break;
                }
                RunFragments own = ahead;
                if (run + 1 < RUNS && !beyond(run + 1)) {
                    ahead.read<ORDER>(from + (run + 1) * RUN_WORDS);
                }
                multiply(run, own);
            }
        }
    }
};
