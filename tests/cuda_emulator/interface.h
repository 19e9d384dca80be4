// What emulated kernels call, and the emulated driver gives: one function for what the hardware does as one. Names are those that no
// kernel has.
#pragma once

#include <cstddef>

struct EmulatedIndex {
    unsigned x, y, z;
};

// What the lanes of a warp hand each other: two rooms in turn, so that nobody overwrites what another has still to read.
struct EmulatedRoom {
    alignas(64) char lanes[2][32][64];
};

// Where a thread stands. It stays the same as long as the thread lives.
struct EmulatedPlace {
    EmulatedIndex thread, block, block_dim, grid_dim;
    unsigned rank, cluster;   // in its cluster, and how many blocks that has
    char *shared;             // shared memory of its block
    EmulatedRoom *room;
    unsigned turns;           // of the room, so far
};

// A product of a warp group as one of its threads asks for it. `a`: A's registers, or null where `a_tile` describes A.
struct EmulatedWgmma {
    float *d;
    const unsigned *a;
    unsigned long long a_tile, b_tile;
    int columns;
    bool a_across, b_across;   // M, or N, is the contiguous axis
    bool accumulate, bf16;
};

extern "C" {
EmulatedPlace *emulated_place() __attribute__((const));
// Ends the launch with that message, as a fault of the kernel.
[[noreturn]] void emulated_fail(const char *format, ...);

// Barriers. `emulated_warp_last`: whether all other lanes wait at the warp's barrier.
void emulated_barrier();
void emulated_warp_barrier();
bool emulated_warp_last();
void emulated_named_barrier(unsigned number, unsigned threads, bool waits);
void emulated_cluster_arrive();
void emulated_cluster_wait();
void emulated_wait_for_count(const unsigned *counter, unsigned count);

// Where launches overlap: waits for the grid before; lets the next one begin when every block has come here.
void emulated_grid_wait();
void emulated_grid_launch_next();

// Shared memory: a variable of the block's own, an address of this block or its cluster, the same place in another block.
void *emulated_static(const void *key, size_t bytes, size_t alignment);
char *emulated_shared(unsigned address, unsigned bytes);
unsigned emulated_remote(unsigned address, unsigned rank);

// Ampere's copies: the last `size - bytes` become zeros.
void emulated_copy(unsigned to, const void *from, unsigned bytes, unsigned size);
void emulated_copy_commit();
void emulated_copy_wait(unsigned pending);

// mbarriers, at addresses of this block or its cluster.
void emulated_mbarrier_init(unsigned barrier, unsigned arrivals);
void emulated_mbarrier_arrive(unsigned barrier, unsigned bytes);
void emulated_mbarrier_wait(unsigned barrier, unsigned parity);

// Copies that count at a barrier. `blocks`: who gets the box, a bit for each block of the cluster; 0 for this one alone.
void emulated_tensor_load(unsigned to, const void *map, unsigned barrier, unsigned axes, const int *place, unsigned blocks);
void emulated_tensor_store(const void *map, unsigned from, unsigned axes, const int *place);
void emulated_bulk_load(unsigned to, const void *from, unsigned bytes, unsigned barrier);
void emulated_cluster_store(unsigned to, const void *value, unsigned barrier);

void emulated_wgmma(const EmulatedWgmma &product);
void emulated_wgmma_commit();
void emulated_wgmma_wait(unsigned pending);
}
