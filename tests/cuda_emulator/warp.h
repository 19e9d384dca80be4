// How the lanes of an emulated warp give each other values. All lanes take part.
#pragma once

// What each lane of this thread's warp gave, until the exchange after the next one.
template <class T> class EmulatedLanes {
    char (*all)[64];

  public:
    // `work(lanes)` is done once, by the last lane to come.
    template <class Work> EmulatedLanes(const T &own, const Work &work) {
        static_assert(sizeof(T) <= 64, "room for a lane");
        EmulatedPlace *at = emulated_place();
        all = at->room->lanes[at->turns++ % 2];
        memcpy(all[at->thread.x % 32], &own, sizeof own);
        if (emulated_warp_last()) {
            work(*this);
        }
        emulated_warp_barrier();
    }
    explicit EmulatedLanes(const T &own) : EmulatedLanes(own, [](const EmulatedLanes &) {}) {}
    const T &operator[](unsigned lane) const { return *(const T *)all[lane]; }
};

template <class T> T __shfl_sync(unsigned, T value, unsigned lane) {
    EmulatedLanes<T> lanes(value);
    return lanes[lane % 32];
}
template <class T> T __shfl_xor_sync(unsigned, T value, unsigned mask) {
    EmulatedLanes<T> lanes(value);
    return lanes[(threadIdx.x ^ mask) % 32];
}
template <class T> T __shfl_up_sync(unsigned, T value, unsigned count) {
    EmulatedLanes<T> lanes(value);
    unsigned lane = threadIdx.x % 32;
    return lanes[lane < count ? lane : lane - count];
}
inline unsigned __ballot_sync(unsigned, bool holds) {
    EmulatedLanes<bool> lanes(holds);
    unsigned all = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        all |= unsigned(lanes[lane]) << lane;
    }
    return all;
}
inline bool __any_sync(unsigned mask, bool holds) { return __ballot_sync(mask, holds) != 0; }
inline bool __all_sync(unsigned mask, bool holds) { return __ballot_sync(mask, holds) == 0xffffffffu; }
template <class T> unsigned __match_any_sync(unsigned, T value) {
    EmulatedLanes<T> lanes(value);
    unsigned all = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        all |= unsigned(lanes[lane] == value) << lane;
    }
    return all;
}
inline unsigned __reduce_or_sync(unsigned, unsigned bits) {
    EmulatedLanes<unsigned> lanes(bits);
    unsigned all = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        all |= lanes[lane];
    }
    return all;
}
