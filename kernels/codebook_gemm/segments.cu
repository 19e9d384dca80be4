// The codebook GEMM in S2LC's form for many tokens over many adapters, by mma.sync.
//
// Two kernels. *project* leaves h = x·V in the workspace, in f32: a block takes 16 tokens (a tile of the tokens sorted by adapter) and a
// share of d_in, so that all of x is on its way at once, and nobody waits for another block; the shares are summed by whoever reads h.
// *expand* has blocks for the segments of the index, the tokens of one adapter each, and a part of d_out: the part's codes are decoded once,
// into registers, before the block waits for h; what is left then is the core, a product and y. So an adapter's codes are decoded
// as often as it has MOST tokens, and not once for every tile that one of them is in.
//
// Sums of a token run in an order that depends on d_in alone: the shares' number does not follow the batch, and rows of mma do not mix.
// Which tokens a segment has stands in the index: a replay of a graph may bring others.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define BULK
#endif

#include "codebook_gemm/expand.cuh"
#include "ptx/grid.cuh"
#include "codebook_gemm/segments_params.cuh"

constexpr u32 MOST = 64;             // tokens of a block of *expand*
constexpr u32 HELD = 8 / DEPTHS;     // groups of columns that a warp decodes, at most

// ---- h = x·V ----

// ONCE: a share fits into one buffer of V, and there is one basis. The second buffer is then cut off behind the sums.
struct ProjectSpace {
    alignas(128) element v[2][STAGE][V_STRIDE];
};

// Has a share of the tile's codes brought to the second-level cache, for *expand* to find there: as long as the device is busy with the launch
// before, nobody wants them yet.
__device__ __forceinline__ void prefetch_codes(const FactorParams &factor, const Tile &tile, u32 share, u32 shares) {
    u32 lines = (factor.words_per_adapter + 31) / 32, each = (lines + shares - 1) / shares, first = share * each;
    u32 count = first < lines ? (lines - first < each ? lines - first : each) : 0;
#pragma unroll 1
    for (u32 segment = threadIdx.x / 32; segment < tile.segments; segment += WARPS) {
        const u32 *codes = factor.codes + u64(tile.segment_adapter[segment]) * factor.words_per_adapter;
#pragma unroll 1
        for (u32 line = threadIdx.x % 32; line < count; line += 32) {
            prefetch_line(codes + u64(first + line) * 32);
        }
    }
}

template <bool ALIGNED, bool ONCE> __device__ __forceinline__ void project(const TileParams &p, const SegmentsPlan &plan, u32 slice) {
    extern __shared__ __align__(1024) u8 dynamic[];
    __shared__ Tile tile;
    ProjectSpace &space = *reinterpret_cast<ProjectSpace *>(dynamic);
    grid_launch_next();
    u32 index = blockIdx.x / plan.shares, share = blockIdx.x % plan.shares;
    u64 begin = share * plan.each, end = begin + plan.each < p.input.d ? begin + plan.each : p.input.d;
    bool one_basis = ONCE || !p.input.basis_of;
    if (one_basis) {
        fetch_v<ALIGNED>(p, 0, begin, end, space.v[0]);
    }
    read_tile(p, index, 0, 0, 1, plan.each, tile);
    __syncthreads();
    bool any = tile.rows > 0;
    if (any && !one_basis) {
        fetch_v<ALIGNED>(p, tile.bases[0], begin, end, space.v[0]);
    }
    if (plan.prefetch) {
        prefetch_codes(p.output, tile, share, plan.shares);
    }
    cp_async_wait<0>();
    __syncthreads();
    // Every block waits: the launch after this one takes its end for the end of all before it.
    grid_wait();
    if (!any) {
        return;
    }
    Rows rows(p, tile);
    Inputs inputs;
    inputs.fetch<ALIGNED>(p, rows, begin, end);
    u32 buffer = shrink<ALIGNED, ONCE>(p, tile, rows, inputs, space, begin, end);
    f32 h[DEPTHS];
    sum_parts<WARPS>(parts_in(space, buffer), h);
    u32 row = threadIdx.x / 16;
    if (row < tile.rows) {
        u64 place = (u64(slice) * plan.shares + share) * p.tokens + u64(index) * ROWS + row;
#pragma unroll
        for (u32 d = 0; d < DEPTHS; d++) {
            plan.projected[place * RANK + d * 16 + threadIdx.x % 16] = h[d];
        }
    }
}

// So many blocks a multiprocessor that all of a launch's x is on its way at once.
extern "C" __global__ void __launch_bounds__(THREADS, RANK == 16 ? 4 : 2) codebook_gemm_segments_project(const __grid_constant__ SegmentsParams p) {
    project<true, true>(p.tile, p.plan, 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, RANK == 16 ? 2 : 1) codebook_gemm_segments_project_long(const __grid_constant__ SegmentsParams p) {
    project<true, false>(p.tile, p.plan, 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) codebook_gemm_segments_project_any(const __grid_constant__ SegmentsParams p) {
    project<false, false>(p.tile, p.plan, 0);
}

// Several slices: each row of the grid is one.
extern "C" __global__ void __launch_bounds__(THREADS, RANK == 16 ? 2 : 1) codebook_gemm_segments_project_grouped(const __grid_constant__ SegmentsGroup p) {
    project<true, false>(slice_of(p.group, blockIdx.y), p.plan, blockIdx.y);
}

// ---- y (+)= s·h·Q·Uᵀ ----

// Behind it lie the codes of all ranks, of as many groups as the block has.
struct ExpandSpace {
    alignas(128) element table[1][TABLE];   // first: a place in a table is added to its address by OR
    element g[ROWS][G_STRIDE];
    f32 h[ROWS][RANK];
};

static_assert(sizeof(ExpandSpace) == EXPAND_BYTES, "the host's size is another");

// Tokens of one adapter that are neighbours in the index's order.
struct Piece {
    i32 token[MOST];
    i32 adapter;
    u32 start, count;   // in the order
    u32 bare[2];        // bit i: of the tokens, in the order of the batch, that are the block's to clear, the ith has no adapter
};

// Blocks come in two kinds: `segments` of them take a segment each, up to the next multiple of MOST in the order; what a segment has beyond
// is the others', MOST places each. The first warp reads; everyone may use it after the next barrier.
__device__ __forceinline__ void read_piece(const TileParams &p, u32 unit, u32 segments, Piece &piece) {
    if (threadIdx.x >= 32) {
        return;
    }
    u32 lane = threadIdx.x, tokens = u32(p.tokens), start = 0, count = 0;
    const i32 *adapters = p.index + 2, *order = adapters + tokens, *segment_adapter = order + tokens, *segment_start = segment_adapter + tokens;
    i32 adapter = -1, token[2];
    if (unit < segments) {
        // Of segments that are not there the index has entries too: nothing waits for their number.
        u32 there = u32(p.index[0]), next = u32(segment_start[unit + 1]);
        adapter = segment_adapter[unit];
        start = u32(segment_start[unit]);
        u32 limit = start / MOST * MOST + MOST;
        count = unit < there ? (next < limit ? next : limit) - start : 0;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            token[half] = lane + 32 * half < count ? order[start + lane + 32 * half] : -1;
        }
        if (lane < 2) {
            piece.bare[lane] = 0;
        }
    } else {
        start = (unit - segments) * MOST;
        i32 before = start > 0 ? order[start - 1] : -1, own[2];
        u32 same[2];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 place = start + lane + 32 * half;
            token[half] = place < tokens ? order[place] : -1;
            u32 bare = __ballot_sync(ALL_LANES, place < tokens && adapters[place] < 0);
            if (lane == 0) {
                piece.bare[half] = bare;
            }
        }
        before = before < 0 ? -1 : adapters[before];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            own[half] = token[half] < 0 ? -1 : adapters[token[half]];
        }
        adapter = __shfl_sync(ALL_LANES, own[0], 0);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            same[half] = __ballot_sync(ALL_LANES, own[half] == adapter);
        }
        // A segment that begins here has its own block.
        if (adapter >= 0 && before == adapter) {
            count = ~same[0] ? __ffs(~same[0]) - 1 : ~same[1] ? 31 + __ffs(~same[1]) : MOST;
        }
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        piece.token[lane + 32 * half] = token[half];
    }
    if (lane == 0) {
        piece.adapter = adapter;
        piece.start = start;
        piece.count = count;
    }
}

// Zeros for the tokens without an adapter among the MOST from `first` on, in columns [begin, end).
template <bool ALIGNED> __device__ __forceinline__ void clear_tokens(const TileParams &p, const Piece &piece, u64 first, u64 begin, u64 end) {
#pragma unroll 1
    for (u32 row = threadIdx.x / 32; row < MOST; row += WARPS) {
        if (piece.bare[row / 32] >> row % 32 & 1) {
            element *to = p.y + (first + row) * p.y_stride;
            constexpr u32 AT_ONCE = ALIGNED ? 8 : 1;
#pragma unroll 1
            for (u64 o = begin + threadIdx.x % 32 * AT_ONCE; o < end; o += 32 * AT_ONCE) {
                if constexpr (ALIGNED) {
                    store_16(to + o, make_uint4(0, 0, 0, 0));
                } else {
                    to[o] = narrow<element>(0.0f);
                }
            }
        }
    }
}

// Eight columns of a row of y, of which `left` are there; `before`: what is there, where rows are aligned.
template <bool ALIGNED> __device__ __forceinline__ void store(element *to, const f32 (&value)[8], bool accumulate, const uint4 &before, u64 left) {
    if constexpr (ALIGNED) {
        const u32 words[4] = {before.x, before.y, before.z, before.w};
        u32 made[4];
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            f32 low = value[2 * e], high = value[2 * e + 1];
            made[e] = narrow2<element>(accumulate ? low_half(words[e]) + low : low, accumulate ? high_half(words[e]) + high : high);
        }
        store_16(to, make_uint4(made[0], made[1], made[2], made[3]));
    } else {
#pragma unroll
        for (u32 e = 0; e < 8; e++) {
            if (e < left) {
                to[e] = narrow<element>(accumulate ? widen(to[e]) + value[e] : value[e]);
            }
        }
    }
}

// The sums of all shares for the row and the columns that sum_parts gives a thread.
__device__ __forceinline__ void fetch_h(const TileParams &p, const SegmentsPlan &plan, u32 slice, u32 place, bool there, f32 (&h)[DEPTHS]) {
    const f32 *from = plan.projected + (u64(slice) * plan.shares * p.tokens + place) * RANK + threadIdx.x % 16;
    f32 part[SHARES][DEPTHS];
#pragma unroll
    for (u32 share = 0; share < SHARES; share++) {
#pragma unroll
        for (u32 d = 0; d < DEPTHS; d++) {
            part[share][d] = there && share < plan.shares ? from[u64(share) * p.tokens * RANK + d * 16] : 0.0f;
        }
    }
#pragma unroll
    for (u32 d = 0; d < DEPTHS; d++) {
        h[d] = 0.0f;
#pragma unroll
        for (u32 share = 0; share < SHARES; share++) {
            h[d] += part[share][d];
        }
    }
}

template <bool ALIGNED> __device__ __forceinline__ void expand(const TileParams &p, const SegmentsPlan &plan, u32 slice) {
    extern __shared__ __align__(1024) u8 dynamic[];
    __shared__ Tile tile;
    __shared__ Piece piece;
    ExpandSpace &space = *reinterpret_cast<ExpandSpace *>(dynamic);
    grid_launch_next();
    u32 unit = blockIdx.x / p.blocks, member = blockIdx.x % p.blocks, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 groups = u32((p.output.d + GROUP - 1) / GROUP), first_group = member * plan.groups;
    u32 here = first_group < groups ? (groups - first_group < plan.groups ? groups - first_group : plan.groups) : 0;
    if (threadIdx.x == 0) {
#ifdef BULK
        mbarrier_init(&tile.codes_arrived, 1);
        fence_mbarrier_init();
#endif
        u32 words = WIDTH ? WIDTH : p.output.bits == EACH_COLUMN ? WIDEST : p.output.bits, column = u32((p.output.d + 31) / 32) * words;
        tile.in_bulk = WIDTH && (column | p.output.words_per_adapter) % 4 == 0 && u64(p.output.codes) % 16 == 0;
        tile.codes = u32(sizeof(ExpandSpace) / 4);
        tile.pitch = row_pitch(here * words);
        tile.segments = 1;
    }
    read_piece(p, unit, plan.segments, piece);
    __syncthreads();
    u32 count = here > 0 ? piece.count : 0;
    // Of the warp, from `own` on in the block's: neighbours, so that a row's columns come together.
    u32 each = (here + WARPS - 1) / WARPS, own = warp * each, held = own < here ? (here - own < each ? here - own : each) : 0;
    u32 decoded[HELD][DEPTHS][4][2];
    f32 scaling = 0.0f;
    if (count > 0) {
        if (threadIdx.x < ROWS) {
            bool there = threadIdx.x < count;
            tile.token[threadIdx.x] = there ? piece.token[threadIdx.x] : -1;
            tile.adapter[threadIdx.x] = there ? piece.adapter : -1;
        }
        if (threadIdx.x == 0) {
            tile.segment_adapter[0] = piece.adapter;
        }
        __syncthreads();
        Window window;
        window.first_segment = 0;
        window.segments = 1;
        window.first_group = first_group;
        window.groups = here;
        Record record;
        record.fetch(p.output, tile, warp);
        stage_codes(p.output, tile, space, window);
        scaling = fetch_scaling(p, tile);
        fill_tables(p.output, tile, space, record);
        cp_async_wait<0>();
#ifdef BULK
        if (tile.in_bulk) {
            mbarrier_wait(&tile.codes_arrived, 0);
        }
#endif
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < HELD; k++) {
            if (k < held) {
                decode(tile, space, window, 0, own + k, decoded[k]);
            }
        }
    }
    grid_wait();
    u64 column = u64(first_group + own) * GROUP + lane % 4 * 8;
#pragma unroll 1
    for (u32 first = 0; first < count; first += ROWS) {
        u32 row = first + threadIdx.x / 16;
        f32 h[DEPTHS];
        fetch_h(p, plan, slice, piece.start + row, row < count, h);
        if (first > 0) {
            // Everyone has read the last rows' g.
            __syncthreads();
            if (threadIdx.x < ROWS) {
                bool there = first + threadIdx.x < count;
                tile.token[threadIdx.x] = there ? piece.token[first + threadIdx.x] : -1;
                tile.adapter[threadIdx.x] = there ? piece.adapter : -1;
            }
            __syncthreads();
            scaling = fetch_scaling(p, tile);
        }
        element *to[2];
        bool there[2];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            i32 token = tile.token[lane / 4 + 8 * half];
            there[half] = token >= 0;
            to[half] = p.y + u64(there[half] ? token : 0) * p.y_stride + column;
        }
        auto fetch_before = [&](u32 k, uint4 (&before)[2]) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                if (ALIGNED && p.accumulate && there[half] && k < held && column + k * GROUP < p.output.d) {
                    before[half] = *reinterpret_cast<const uint4 *>(to[half] + k * GROUP);
                }
            }
        };
        uint4 before[2] = {};
        fetch_before(0, before);
        apply_core(p, tile, space, h, scaling);
        u32 a[DEPTHS][4];
#pragma unroll
        for (u32 depth = 0; depth < DEPTHS; depth++) {
            ldmatrix_x4(a[depth], shared_address(&space.g[lane % 16][depth * 16 + lane / 16 * 8]));
        }
        f32 scale[2] = {tile.scaling[lane / 4] * tile.segment_scale[0], tile.scaling[lane / 4 + 8] * tile.segment_scale[0]};
#pragma unroll
        for (u32 k = 0; k < HELD; k++) {
            if (k < held) {
                uint4 coming[2] = {};
                fetch_before(k + 1, coming);
                f32 sum[4][4] = {};
#pragma unroll
                for (u32 depth = 0; depth < DEPTHS; depth++) {
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        mma_m16n8k16<element>(sum[i], a[depth], decoded[k][depth][i]);
                    }
                }
                u64 place = column + k * GROUP;
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    if (there[half] && place < p.output.d) {
                        f32 value[8];
#pragma unroll
                        for (u32 e = 0; e < 8; e++) {
                            value[e] = scale[half] * sum[e % 4][2 * half + e / 4];
                        }
                        store<ALIGNED>(to[half] + k * GROUP, value, p.accumulate, before[half], p.output.d - place);
                    }
                    before[half] = coming[half];
                }
            }
        }
    }
    if (unit >= plan.segments && !p.accumulate && here > 0) {
        u64 begin = u64(first_group) * GROUP, end = begin + u64(here) * GROUP;
        clear_tokens<ALIGNED>(p, piece, u64(unit - plan.segments) * MOST, begin, end < p.output.d ? end : p.output.d);
    }
}

// A multiprocessor: the decoded columns take half of a warp's registers.
constexpr int EXPAND_BLOCKS = RANK == 16 && WIDTH ? 2 : 1;

extern "C" __global__ void __launch_bounds__(THREADS, EXPAND_BLOCKS) codebook_gemm_segments_expand(const __grid_constant__ SegmentsParams p) { expand<true>(p.tile, p.plan, 0); }

extern "C" __global__ void __launch_bounds__(THREADS, 1) codebook_gemm_segments_expand_any(const __grid_constant__ SegmentsParams p) { expand<false>(p.tile, p.plan, 0); }

extern "C" __global__ void __launch_bounds__(THREADS, EXPAND_BLOCKS) codebook_gemm_segments_expand_grouped(const __grid_constant__ SegmentsGroup p) {
    expand<true>(slice_of(p.group, blockIdx.y), p.plan, blockIdx.y);
}
