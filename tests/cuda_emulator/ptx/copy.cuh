// kernels/ptx/copy.cuh for g++: so far what the kernels for Ampere use.
#pragma once

#include "ptx/types.cuh"

struct alignas(64) tensor_map {
    u64 opaque[16];
};

// From the start of the dynamic shared memory.
inline u32 shared_address(const void *pointer) { return u32((const char *)pointer - emulated_place()->shared); }

inline void emulated_copy(u32 to, const void *from, u32 bytes, u32 size) {
    if (to % size || (bytes && (u64)from % size)) {
        abort();
    }
    char *at = emulated_place()->shared + to;
    memset(at, 0, size);
    memcpy(at, from, bytes);
}

inline void cp_async_16(u32 to, const void *from, u32 bytes = 16) { emulated_copy(to, from, bytes, 16); }
inline void cp_async_16_stream(u32 to, const void *from) { emulated_copy(to, from, 16, 16); }
inline void cp_async_4(u32 to, const void *from, u32 bytes = 4) { emulated_copy(to, from, bytes, 4); }
inline void cp_async_commit() {}
template <int PENDING> void cp_async_wait() {}
