// Embedding, add, activation and the product of gates, 16 bytes a thread at once.

#include "pointwise/lines.cuh"

extern "C" __global__ void __launch_bounds__(LINE_THREADS) pointwise_lines(const PointwiseParams p) { each_line(p); }
