// kernels/ptx/cluster.cuh for g++.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/grid.cuh"

inline u32 block_index_anew() { return blockIdx.x; }
inline u32 block_count_anew() { return gridDim.x; }
inline u32 cluster_rank() { return emulated_place()->rank; }
inline u32 cluster_size() { return emulated_place()->cluster; }
inline void cluster_arrive() { emulated_cluster_arrive(); }
inline void cluster_arrive_relaxed() { cluster_arrive(); }
inline void cluster_wait() { emulated_cluster_wait(); }

inline u32 cluster_address(u32 address, u32 rank) { return emulated_remote(address, rank); }
inline f32 cluster_load(u32 from) { return *(const f32 *)emulated_shared(from, 4); }
inline float4 cluster_load_16(u32 from) { return *(const float4 *)emulated_shared(from, 16); }
inline void cluster_store(u32 to, float4 value, u32 barrier) { emulated_cluster_store(to, &value, barrier); }
inline void cluster_write(u32 to, float4 value) { *(float4 *)emulated_shared(to, 16) = value; }
inline void cluster_barrier_wait(u64 *barrier, u32 parity) { mbarrier_wait(barrier, parity); }

inline void named_barrier_sync(u32 barrier, u32 threads) { emulated_named_barrier(barrier, threads, true); }
inline void named_barrier_arrive(u32 barrier, u32 threads) { emulated_named_barrier(barrier, threads, false); }

// There is no pool to run dry.
template <int COUNT> void registers_take() { static_assert(COUNT >= 24 && COUNT <= 256 && COUNT % 8 == 0, "a count that there is"); }
template <int COUNT> void registers_give() { registers_take<COUNT>(); }

inline bool elect_one() { return threadIdx.x % 32 == 0; }
