//! Element types in code: values are widened to f32 for computing, and narrowed once for storing.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::math::vectorised;

/// A type that operands may have.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The value, exactly. Implementations are inlined and have no branches, so that loops over them become vector code.
    fn value(self) -> f32;
    /// Rounds `src` to nearest, ties to even, into `dst` of the same length.
    fn narrow(src: &[f32], dst: &mut [Self]);
    /// Widens `src` exactly into `dst` of the same length.
    fn widen(src: &[Self], dst: &mut [f32]) {
        widen_all(src, dst);
    }
    /// The elements in place, where they are f32 and need no widening.
    fn as_f32(src: &[Self]) -> Option<&[f32]> {
        let _ = src;
        None
    }
}

impl Element for f32 {
    #[inline(always)]
    fn value(self) -> f32 {
        self
    }

    fn narrow(src: &[f32], dst: &mut [f32]) {
        dst.copy_from_slice(src);
    }

    fn as_f32(src: &[f32]) -> Option<&[f32]> {
        Some(src)
    }
}

impl Element for f16 {
    #[inline(always)]
    fn value(self) -> f32 {
        widen_f16(self.to_bits())
    }

    fn narrow(src: &[f32], dst: &mut [f16]) {
        dst.convert_from_f32_slice(src);
    }

    fn widen(src: &[f16], dst: &mut [f32]) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if super::f16c::find::<f16>().is_some() {
            // SAFETY: the instruction is there.
            unsafe { super::f16c::widen(src, dst) };
            return;
        }
        widen_all(src, dst);
    }
}

impl Element for bf16 {
    /// The value by a plain shift. The crate's own conversion keeps signalling NaNs apart.
    #[inline(always)]
    fn value(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    fn narrow(src: &[f32], dst: &mut [bf16]) {
        dst.convert_from_f32_slice(src);
    }
}

/// Widens values one by one, as vector code.
#[allow(clippy::needless_range_loop, reason = "a zip is a call where the library's iterators are not inlined")]
fn widen_all<T: Element>(src: &[T], dst: &mut [f32]) {
    vectorised(
        #[inline(always)]
        || {
            for i in 0..dst.len().min(src.len()) {
                dst[i] = src[i].value();
            }
        },
    );
}

/// The value of a binary16, without branches. Rows are short, and a call for each would cost as much as the work.
#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    // With its sign repeated above it, the number moves to the bits of an f32. Its exponent is then 112 too small. A product by 2¹¹² is
    // exact, also for numbers below the normal range.
    let finite = f32::from_bits((i32::from(bits as i16) << 13) as u32 & 0x8fff_e000) * f32::from_bits(0x7780_0000);
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(finite.to_bits() | special)
}

/// Rounds `values` to the type `T` and back.
pub fn round_trip<T: Element>(values: &mut [f32]) {
    let mut narrow = [T::zeroed(); 64];
    for chunk in values.chunks_mut(64) {
        let narrow = &mut narrow[..chunk.len()];
        T::narrow(chunk, narrow);
        T::widen(narrow, chunk);
    }
}

/// Runs an expression with `T` standing for the element type of a [`DType`](crate::DType).
macro_rules! by_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            crate::DType::F16 => {
                type $T = half::f16;
                $body
            }
            crate::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            crate::DType::F32 => {
                type $T = f32;
                $body
            }
        }
    };
}
pub(super) use by_dtype;

// The memory into which tiles are widened, kept by each thread from one piece of work to the next. It is taken out while in use: a piece of
// work that the pool starts inside another finds it empty.
std::thread_local! {
    static SCRATCH: std::cell::Cell<Vec<f32>> = const { std::cell::Cell::new(Vec::new()) };
}

/// Runs `work` with `parts` of scratch memory, contents unspecified.
pub fn with_scratch<const N: usize, R>(parts: [usize; N], work: impl FnOnce([&mut [f32]; N]) -> R) -> R {
    let mut memory = SCRATCH.take();
    let total: usize = parts.iter().sum();
    if memory.len() < total {
        memory.resize(total, 0.0);
    }
    let mut rest = memory.as_mut_slice();
    let pieces = parts.map(|len| {
        let (piece, after) = std::mem::take(&mut rest).split_at_mut(len);
        rest = after;
        piece
    });
    let result = work(pieces);
    SCRATCH.set(memory);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_narrow_number_is_widened_exactly() {
        fn check<T: Element>(all: Vec<T>, exact: impl Fn(T) -> f32) {
            let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            let mut wide = vec![0.0; all.len()];
            T::widen(&all, &mut wide);
            assert!(wide.into_iter().zip(all).all(|(wide, narrow)| same(wide, exact(narrow)) && same(narrow.value(), exact(narrow))));
        }
        check((0..=u16::MAX).map(f16::from_bits).collect(), f16::to_f32);
        check((0..=u16::MAX).map(bf16::from_bits).collect(), bf16::to_f32);
    }
}
