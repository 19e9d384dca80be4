// Norms of short rows, by the pieces of a row that a lane holds, which f32 makes twice as large.

#include "pointwise/norm.cuh"

constexpr int NORM_BLOCKS_3 = sizeof(element) == 2 ? 4 : 3, NORM_BLOCKS_4 = sizeof(element) == 2 ? 4 : 2;

#ifdef COMPILE_pointwise_norm_2
extern "C" __global__ void __launch_bounds__(NORM_THREADS, 4) pointwise_norm_2(const PointwiseParams p) { norm_rows<2, true>(p); }
#endif

#ifdef COMPILE_pointwise_norm_3
extern "C" __global__ void __launch_bounds__(NORM_THREADS, NORM_BLOCKS_3) pointwise_norm_3(const PointwiseParams p) { norm_rows<3, true>(p); }
#endif

#ifdef COMPILE_pointwise_norm_4
extern "C" __global__ void __launch_bounds__(NORM_THREADS, NORM_BLOCKS_4) pointwise_norm_4(const PointwiseParams p) { norm_rows<4, true>(p); }
#endif

#ifdef COMPILE_pointwise_norm_8
extern "C" __global__ void __launch_bounds__(NORM_THREADS, 2) pointwise_norm_8(const PointwiseParams p) { norm_rows<8, false>(p); }
#endif
