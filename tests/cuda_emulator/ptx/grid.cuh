// kernels/ptx/grid.cuh for g++: no kernel starts before the one before it has ended.
#pragma once

#include "ptx/types.cuh"

inline void grid_wait() {}
inline void grid_launch_next() {}
