// O = softmax(scale·Q·Kᵀ + mask)·V for many short sequences end to end, on the tensor cores of Ampere and later.

#include "attention/sm80/varlen_short.cuh"

#ifdef COMPILE_attention_sm80_varlen_short
// Every row of Q, K and V starts on a multiple of 16 bytes.
extern "C" __global__ void __launch_bounds__(VARLEN_SHORT_THREADS, VARLEN_SHORT_TOGETHER) attention_sm80_varlen_short(const VarlenShortParams p) {
    extern __shared__ __align__(16) element shared[];
    attend_varlen_short<false>(p, shared);
}
#endif

#ifdef COMPILE_attention_sm80_varlen_short_general
// The same, causal, with a window, or with the LSE: it needs more registers.
extern "C" __global__ void __launch_bounds__(VARLEN_SHORT_THREADS, VARLEN_SHORT_TOGETHER - 1) attention_sm80_varlen_short_general(const VarlenShortParams p) {
    extern __shared__ __align__(16) element shared[];
    attend_varlen_short<true>(p, shared);
}
#endif
