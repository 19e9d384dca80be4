//! The processor's own instruction that widens f16. It is not among those that the vector library asks for, so loops with it are compiled here.

use std::any::TypeId;
use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};

use half::f16;
use pulp::WithSimd;
use pulp::x86::V3;

/// Values that one instruction widens.
const LANES: usize = 8;

/// The vector instructions of this machine, where `T` is f16 and they widen it.
#[inline(always)]
pub fn find<T: 'static>() -> Option<V3> {
    let there = TypeId::of::<T>() == TypeId::of::<f16>() && std::arch::is_x86_feature_detected!("f16c");
    if there { V3::try_new() } else { None }
}

/// Runs `work` compiled for this instruction and all of `simd`. What it calls must be `inline(always)`.
///
/// # Safety
/// The processor has F16C, as [`find`] says.
#[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,fxsr,lzcnt,popcnt")]
pub unsafe fn vectorised<W: WithSimd>(simd: V3, work: W) -> W::Output {
    work.with_simd(simd)
}

/// Widens `src` exactly into `dst` of the same length, by itself.
///
/// # Safety
/// The processor has F16C, as [`find`] says.
#[target_feature(enable = "avx2,f16c")]
pub unsafe fn widen(src: &[f16], dst: &mut [f32]) {
    // SAFETY: as this function's contract.
    unsafe { widen_inline(src, dst) };
}

/// [`widen`] inside what [`vectorised`] runs.
///
/// # Safety
/// The processor has F16C, as [`find`] says.
#[inline(always)]
pub unsafe fn widen_inline(src: &[f16], dst: &mut [f32]) {
    let len = src.len().min(dst.len());
    let whole = len / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: as this function's contract; both slices have that many values from there on.
        unsafe { _mm256_storeu_ps(dst.as_mut_ptr().add(at), _mm256_cvtph_ps(_mm_loadu_si128(src.as_ptr().add(at).cast()))) };
    }
    for at in whole..len {
        dst[at] = src[at].to_f32();
    }
}
