// Rotary positions of heads on whole lines.

#include "pointwise/rope.cuh"

extern "C" __global__ void __launch_bounds__(ROPE_THREADS) pointwise_rope(const PointwiseParams p) { rope_lines(p); }
