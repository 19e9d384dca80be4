// The mean of the rows of each sequence, 16 bytes a thread at once.

#include "pointwise/lines.cuh"

extern "C" __global__ void __launch_bounds__(LINE_THREADS) pointwise_pool(const PointwiseParams p) { mean_pool(p); }
