//! Products with a few rows on the left. Every value on the right is used too seldom to pay for packing, and is streamed once from where it
//! lies.
//!
//! Loops count, and do not zip. A step of an innermost one is a few instructions, and where the library's iterators are not inlined it would call.
#![allow(clippy::needless_range_loop, reason = "see above")]

use pulp::{Simd, WithSimd};

use super::element::Element;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::f16c;

/// The most rows that are few.
pub const FEW_ROWS: usize = 8;
/// Running sums of a dot product: they hide the latency of the multiply-add.
const WAYS: usize = 4;
/// Rows of the right side that are added at a time.
const ADDED: usize = 4;

/// `dst (+)= factor · A·B`, `A [m, k]` and `dst [m, n]` with contiguous rows, `B [k, n]` with contiguous rows or columns.
///
/// # Safety
/// The pointers are to matrices of these shapes, with rows the given number of elements apart. Nobody else writes `dst`.
pub unsafe fn product(
    [m, n, k]: [usize; 3],
    dst: (*mut f32, usize),
    accumulate: bool,
    a: (*const f32, usize),
    (b, b_strides): (*const f32, [usize; 2]),
    factor: f32,
) {
    let [stride, columns] = b_strides;
    if stride == 1 {
        // SAFETY: as this function's contract.
        return unsafe { dots([m, n, k], dst, accumulate, a, (b, columns), factor) };
    }
    let (arch, all) = (pulp::Arch::new(), Places { n, k, dst, a, b: (b, stride), factor, accumulate });
    let mut i = 0;
    while i < m {
        // SAFETY: row i lies inside both.
        let places = unsafe { all.below(i) };
        i += if m - i == 1 { arch.dispatch(Sums::<1>(places)) } else { arch.dispatch(Sums::<2>(places)) };
    }
}

/// `dst (+)= factor · A·B` as [`product`] computes it, for contiguous columns of B, of any type. The columns are widened as they are read,
/// and never stored.
///
/// # Safety
/// The contract of [`product`] holds, with columns the given number of elements apart.
pub unsafe fn dots<B: Element>([m, n, k]: [usize; 3], dst: (*mut f32, usize), accumulate: bool, a: (*const f32, usize), b: (*const B, usize), factor: f32) {
    let all = Places { n, k, dst, a, b, factor, accumulate };
    let mut i = 0;
    while i < m {
        // SAFETY: row i lies inside both.
        let places = unsafe { all.below(i) };
        i += match m - i {
            1 => dispatch::<B, 1>(places),
            2 => dispatch::<B, 2>(places),
            3 => dispatch::<B, 3>(places),
            _ => dispatch::<B, 4>(places),
        };
    }
}

/// Computes the dot products of `M` rows with the vector instructions of this machine: `M`.
fn dispatch<B: Element, const M: usize>(places: Places<B>) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if let Some(simd) = f16c::find::<B>() {
        let Places { n, k, dst, a, b: (b, columns), factor, accumulate } = places;
        // SAFETY: the instruction is there, and B is f16.
        return unsafe { f16c::vectorised(simd, HardwareDots::<M>(Places { n, k, dst, a, b: (b.cast(), columns), factor, accumulate })) };
    }
    pulp::Arch::new().dispatch(Dots::<B, M>(places))
}

/// The operands, from the first of the rows that are computed together.
#[derive(Clone, Copy)]
struct Places<B> {
    n: usize,
    k: usize,
    dst: (*mut f32, usize),
    a: (*const f32, usize),
    b: (*const B, usize),
    factor: f32,
    accumulate: bool,
}

impl<B> Places<B> {
    /// The operands from row `i` on.
    ///
    /// # Safety
    /// A and the result have that row.
    unsafe fn below(self, i: usize) -> Self {
        // SAFETY: as this function's contract.
        let (dst, a) = unsafe { (self.dst.0.add(i * self.dst.1), self.a.0.add(i * self.a.1)) };
        Self { dst: (dst, self.dst.1), a: (a, self.a.1), ..self }
    }

    /// Row `i` of A.
    #[inline(always)]
    fn a<'a>(&self, i: usize) -> &'a [f32] {
        // SAFETY: only `product` and `dots` make this type, whose callers answer for the pointers.
        unsafe { std::slice::from_raw_parts(self.a.0.add(i * self.a.1), self.k) }
    }

    /// `len` values of B from row or column `at` on.
    #[inline(always)]
    fn b<'a>(&self, at: usize, len: usize) -> &'a [B] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.b.0.add(at * self.b.1), len) }
    }

    /// Row `i` of the result.
    #[inline(always)]
    fn dst<'a>(&self, i: usize) -> &'a mut [f32] {
        // SAFETY: as above; one row is asked for at a time.
        unsafe { std::slice::from_raw_parts_mut(self.dst.0.add(i * self.dst.1), self.n) }
    }
}

/// Room for as many values as [`WAYS`] registers of any width hold.
const BLOCK: usize = WAYS * 16;

/// Dot products of `M` rows with columns of B.
struct Dots<B, const M: usize>(Places<B>);

impl<B: Element, const M: usize> WithSimd for Dots<B, M> {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> usize {
        dot::<S, B, M>(
            simd,
            self.0,
            #[inline(always)]
            |values: &[B], room: &mut [f32]| {
                for i in 0..values.len() {
                    room[i] = values[i].value();
                }
            },
        )
    }
}

/// [`Dots`] of columns that the processor's own instruction widens.
#[cfg(all(target_arch = "x86_64", not(miri)))]
struct HardwareDots<const M: usize>(Places<half::f16>);

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl<const M: usize> WithSimd for HardwareDots<M> {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> usize {
        dot::<S, half::f16, M>(
            simd,
            self.0,
            #[inline(always)]
            |values: &[half::f16], room: &mut [f32]| {
                // SAFETY: `dispatch` alone makes this type, where the instruction is there.
                unsafe { f16c::widen_inline(values, room) };
            },
        )
    }
}

/// Computes the dot products of `M` rows with columns of B, which `widen` writes to as many places: `M`.
#[inline(always)]
fn dot<S: Simd, B: Element, const M: usize>(simd: S, places: Places<B>, widen: impl Fn(&[B], &mut [f32]) + Copy) -> usize {
    let lanes = size_of::<S::f32s>() / size_of::<f32>();
    let block = WAYS * lanes;
    let whole = places.k / block * block;
    let mut rows: [&[[S::f32s; WAYS]]; M] = [&[]; M];
    for i in 0..M {
        rows[i] = S::as_simd_f32s(&places.a(i)[..whole]).0.as_chunks::<WAYS>().0;
    }
    let mut room = [0.0; BLOCK];
    for j in 0..places.n {
        let mut sums = [[simd.splat_f32s(0.0); WAYS]; M];
        let column = places.b(j, places.k);
        let (blocks, tail) = column.split_at(whole);
        for b in 0..whole / block {
            soon(blocks[b * block..].as_ptr(), block);
            let values: &[S::f32s; WAYS] = &S::as_simd_f32s(wide(&blocks[b * block..][..block], &mut room, widen)).0.as_chunks().0[0];
            for i in 0..M {
                for way in 0..WAYS {
                    sums[i][way] = simd.mul_add_e_f32s(values[way], rows[i][b][way], sums[i][way]);
                }
            }
        }
        let (tail, rest) = S::as_simd_f32s(wide(tail, &mut room, widen));
        for i in 0..M {
            let (row, row_rest) = S::as_simd_f32s(&places.a(i)[whole..]);
            for t in 0..tail.len() {
                sums[i][0] = simd.mul_add_e_f32s(tail[t], row[t], sums[i][0]);
            }
            let [a, b, c, d] = sums[i];
            let sum = simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d)));
            let value = &mut places.dst(i)[j];
            *value = places.factor * (sum + plain(rest, row_rest)) + if places.accumulate { *value } else { 0.0 };
        }
    }
    M
}

/// How far ahead of what is read memory is asked for, in bytes. The processor's own prefetcher ends at each page, and it follows narrow values at half
/// the speed of memory. It is no multiple of a page, whose lines share a place in the nearest cache.
const AHEAD: usize = 3072;

/// Asks for the values behind the next `count` from `at` on, [`AHEAD`] bytes further, which are often those of the next column.
#[inline(always)]
fn soon<B>(at: *const B, count: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..(count * size_of::<B>()).div_ceil(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint, and changes nothing whatever the address is.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast::<i8>().wrapping_add(AHEAD + 64 * line)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (at, count);
}

/// At most [`BLOCK`] values as f32: in place, or widened to `room`.
#[inline(always)]
fn wide<'a, B: Element>(values: &'a [B], room: &'a mut [f32; BLOCK], widen: impl Fn(&[B], &mut [f32])) -> &'a [f32] {
    if let Some(wide) = B::as_f32(values) {
        return wide;
    }
    widen(values, &mut room[..values.len()]);
    &room[..values.len()]
}

/// The dot product of values that fill no register.
#[inline(always)]
fn plain(a: &[f32], b: &[f32]) -> f32 {
    let mut sum = 0.0;
    for i in 0..a.len().min(b.len()) {
        sum += a[i] * b[i];
    }
    sum
}

/// Sums of multiples of rows of B, for `M` rows.
struct Sums<const M: usize>(Places<f32>);

impl<const M: usize> WithSimd for Sums<M> {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> usize {
        let Self(places) = &self;
        if !places.accumulate {
            (0..M).for_each(|i| places.dst(i).fill(0.0));
        }
        let whole = places.k / ADDED * ADDED;
        for j in (0..whole).step_by(ADDED) {
            self.add::<S, ADDED>(simd, j);
        }
        for j in whole..places.k {
            self.add::<S, 1>(simd, j);
        }
        M
    }
}

impl<const M: usize> Sums<M> {
    /// Adds the multiples of `N` rows of B from row `j` on.
    #[inline(always)]
    fn add<S: Simd, const N: usize>(&self, simd: S, j: usize) {
        let Self(places) = self;
        let mut rows: [(&[S::f32s], &[f32]); N] = [(&[], &[]); N];
        for step in 0..N {
            rows[step] = S::as_simd_f32s(places.b(j + step, places.n));
        }
        for i in 0..M {
            let mut factors = [0.0; N];
            let mut wide = [simd.splat_f32s(0.0); N];
            for step in 0..N {
                factors[step] = places.factor * places.a(i)[j + step];
                wide[step] = simd.splat_f32s(factors[step]);
            }
            let (sums, rest) = S::as_mut_simd_f32s(places.dst(i));
            for at in 0..sums.len() {
                for step in 0..N {
                    sums[at] = simd.mul_add_e_f32s(rows[step].0[at], wide[step], sums[at]);
                }
            }
            for at in 0..rest.len() {
                for step in 0..N {
                    rest[at] += rows[step].1[at] * factors[step];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_and_layout_is_the_plain_product() {
        let draw = |len: usize, step: usize| (0..len).map(|i| (i * step % 17) as f32 - 8.0).collect::<Vec<_>>();
        for m in 1..=FEW_ROWS {
            for (n, k) in [(1, 1), (3, 37), (37, 3), (64, 64), (70, 101)] {
                for columns in [false, true] {
                    for accumulate in [false, true] {
                        let (a, b) = (draw(m * (k + 2), 5), draw((n + k) * (n + k), 7));
                        let strides = if columns { [1, k + 1] } else { [n + 1, 1] };
                        let before = if accumulate { draw(m * (n + 3), 3) } else { vec![f32::NAN; m * (n + 3)] };
                        let mut got = before.clone();
                        // SAFETY: the matrices lie inside the lists.
                        unsafe { product([m, n, k], (got.as_mut_ptr(), n + 3), accumulate, (a.as_ptr(), k + 2), (b.as_ptr(), strides), 0.5) };
                        for at in 0..m * (n + 3) {
                            let (i, j) = (at / (n + 3), at % (n + 3));
                            if j >= n {
                                assert_eq!(got[at].to_bits(), before[at].to_bits());
                                continue;
                            }
                            let sum: f32 = (0..k).map(|e| a[i * (k + 2) + e] * b[e * strides[0] + j * strides[1]]).sum();
                            let want = 0.5 * sum + if accumulate { before[at] } else { 0.0 };
                            assert_eq!(got[at], want, "{m}×{n}×{k}, columns {columns}: {i}, {j}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn columns_of_f16_are_widened_to_the_same_bits_whatever_widens_them() {
        for m in 1..=FEW_ROWS {
            for (n, k) in [(1, 1), (3, 37), (2, 64), (5, 101)] {
                let a: Vec<f32> = (0..m * k).map(|i| (i * 5 % 17) as f32 / 7.0 - 1.0).collect();
                let b: Vec<half::f16> = (0..n * k).map(|i| half::f16::from_f32((i * 7 % 19) as f32 / 9.0 - 1.0)).collect();
                let wide: Vec<f32> = b.iter().map(|value| value.to_f32()).collect();
                let (mut got, mut want) = (vec![f32::NAN; m * n], vec![f32::NAN; m * n]);
                // SAFETY: the matrices lie inside the lists.
                unsafe {
                    dots([m, n, k], (got.as_mut_ptr(), n), false, (a.as_ptr(), k), (b.as_ptr(), k), 0.5);
                    dots([m, n, k], (want.as_mut_ptr(), n), false, (a.as_ptr(), k), (wide.as_ptr(), k), 0.5);
                }
                assert!(got.iter().zip(&want).all(|(got, want)| got.to_bits() == want.to_bits()), "{m}×{n}×{k}: {got:?}, not {want:?}");
            }
        }
    }
}
