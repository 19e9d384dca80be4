// Blocks and warps among each other: clusters, named barriers, registers between warpgroups, overlapping launches. All but
// the named barriers need Hopper.
#pragma once

#include "ptx/grid.cuh"
#include "ptx/types.cuh"

// blockIdx.x and gridDim.x, read where they are used: the compiler keeps what it has read of those in registers.
__device__ __forceinline__ u32 block_index_anew() {
    u32 block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
}

__device__ __forceinline__ u32 block_count_anew() {
    u32 blocks;
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(blocks));
    return blocks;
}

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Blocks of the cluster; 1 where the launch has none.
__device__ __forceinline__ u32 cluster_size() {
    u32 size;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
    return size;
}

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }

// Orders nothing but what is fenced itself, as mbarriers by fence_mbarrier_init: a release is a fence of all memory.
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Where the same place of shared memory lies in block `rank` of the cluster.
__device__ __forceinline__ u32 cluster_address(u32 address, u32 rank) {
    u32 remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

// 4 and 16 bytes of any block of the cluster.
__device__ __forceinline__ f32 cluster_load(u32 from) {
    f32 value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
    return value;
}

__device__ __forceinline__ float4 cluster_load_16(u32 from) {
    float4 value;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(from)
                 : "memory");
    return value;
}

// Stores 16 bytes to another block of the cluster, and counts them at that block's mbarrier. Both addresses from cluster_address.
__device__ __forceinline__ void cluster_store(u32 to, float4 value, u32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "r"(__float_as_uint(value.x)),
                 "r"(__float_as_uint(value.y)), "r"(__float_as_uint(value.z)), "r"(__float_as_uint(value.w)), "r"(barrier)
                 : "memory");
}

// As above, for others to read after the next barrier of the cluster.
__device__ __forceinline__ void cluster_write(u32 to, float4 value) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w) : "memory");
}

// As mbarrier_wait, where what arrives comes from other blocks of the cluster.
__device__ __forceinline__ void cluster_barrier_wait(u64 *barrier, u32 parity) {
    u32 address = u32(__cvta_generic_to_shared(barrier)), done = 0;
    for (u32 tries = 0; !done; tries++) {
        asm volatile("{\n.reg .pred ended;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%1], %2;\nselp.u32 %0, 1, 0, ended;\n}"
                     : "=r"(done)
                     : "r"(address), "r"(parity)
                     : "memory");
#ifdef TRIFUSE_DEBUG
        if (tries == 1u << 24) {
            asm volatile("trap;");
        }
#endif
    }
}

// Barrier number `barrier` (1 to 15; 0 is __syncthreads) of `threads` threads, whole warps.
__device__ __forceinline__ void named_barrier_sync(u32 barrier, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(u32 barrier, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Takes registers from the pool, or gives them back, until each thread of the warpgroup has COUNT, a multiple of 8.
template <int COUNT> __device__ __forceinline__ void registers_take() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

template <int COUNT> __device__ __forceinline__ void registers_give() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// One thread of a converged warp.
__device__ __forceinline__ bool elect_one() {
    u32 elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
    return elected != 0;
}
