// Rows to their places in a pool, 16 bytes a thread.

#include "pointwise/append.cuh"

extern "C" __global__ void __launch_bounds__(LINE_THREADS) pointwise_append(const PointwiseParams p) { append_lines(p); }
