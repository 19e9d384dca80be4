// The codebook GEMM in S2LC's form for Hopper: see tile.cuh.
//
// The blocks of a cluster split d_in of x·V, send each other what they summed through distributed shared memory, and then
// expand a share of d_out each: one launch, in which a cluster reads x and V once. What does not depend on the launch before
// (codes, tables, V) is fetched before waiting for it, so that in a chain of launches only the way from x to y is left; and where the
// host knows that no launch still under way writes x (q, k and v read the same), only y is.
//
// Tensor cores by mma.sync, not wgmma: a tile has 16 tokens, of which a token shares its adapter with few, while wgmma multiplies 64
// rows at least; and wgmma reads B from shared memory alone, while U is decoded into registers.

#define BULK

#include "codebook_gemm/balanced.cuh"
#include "ptx/cluster.cuh"

// Blocks of a cluster where there are many slices.
constexpr u32 FEW = 2;

// What the cluster's BLOCKS blocks summed.
template <u32 BLOCKS> struct ClusterSpace {
    Space space;
    f32 received[BLOCKS][ROWS][RANK];
};

// The sum over the block's warps to every block of the cluster, 16 bytes a thread. Where there are more threads than that takes,
// they share the receivers.
template <u32 BLOCKS>
__device__ __forceinline__ void send_sums(const Parts &parts, f32 (&received)[BLOCKS][ROWS][RANK], u64 *arrived, u32 rank, u32 receivers = BLOCKS) {
    constexpr u32 PIECES = ROWS * RANK / 4, SENDERS = THREADS / PIECES;
    u32 place = threadIdx.x % PIECES * 4;
    float4 all = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (u32 part = 0; part < WARPS; part++) {
        float4 one = *reinterpret_cast<const float4 *>(&parts[part][0][0] + place);
        all.x += one.x;
        all.y += one.y;
        all.z += one.z;
        all.w += one.w;
    }
    u32 own = shared_address(&received[rank][0][0] + place), barrier = shared_address(arrived);
#pragma unroll
    for (u32 to = threadIdx.x / PIECES; to < BLOCKS; to += SENDERS) {
        if (to < receivers) {
            cluster_store(cluster_address(own, to), all, cluster_address(barrier, to));
        }
    }
}

// GROUPED: y may be written before the launch before has ended. Work: how warps share what a block expands; what is DEPENDENT is for x that the
// launch before writes, and one basis, of which a block's share fits into one buffer. ICACHE_WARM: where all is decoded before the wait, the way from x
// to y is gone once before it too.
template <bool ALIGNED, u32 HELD, bool GROUPED = false, u32 BLOCKS = CLUSTER, class Work = Pieces<ALIGNED, HELD>, bool ICACHE_WARM = false>
__device__ __forceinline__ void codebook_gemm(const TileParams &p) {
    extern __shared__ __align__(1024) u8 dynamic[];
    __shared__ Tile tile;
    __shared__ u64 arrived;
    static_assert(sizeof(ClusterSpace<CLUSTER>) == SHARED_BYTES, "the host's size is another");
    Space &space = reinterpret_cast<ClusterSpace<BLOCKS> *>(dynamic)->space;
    auto &received = reinterpret_cast<ClusterSpace<BLOCKS> *>(dynamic)->received;
    u32 rank = cluster_rank();
    grid_launch_next();
    if (threadIdx.x == 0) {
        mbarrier_init(&arrived, 1);
        mbarrier_init(&tile.codes_arrived, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect(&arrived, sizeof(received));
    }
    cluster_arrive();
    u32 index = blockIdx.x / p.blocks, member = blockIdx.x % p.blocks;
    u32 groups = u32((p.output.d + GROUP - 1) / GROUP), share = (groups + p.blocks - 1) / p.blocks;
    u32 first = member * share, end = first + share < groups ? first + share : groups;
    // Of d_in: whole 32s, so that only the last block has a rest.
    u64 each = (p.input.d + 32 * BLOCKS - 1) / (32 * BLOCKS) * 32;
    u64 begin = rank * each, finish = begin + each < p.input.d ? begin + each : p.input.d;
    // The one basis that there may be is known before the tile is.
    bool one_basis = Work::DEPENDENT || !p.input.basis_of, x_early = !Work::DEPENDENT && p.x_early;
    if (!Work::DEPENDENT && one_basis && begin < finish) {
        fetch_v<ALIGNED>(p, 0, begin, finish, space.v[0]);
    }
    read_tile(p, index, first, end, HELD, each, tile);
    // Here all else waits for the index longest: the warps that do not read it ask for V meanwhile.
    if (Work::DEPENDENT && begin < finish) {
        fetch_v<ALIGNED>(p, 0, begin, finish, space.v[0]);
    }
    __syncthreads();
    bool any = tile.rows > 0;
    Rows rows(p, tile);
    Inputs inputs;
    Work pieces;
    f32 scaling = fetch_scaling(p, tile);
    if (any) {
        if (!one_basis && begin < finish) {
            fetch_v<ALIGNED>(p, tile.bases[0], begin, finish, space.v[0]);
        }
        Record record;
        record.fetch(p.output, tile, threadIdx.x / 32);
        if (x_early) {
            inputs.fetch<ALIGNED>(p, rows, begin, finish);
        }
        pieces.start(p, tile, space, first);
        fill_tables(p.output, tile, space, record);
        // V alone is enough to begin with, where x is there: codes come meanwhile.
        if (x_early) {
            cp_async_wait<1>();
            __syncthreads();
        } else {
            pieces.wait(tile);
            __syncthreads();
            pieces.decode_next(tile, space);
        }
    }
    // The others' barriers are ready.
    cluster_wait();
    bool icache_warm = false;
    if constexpr (ICACHE_WARM) {
        // Not where a core is read: what launches still under way write may not be read before the wait, whatever becomes of it.
        icache_warm = any && !x_early && !p.core && one_basis && each <= STAGE && pieces.all_decoded_everywhere(tile);
        if (icache_warm) {
            // On no rows and alone at first, so that the instructions are there afterwards: to fetch them takes longer than to carry them out.
            u32 rows_mine = pieces.rows;
            pieces.rows = 0;
            inputs = {};
#pragma unroll 1
            for (u32 pass = 0; pass < 2; pass++) {
                if (pass > 0) {
                    pieces.rows = rows_mine;
                    pieces.next = 0;
                    grid_wait();
                    inputs.fetch<ALIGNED>(p, rows, begin, finish);
                }
                u32 buffer = shrink<ALIGNED, true>(p, tile, rows, inputs, space, begin, finish);
                send_sums(parts_in(space, buffer), received, &arrived, rank, pass > 0 ? BLOCKS : 0);
                pieces.fetch_y(p, tile, space, buffer ^ 1);
                if (pass > 0) {
                    cluster_barrier_wait(&arrived, 0);
                }
                f32 h[DEPTHS];
                sum_parts<BLOCKS>(received, h);
                apply_core(p, tile, space, h, scaling);
                pieces.finish(p, tile, space, buffer ^ 1);
            }
        }
    }
    // Every block waits: the launch after this one takes its end for the end of all before it.
    if (!icache_warm && (!x_early || !any)) {
        grid_wait();
    }
    if (any && !icache_warm) {
        if (!x_early) {
            inputs.fetch<ALIGNED>(p, rows, begin, finish);
        }
        // Code that the way from x to y does not take is not fetched: a launch finds little of it in the caches.
        u32 buffer;
        if (Work::DEPENDENT || (ALIGNED && HELD == 1 && one_basis && each <= STAGE)) {
            buffer = shrink<ALIGNED, true>(p, tile, rows, inputs, space, begin, finish);
        } else {
            buffer = shrink<ALIGNED>(p, tile, rows, inputs, space, begin, finish);
        }
        send_sums(parts_in(space, buffer), received, &arrived, rank);
        if (!x_early) {
            pieces.fetch_y(p, tile, space, buffer ^ 1);
        }
        // Nothing is sent to a block that has ended: each waits for all that is sent to it.
        cluster_barrier_wait(&arrived, 0);
        f32 h[DEPTHS];
        sum_parts<BLOCKS>(received, h);
        if (x_early) {
            pieces.wait(tile);
        }
        apply_core(p, tile, space, h, scaling);
        if constexpr (Work::DEPENDENT) {
            pieces.finish(p, tile, space, buffer ^ 1);
        } else if (ALIGNED && HELD == 1 && !x_early && pieces.all_decoded(tile)) {
            pieces.finish(p, tile, space, buffer ^ 1);
        } else {
            pieces.run(p, tile, space, buffer ^ 1, !x_early, [&] {
                if (x_early) {
                    if (!GROUPED || !p.y_early) {
                        grid_wait();
                    }
                    pieces.fetch_y(p, tile, space, buffer ^ 1);
                }
            });
        }
        if (GROUPED && p.y_early) {
            grid_wait();
        }
    }
    cp_async_wait<0>();
    if (!p.accumulate && first < end && tile.bare) {
        clear_rows(p, tile, index, u64(first) * GROUP, u64(end) * GROUP < p.output.d ? u64(end) * GROUP : p.output.d);
    }
}

// Two blocks an SM, so that a launch has room beside the one before.
#ifdef COMPILE_codebook_gemm_sm90
extern "C" __global__ void __launch_bounds__(THREADS, RANK == 16 && WIDTH ? 2 : 1) codebook_gemm_sm90(const TileParams p) { codebook_gemm<true, 1>(p); }
#endif

// For one tile of tokens that have many adapters, in blocks so few that several launches are under way with one of them an SM:
// each decodes all that it needs of 16 adapters before it waits.
#ifdef COMPILE_codebook_gemm_sm90_predecode
extern "C" __global__ void __launch_bounds__(THREADS, 1) codebook_gemm_sm90_predecode(const TileParams p) { codebook_gemm<true, 1, false, CLUSTER, Pieces<true, 1, 8>>(p); }
#endif

// For several tiles of them.
#ifdef COMPILE_codebook_gemm_sm90_balanced
extern "C" __global__ void __launch_bounds__(THREADS, 2) codebook_gemm_sm90_balanced(const TileParams p) { codebook_gemm<true, 2, false, CLUSTER, Balanced<WIDTH == 7 ? 7 : 6>>(p); }
#endif

// For one tile of tokens of one adapter, in so few blocks that one an SM is enough.
#ifdef COMPILE_codebook_gemm_sm90_icache_warm
extern "C" __global__ void __launch_bounds__(THREADS, 1) codebook_gemm_sm90_icache_warm(const TileParams p) { codebook_gemm<true, 1, false, CLUSTER, Pieces<true, 1>, true>(p); }
#endif

// For more than one group of columns a warp.
#ifdef COMPILE_codebook_gemm_sm90_wide
extern "C" __global__ void __launch_bounds__(THREADS, RANK == 16 && WIDTH ? 2 : 1) codebook_gemm_sm90_wide(const TileParams p) { codebook_gemm<true, 2>(p); }
#endif

#ifdef COMPILE_codebook_gemm_sm90_any
extern "C" __global__ void __launch_bounds__(THREADS, 1) codebook_gemm_sm90_any(const TileParams p) { codebook_gemm<false, 2>(p); }
#endif

// Several slices: each row of the grid is one.
#ifdef COMPILE_codebook_gemm_sm90_grouped
extern "C" __global__ void __launch_bounds__(THREADS, RANK == 16 && WIDTH ? 2 : 1) codebook_gemm_sm90_grouped(const __grid_constant__ TileGroup p) { codebook_gemm<true, 2, true>(slice_of(p, blockIdx.y)); }
#endif

// For so many slices that clusters of few blocks fill the device, each with more to do: they need not take turns.
#ifdef COMPILE_codebook_gemm_sm90_many
extern "C" __global__ void __launch_bounds__(THREADS, RANK == 16 && WIDTH ? 2 : 1) codebook_gemm_sm90_many(const __grid_constant__ TileGroup p) { codebook_gemm<true, 2, true, FEW>(slice_of(p, blockIdx.y)); }
#endif
