// Attention on Hopper of heads that do not start on multiples of 16 bytes, where they lie.

#define UNALIGNED_ROWS 1
#include "attention/sm90/unaligned.cuh"
#include "attention/sm90/pipeline.cuh"

#ifdef COMPILE_attention_sm90_unaligned
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_unaligned(const __grid_constant__ UnalignedParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<EVERY>(Unaligned<Tiles>{{p.tiles}, p}, tiles);
}
#endif

#ifdef COMPILE_attention_sm90_unaligned_multicast
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_unaligned_multicast(const __grid_constant__ UnalignedParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<EVERY>(Unaligned<Multicast>{{p.tiles}, p}, tiles);
}
#endif
