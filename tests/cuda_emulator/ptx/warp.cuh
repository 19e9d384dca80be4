// How the lanes of an emulated warp give each other values.
#pragma once

#include "ptx/types.cuh"

// What each lane of this fibre's warp gave. Lives until every lane is done with it.
template <class T> class Lanes {
    static inline thread_local T all[32][32];   // of each warp of a block, each lane

  public:
    explicit Lanes(const T &own) {
        all[threadIdx.x / 32][threadIdx.x % 32] = own;
        emulated_warp_barrier();
    }
    ~Lanes() { emulated_warp_barrier(); }
    const T &operator[](u32 lane) const { return all[threadIdx.x / 32][lane]; }
};
