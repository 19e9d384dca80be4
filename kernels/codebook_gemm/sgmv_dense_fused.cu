// The codebook GEMM of dense factors for few units, in one launch, on Hopper: see dense.cuh. A cluster has a unit. A block has a share of d_in and one of the
// columns, both of which are in shared memory before it waits for the launch before. Blocks send each other what they summed through distributed shared memory.
// The bits are those of sgmv_dense.cu.

#include "codebook_gemm/dense.cuh"
#include "ptx/cluster.cuh"

struct FusedSpace {
    alignas(128) element input[SHARE * RANK];
    alignas(128) element output[SHARE * RANK];
    alignas(16) element g[ROWS][G_STRIDE];
    alignas(16) f32 received[CLUSTER][ROWS][RANK];
};

// The sums over all parts of a share to every block of the cluster, 16 bytes a thread.
__device__ __forceinline__ void send_share(const Parts &parts, FusedSpace &space, u64 *arrived, u32 share, u32 blocks) {
    constexpr u32 PIECES = ROWS * RANK / 4, SENDERS = THREADS > PIECES ? THREADS / PIECES : 1;
#pragma unroll
    for (u32 piece = threadIdx.x % PIECES; piece < PIECES; piece += THREADS) {
        float4 all = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (u32 from = 0; from < PARTS; from++) {
            float4 one = *reinterpret_cast<const float4 *>(&parts[from][0][0] + piece * 4);
            all.x += one.x;
            all.y += one.y;
            all.z += one.z;
            all.w += one.w;
        }
        u32 own = shared_address(&space.received[share][0][0] + piece * 4), barrier = shared_address(arrived);
        for (u32 to = threadIdx.x / PIECES; to < blocks; to += SENDERS) {
            cluster_store(cluster_address(own, to), all, cluster_address(barrier, to));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RANK == 16 ? 3 : 1) codebook_gemm_sgmv_dense_fused(const __grid_constant__ DenseParams p) {
    extern __shared__ __align__(1024) u8 dynamic[];
    __shared__ Unit unit;
    __shared__ u64 arrived;
    auto &space = *reinterpret_cast<FusedSpace *>(dynamic);
    static_assert(sizeof(FusedSpace) <= SHARED_BYTES, "the host's size is another");
    const DenseSlice &slice = p.slices[blockIdx.y];
    u32 rank = cluster_rank(), blocks = cluster_size();
    grid_launch_next();
    if (threadIdx.x == THREADS - 1) {
        mbarrier_init(&arrived, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect(&arrived, p.shares * u32(sizeof(space.received[0])));
    }
    cluster_arrive_relaxed();
    if (threadIdx.x < 32) {
        read_unit(p, blockIdx.x / blocks, p.units, unit);
    }
    bool bare = any_bare(p);
    __syncthreads();
    bool any = unit.rows > 0, shrinks = any && rank < p.shares, expands = any && rank * SHARE < slice.d_out;
    f32 scaling = 0.0f;
    Inputs inputs;
    Outputs outputs;
    if (shrinks) {
        fetch_share<true>(Factor(slice.input, slice.input_of, unit.adapter, p.d_in, slice.rank), rank, space.input, input_place);
        inputs.find(p, unit, rank);
    }
    if (expands) {
        fetch_share<true>(Factor(slice.output, slice.output_of, unit.adapter, slice.d_out, slice.rank), rank, space.output, output_place);
        scaling = scaling_of(p, unit);
        outputs.find(slice, unit, rank, p.accumulate);
    }
    cp_async_wait<0>();
    __syncthreads();
    // The others' barriers are ready.
    cluster_wait();
    // Every block waits: the launch after this one takes its end for the end of all before it.
    grid_wait();
    if (shrinks) {
        inputs.fetch<true>();
        f32 sum[OF_WARP][RANK / 8][4] = {};
        inputs.multiply<true>(space.input, unit.rows > 8, sum);
        __syncthreads();
        Parts &parts = *reinterpret_cast<Parts *>(space.input);
        static_assert(sizeof(Parts) <= sizeof(space.input), "the sums take the place of I");
        leave_parts(parts, sum);
        __syncthreads();
        send_share(parts, space, &arrived, rank, blocks);
    }
    Before before;
    if (expands) {
        before.fetch<true>(outputs, p.accumulate);
    }
    if (any) {
        // Nothing is sent to a block that has ended: each waits for all that is sent to it.
        cluster_barrier_wait(&arrived, 0);
    }
    if (expands) {
        float2 h[DEPTHS] = {};
        if (threadIdx.x / 8 < ROWS) {
#pragma unroll 4
            for (u32 number = 0; number < p.shares; number++) {
#pragma unroll
                for (u32 d = 0; d < DEPTHS; d++) {
                    float2 one = *reinterpret_cast<const float2 *>(&space.received[number][threadIdx.x / 8][d * 16 + threadIdx.x % 8 * 2]);
                    h[d].x += one.x;
                    h[d].y += one.y;
                }
            }
        }
        narrow_g(unit, space.g, h, scaling);
        __syncthreads();
        expand<true>(unit, space.g, space.output, outputs, before, p.accumulate);
    }
    if (bare) {
        clear_bare(p, slice);
    }
}
