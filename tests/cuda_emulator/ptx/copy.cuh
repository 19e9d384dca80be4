// kernels/ptx/copy.cuh for g++: so far what the portable kernels use.
#pragma once

#include "ptx/types.cuh"

struct alignas(64) tensor_map {
    u64 opaque[16];
};
