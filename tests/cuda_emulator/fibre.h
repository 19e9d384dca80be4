// What the emulated driver and an emulated kernel share: the threads of a block as fibres, and where each stands.
#pragma once

#include <cstddef>

struct Index3 {
    unsigned x, y, z;
};

// Of the fibre that runs.
struct Place {
    Index3 thread, block, block_dim, grid_dim;
    char *shared;   // dynamic shared memory
};

extern "C" {
// Runs every thread of one block of `kernel`.
void run_block(void (*kernel)(void *), void *parameters, Index3 block, Index3 grid, Index3 threads, size_t shared_bytes);
// The place of the fibre that runs.
Place *emulated_place();
// Waits for all threads of the block, or of the warp, that have not ended.
void emulated_barrier();
void emulated_warp_barrier();
}
