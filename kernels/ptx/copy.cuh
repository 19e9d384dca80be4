// Moving data: cp.async (Ampere and later), mbarriers and TMA (Hopper and later), fences. One instruction a function;
// names follow the PTX manual.
#pragma once

#include "ptx/types.cuh"

// What the host's TensorMap is to a kernel; pass it as a __grid_constant__ parameter.
struct alignas(64) tensor_map {
    u64 opaque[16];
};

// The address that PTX wants for shared memory.
__device__ __forceinline__ u32 shared_address(const void *pointer) { return u32(__cvta_generic_to_shared(pointer)); }

// 16 bytes at once, which the compiler may take apart where it knows the words one by one.
__device__ __forceinline__ void store_16(void *to, uint4 value) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w) : "memory");
}

// Has the 128 bytes around an address brought to L2.
__device__ __forceinline__ void prefetch_line(const void *address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

// 16 bits at an address of shared memory, where it was computed as such.
__device__ __forceinline__ u32 shared_load_16(u32 address) {
    u16 value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address));
    return value;
}

// 16 bytes of it, where the compiler has lost sight of which memory it is.
__device__ __forceinline__ float4 shared_load_16_bytes(u32 address) {
    float4 value;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "r"(address));
    return value;
}

// ---- cp.async ----

// 16 bytes to shared memory, of which the last 16 - `bytes` become zero. Both addresses are multiples of 16. Past the first
// level of cache: tiles are read once a block.
__device__ __forceinline__ void cp_async_16(u32 to, const void *from, u32 bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// 16 bytes where `on` holds: among other instructions, without a branch.
__device__ __forceinline__ void cp_async_16_where(bool on, u32 to, const void *from) {
    asm volatile("{\n.reg .pred on;\nsetp.ne.u32 on, %0, 0;\n@on cp.async.cg.shared.global [%1], [%2], 16;\n}" ::"r"(u32(on)), "r"(to), "l"(from)
                 : "memory");
}

// As the first, 128 bytes at a time from device memory, for long runs that are read once: they are evict-first in L2,
// so that the rest of it need not be written back first.
__device__ __forceinline__ void cp_async_16_stream(u32 to, const void *from) {
    asm volatile("{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
                 "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, policy;\n}" ::"r"(to),
                 "l"(from)
                 : "memory");
}

// 4 bytes, or zero: for rows that do not start on a multiple of 16.
__device__ __forceinline__ void cp_async_4(u32 to, const void *from, u32 bytes = 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING groups of this thread are under way. Others see the data after the next barrier.
template <int PENDING> __device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// ---- mbarrier ----

__device__ __forceinline__ void mbarrier_init(u64 *barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to TMA and to the other blocks of the cluster.
__device__ __forceinline__ void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void mbarrier_arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives, and expects `bytes` more from TMA in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect(u64 *barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Arrives at the barrier at the same place in block `rank` of the cluster.
__device__ __forceinline__ void mbarrier_arrive_remote(u64 *barrier, u32 rank) {
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(barrier)),
                 "r"(rank)
                 : "memory");
}

// As above, for a block that has only read what the barrier guards: it orders no write of this thread's. A release to the
// whole cluster would wait for all of them.
__device__ __forceinline__ void mbarrier_arrive_remote_relaxed(u64 *barrier, u32 rank) {
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(barrier)),
                 "r"(rank)
                 : "memory");
}

// Whether the phase of that parity has ended. Waits a little in hardware.
__device__ __forceinline__ bool mbarrier_try_wait(u64 *barrier, u32 parity) {
    u32 done;
    asm volatile("{\n.reg .pred ended;\nmbarrier.try_wait.parity.shared.b64 ended, [%1], %2;\nselp.u32 %0, 1, 0, ended;\n}"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
    return done != 0;
}

// Waits for the end of the phase of that parity. A pipeline that deadlocks would hang the device: a debug build gives up.
__device__ __forceinline__ void mbarrier_wait(u64 *barrier, u32 parity) {
#ifdef TRIFUSE_DEBUG
    for (u32 tries = 0; !mbarrier_try_wait(barrier, parity); tries++) {
        if (tries == 1u << 24) {
            asm volatile("trap;");
        }
    }
#else
    while (!mbarrier_try_wait(barrier, parity)) {
    }
#endif
}

// ---- TMA ----

__device__ __forceinline__ void tma_prefetch_map(const tensor_map *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// `bytes` to shared memory, counted at `barrier`. Addresses and size are multiples of 16.
__device__ __forceinline__ void bulk_load(void *to, const void *from, u32 bytes, u64 *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from),
                 "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// A box of a tensor to shared memory: `x` is the place along the contiguous axis, of a multiple of 16 bytes: of any other the hardware
// says that the instruction is illegal. Bytes are counted at `barrier`. What lies
// outside the tensor arrives as zeros, and is counted too.
__device__ __forceinline__ void tma_load_2d(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
                     shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
                 : "memory");
}

// How long L2 keeps what is read: all of it is evict-first, or every second line of it.
__device__ __forceinline__ u64 cache_policy(bool keep) {
    u64 all, half;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(all));
    asm volatile("createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %0, 0.5;" : "=l"(half));
    return keep ? half : all;
}

// How long what TMA reads is kept in L2, as createpolicy gives it for all of it: as anything else, or evict-first.
enum CacheHint : u64 { EVICT_NORMAL = 0x1000000000000000, EVICT_FIRST = 0x12f0000000000000 };

// As tma_load_2d, by a policy of the cache.
__device__ __forceinline__ void tma_load_2d_by(u64 policy, void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void tma_load_3d(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, i32 z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
                     shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

__device__ __forceinline__ void tma_load_4d(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, i32 z, i32 w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
            shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}

// As tma_load_4d, by a policy of the cache.
__device__ __forceinline__ void tma_load_4d_by(u64 policy, void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, i32 z, i32 w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void tma_load_5d(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, i32 z, i32 w, i32 v) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(
            shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
        : "memory");
}

// As tma_load_2d, to the same place in every block of the cluster that `blocks` has a bit for.
__device__ __forceinline__ void tma_load_2d_multicast(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, u16 blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "h"(blocks)
                 : "memory");
}

// The same of five axes.
__device__ __forceinline__ void tma_load_5d_multicast(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, i32 z, i32 w, i32 v, u16 blocks) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "h"(blocks)
                 : "memory");
}

__device__ __forceinline__ void tma_load_4d_multicast(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, i32 z, i32 w, u16 blocks) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w), "h"(blocks)
                 : "memory");
}

// As above, kept so long.
__device__ __forceinline__ void
tma_load_4d_multicast(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, i32 z, i32 w, u16 blocks, CacheHint hint) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w), "h"(blocks), "l"(u64(hint))
                 : "memory");
}

// A box of shared memory to the tensor; what lies outside is left out. Fence first (fence_proxy_async).
__device__ __forceinline__ void tma_store_2d(const tensor_map *map, const void *from, i32 x, i32 y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(shared_address(from)), "r"(x),
                 "r"(y)
                 : "memory");
}

__device__ __forceinline__ void tma_store_4d(const tensor_map *map, const void *from, i32 x, i32 y, i32 z, i32 w) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(shared_address(from)), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most PENDING groups of stores still read shared memory.
template <int PENDING> __device__ __forceinline__ void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Waits until at most PENDING groups of stores are unfinished.
template <int PENDING> __device__ __forceinline__ void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Makes ordinary writes to shared memory visible to TMA and wgmma.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// As above, between device memory and what TMA reads of it: by the writer before it tells the reader, by the reader afterwards.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// ---- among blocks ----

// Adds one, after everything that this thread has written or seen written. Gives the count before.
__device__ __forceinline__ u32 count_up(u32 *counter) {
    u32 before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

// Waits until `counter` has reached `count`, and sees what those who counted have written. A debug build gives up.
__device__ __forceinline__ void wait_for_count(const u32 *counter, u32 count) {
    u32 found = 0;
    for (u32 tries = 0;; tries++) {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(counter) : "memory");
        if (found >= count) {
            return;
        }
#ifdef TRIFUSE_DEBUG
        if (tries == 1u << 24) {
            asm volatile("trap;");
        }
#endif
    }
}

// Tells four numbers to a block that looks for them where they go (poll_16), which is all zero before: -0 stands for zero.
__device__ __forceinline__ void publish_16(float4 *to, float4 value) {
    auto kept = [](f32 number) { return __float_as_uint(number) == 0 ? -0.0f : number; };
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(kept(value.x)), "f"(kept(value.y)), "f"(kept(value.z)),
                 "f"(kept(value.w))
                 : "memory");
}

// False while they are not all there.
__device__ __forceinline__ bool poll_16(const float4 *from, float4 &value) {
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(from)
                 : "memory");
    auto there = [](f32 number) { return __float_as_uint(number) != 0; };
    return there(value.x) && there(value.y) && there(value.z) && there(value.w);
}

// As publish_16, one number.
__device__ __forceinline__ void publish(f32 *to, f32 value) {
    f32 kept = __float_as_uint(value) == 0 ? -0.0f : value;
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(kept) : "memory");
}

// Adds one to what counts to `most` and then from zero again; nobody waits for it.
__device__ __forceinline__ void count_round(u32 *counter, u32 most) {
    asm volatile("red.relaxed.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(most) : "memory");
}

__device__ __forceinline__ u32 read_count(const u32 *counter) {
    u32 count;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    return count;
}
