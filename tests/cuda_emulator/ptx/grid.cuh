// kernels/ptx/grid.cuh for g++: where launches overlap (see launch.cpp), a grid waits for the one before.
#pragma once

#include "ptx/types.cuh"

inline void grid_wait() { emulated_grid_wait(); }
inline void grid_launch_next() { emulated_grid_launch_next(); }
