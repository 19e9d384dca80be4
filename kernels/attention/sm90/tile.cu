// O = softmax(scale·Q·Kᵀ + mask)·V on Hopper's tensor cores, dense and block-sparse, after FlashAttention-3 (Shah et al., 2024,
// arXiv 2407.08608).

#include "attention/sm90/stream_k.cuh"
#include "attention/sm90/pipeline.cuh"

#ifdef COMPILE_attention_sm90
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90(const __grid_constant__ TmaParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<EVERY>(Tiles{p}, tiles);
}
#endif

#ifdef COMPILE_attention_sm90_multicast
// By clusters of two blocks, which share their keys.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_multicast(const __grid_constant__ TmaParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<EVERY>(StreamK{p}, tiles);
}
#endif

#ifdef COMPILE_attention_sm90_single_tile
// A tile for each block of threads.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_single_tile(const __grid_constant__ TmaParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<EVERY>(SingleTile{p}, tiles);
}
#endif

#ifdef COMPILE_attention_sm90_causal_paired
// The same of causal sequences that have no more tiles than there are SMs.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_causal_paired(const __grid_constant__ TmaParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<EVERY>(CausalPaired{p}, tiles);
}
#endif

#ifdef COMPILE_attention_sm90_blocks
// Only the listed blocks of 128 queries and keys.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_blocks(const __grid_constant__ TmaParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<BLOCKS_OF_128>(Tiles{p}, tiles);
}
#endif

#ifdef COMPILE_attention_sm90_pairs
// Only the listed blocks of 64, by the plan of `attention_pairs`.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_pairs(const __grid_constant__ TmaParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<BLOCKS_OF_64>(Tiles{p}, tiles);
}
#endif
