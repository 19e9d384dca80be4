// Attention on Hopper over sequences of their own lengths.

#define VARLEN_ROWS 1
#include "attention/sm90/varlen.cuh"
#include "attention/sm90/pipeline.cuh"

#ifdef COMPILE_attention_sm90_varlen
// Sequences end to end.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_varlen(const __grid_constant__ VarlenParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<EVERY>(Varlen<false>(p, tiles), tiles);
}
#endif

#ifdef COMPILE_attention_sm90_paged
// Keys in pages.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_paged(const __grid_constant__ VarlenParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<EVERY>(Varlen<true>(p, tiles), tiles);
}
#endif
