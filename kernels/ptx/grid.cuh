// Kernels that start before the one before them in the stream has ended (programmatic dependent launch), from Hopper on. Below,
// the host starts none early, and both functions are nothing.
//
// A kernel that waits before it reads or writes anything may always start early: the end of the wait means the end of the
// kernel before, and that one has waited too.
#pragma once

#include "ptx/types.cuh"

// Waits for the kernel before in the stream, where the host let this one start early.
__device__ __forceinline__ void grid_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel in the stream start once every block of this one has come here, where the host allows it.
__device__ __forceinline__ void grid_launch_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
