// Heads of new tokens, turned in place and kept: by pieces, and for every size and place.

#include "pointwise/heads.cuh"

#ifdef COMPILE_pointwise_heads
extern "C" __global__ void __launch_bounds__(HEADS_THREADS) pointwise_heads(const HeadsParams p) { heads_pieces(p); }
#endif

#ifdef COMPILE_pointwise_heads_simt
extern "C" __global__ void __launch_bounds__(HEADS_THREADS) pointwise_heads_simt(const HeadsParams p) { heads_elements(p); }
#endif
