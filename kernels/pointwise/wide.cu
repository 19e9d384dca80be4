// Norms of long rows, by the lines that a thread holds.

#include "pointwise/wide.cuh"

#ifdef COMPILE_pointwise_wide_2
extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 4) pointwise_wide_2(const PointwiseParams p) { norm_wide<2>(p); }
#endif

#ifdef COMPILE_pointwise_wide_3
extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 3) pointwise_wide_3(const PointwiseParams p) { norm_wide<3>(p); }
#endif

#ifdef COMPILE_pointwise_wide_4
extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 2) pointwise_wide_4(const PointwiseParams p) { norm_wide<4>(p); }
#endif
