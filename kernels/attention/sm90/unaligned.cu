// Attention on Hopper of heads that do not start on multiples of 16 bytes, where they lie.

#define ROTATE_ROWS 1
#include "attention/sm90/unaligned.cuh"
#include "attention/sm90/pipeline.cuh"

#ifdef COMPILE_attention_sm90_rotated
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_rotated(const __grid_constant__ RotatedParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<EVERY>(Rotated<Tiles>{{p.tiles}, p}, tiles);
}
#endif

#ifdef COMPILE_attention_sm90_rotated_neighbours
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_rotated_neighbours(const __grid_constant__ RotatedParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<EVERY>(Rotated<Neighbours>{{p.tiles}, p}, tiles);
}
#endif
