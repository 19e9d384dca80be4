// Attention on Hopper over the listed blocks alone, with long rows of blocks cut into parts.

#include "attention/sm90/block_sparse.cuh"
#include "attention/sm90/pipeline.cuh"

#ifdef COMPILE_attention_sm90_block_sparse_blocks
// Only the listed blocks of 128 queries and keys, rows in parts.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_block_sparse_blocks(const __grid_constant__ PartParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<BLOCKS_OF_128>(Parts(p, tiles), tiles);
}
#endif

#ifdef COMPILE_attention_sm90_block_sparse_pairs
// Only the listed blocks of 64, by the plan of `attention_pairs`, rows in parts.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) attention_sm90_block_sparse_pairs(const __grid_constant__ PartParams p) {
    extern __shared__ __align__(1024) char tiles[];
    attend_tma<BLOCKS_OF_64>(Parts(p, tiles), tiles);
}
#endif
