// kernels/ptx/copy.cuh for g++.
#pragma once

#include "ptx/types.cuh"

struct alignas(64) tensor_map {
    u64 opaque[16];
};

// From the start of the block's shared memory.
inline u32 shared_address(const void *pointer) { return u32((const char *)pointer - emulated_place()->shared); }

inline void store_16(void *to, uint4 value) { *(uint4 *)to = value; }
inline void prefetch_line(const void *) {}
inline u32 shared_load_16(u32 address) { return *(const u16 *)emulated_shared(address, 2); }
inline float4 shared_load_16_bytes(u32 address) { return *(const float4 *)emulated_shared(address, 16); }

// ---- cp.async ----

inline void cp_async_16(u32 to, const void *from, u32 bytes = 16) { emulated_copy(to, from, bytes, 16); }
inline void cp_async_16_where(bool on, u32 to, const void *from) {
    if (on) {
        cp_async_16(to, from);
    }
}
inline void cp_async_16_stream(u32 to, const void *from) { emulated_copy(to, from, 16, 16); }
inline void cp_async_4(u32 to, const void *from, u32 bytes = 4) { emulated_copy(to, from, bytes, 4); }
inline void cp_async_commit() { emulated_copy_commit(); }
template <int PENDING> void cp_async_wait() { emulated_copy_wait(PENDING); }

// ---- mbarrier ----

inline void mbarrier_init(u64 *barrier, u32 arrivals) { emulated_mbarrier_init(shared_address(barrier), arrivals); }
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(u64 *barrier) { emulated_mbarrier_arrive(shared_address(barrier), 0); }
inline void mbarrier_arrive_expect(u64 *barrier, u32 bytes) { emulated_mbarrier_arrive(shared_address(barrier), bytes); }
inline void mbarrier_arrive_remote(u64 *barrier, u32 rank) { emulated_mbarrier_arrive(emulated_remote(shared_address(barrier), rank), 0); }
inline void mbarrier_arrive_remote_relaxed(u64 *barrier, u32 rank) { mbarrier_arrive_remote(barrier, rank); }
inline void mbarrier_wait(u64 *barrier, u32 parity) { emulated_mbarrier_wait(shared_address(barrier), parity); }
// The hardware waits a while too.
inline bool mbarrier_try_wait(u64 *barrier, u32 parity) { return mbarrier_wait(barrier, parity), true; }

// ---- TMA ----

inline void tma_prefetch_map(const tensor_map *) {}
inline void bulk_load(void *to, const void *from, u32 bytes, u64 *barrier) {
    emulated_bulk_load(shared_address(to), from, bytes, shared_address(barrier));
}

template <u32 AXES> void emulated_box(void *to, const tensor_map *map, u64 *barrier, const i32 (&place)[AXES], u32 blocks = 0) {
    emulated_tensor_load(shared_address(to), map, shared_address(barrier), AXES, place, blocks);
}
enum CacheHint : u64 { EVICT_NORMAL, EVICT_FIRST };
inline void tma_load_2d(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y) { emulated_box(to, map, barrier, {x, y}); }
inline u64 cache_policy(bool) { return 0; }
inline void tma_load_2d_by(u64, void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y) { emulated_box(to, map, barrier, {x, y}); }
inline void tma_load_3d(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, i32 z) { emulated_box(to, map, barrier, {x, y, z}); }
inline void tma_load_4d(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, i32 z, i32 w) { emulated_box(to, map, barrier, {x, y, z, w}); }
inline void tma_load_4d_by(u64, void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, i32 z, i32 w) {
    emulated_box(to, map, barrier, {x, y, z, w});
}
inline void tma_load_5d(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, i32 z, i32 w, i32 v) {
    emulated_box(to, map, barrier, {x, y, z, w, v});
}
inline void tma_load_2d_multicast(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, u16 blocks) {
    emulated_box(to, map, barrier, {x, y}, blocks);
}
inline void tma_load_4d_multicast(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, i32 z, i32 w, u16 blocks) {
    emulated_box(to, map, barrier, {x, y, z, w}, blocks);
}
inline void tma_load_4d_multicast(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, i32 z, i32 w, u16 blocks, CacheHint) {
    emulated_box(to, map, barrier, {x, y, z, w}, blocks);
}
inline void tma_load_5d_multicast(void *to, const tensor_map *map, u64 *barrier, i32 x, i32 y, i32 z, i32 w, i32 v, u16 blocks) {
    emulated_box(to, map, barrier, {x, y, z, w, v}, blocks);
}

inline void tma_store_4d(const tensor_map *map, const void *from, i32 x, i32 y, i32 z, i32 w) {
    const i32 place[] = {x, y, z, w};
    emulated_tensor_store(map, shared_address(from), 4, place);
}
inline void tma_store_commit() {}
template <int PENDING> void tma_store_wait_read() {}

inline void fence_proxy_async() {}
inline void fence_proxy_async_global() {}

// ---- among blocks ----

inline u32 count_up(u32 *counter) { return atomicAdd(counter, 1u); }
inline void wait_for_count(const u32 *counter, u32 count) { emulated_wait_for_count(counter, count); }
inline void publish_16(float4 *to, float4 value) {
    auto told = [](f32 number) { return __float_as_uint(number) == 0 ? -0.0f : number; };
    *to = {told(value.x), told(value.y), told(value.z), told(value.w)};
}
inline bool poll_16(const float4 *from, float4 &value) {
    // Or it looks once.
    static const bool deaf = getenv("TRIFUSE_EMULATOR_DEAF") != nullptr;
    for (int i = 0; i < 4 && !deaf; i++) {
        emulated_wait_for_count((const unsigned *)from + i, 1);
    }
    value = *from;
    return __float_as_uint(value.x) && __float_as_uint(value.y) && __float_as_uint(value.z) && __float_as_uint(value.w);
}
inline void publish(f32 *to, f32 value) { *to = __float_as_uint(value) == 0 ? -0.0f : value; }
inline void count_round(u32 *counter, u32 most) { *counter = *counter >= most ? 0 : *counter + 1; }
inline u32 read_count(const u32 *counter) { return *counter; }
