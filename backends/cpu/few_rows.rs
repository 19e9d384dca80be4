//! Products with a few rows on the left. Every value on the right is used too seldom to pay for packing, and is streamed once from where it
//! lies.

use pulp::{Simd, WithSimd};

use super::element::Element;

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
    let (arch, all) = (pulp::Arch::new(), Places { n, k, dst, a, b, factor, accumulate });
    let mut i = 0;
    while i < m {
        // SAFETY: row i lies inside both.
        let places = unsafe { all.below(i) };
        i += match m - i {
            1 => arch.dispatch(Dots::<B, 1>(places)),
            2 | 3 => arch.dispatch(Dots::<B, 2>(places)),
            _ => arch.dispatch(Dots::<B, 4>(places)),
        };
    }
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

/// Values of a column that are widened at a time: whole registers of any width, many times over, that stay in L1.
const WIDENED: usize = 512;

/// Dot products of `M` rows with columns of B.
struct Dots<B, const M: usize>(Places<B>);

impl<B: Element, const M: usize> WithSimd for Dots<B, M> {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> usize {
        let Self(places) = self;
        let lanes = size_of::<S::f32s>() / size_of::<f32>();
        let rows: [_; M] = std::array::from_fn(
            #[inline(always)]
            |i| S::as_simd_f32s(places.a(i)),
        );
        let mut buffer = [0.0; WIDENED];
        for j in 0..places.n {
            let mut sums = [[simd.splat_f32s(0.0); WAYS]; M];
            let mut rests = [0.0; M];
            for (number, part) in places.b(j, places.k).chunks(WIDENED).enumerate() {
                let wide = match B::as_f32(part) {
                    Some(wide) => wide,
                    None => {
                        let wide = &mut buffer[..part.len()];
                        wide.iter_mut().zip(part).for_each(
                            #[inline(always)]
                            |(wide, value)| *wide = value.value(),
                        );
                        &*wide
                    }
                };
                let first = number * WIDENED / lanes;
                let (column, column_rest) = S::as_simd_f32s(wide);
                let blocks = column.chunks_exact(WAYS);
                let tail = blocks.remainder();
                for (block, values) in blocks.enumerate() {
                    for (sums, (row, _)) in sums.iter_mut().zip(&rows) {
                        let row = &row[first + block * WAYS..][..WAYS];
                        for way in 0..WAYS {
                            sums[way] = simd.mul_add_e_f32s(values[way], row[way], sums[way]);
                        }
                    }
                }
                let at = first + column.len() - tail.len();
                for ((sums, rest), (row, row_rest)) in sums.iter_mut().zip(&mut rests).zip(&rows) {
                    for (value, row) in tail.iter().zip(&row[at..]) {
                        sums[0] = simd.mul_add_e_f32s(*value, *row, sums[0]);
                    }
                    *rest += column_rest.iter().zip(*row_rest).map(|(b, a)| b * a).sum::<f32>();
                }
            }
            for (i, (sums, rest)) in sums.into_iter().zip(rests).enumerate() {
                let [a, b, c, d] = sums;
                let sum = simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d)));
                let value = &mut places.dst(i)[j];
                *value = places.factor * (sum + rest) + if places.accumulate { *value } else { 0.0 };
            }
        }
        M
    }
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
        let rows: [_; N] = std::array::from_fn(|step| S::as_simd_f32s(places.b(j + step, places.n)));
        for i in 0..M {
            let factors: [f32; N] = std::array::from_fn(|step| places.factor * places.a(i)[j + step]);
            let wide = factors.map(|factor| simd.splat_f32s(factor));
            let (sums, rest) = S::as_mut_simd_f32s(places.dst(i));
            for (at, sum) in sums.iter_mut().enumerate() {
                for ((row, _), factor) in rows.iter().zip(wide) {
                    *sum = simd.mul_add_e_f32s(row[at], factor, *sum);
                }
            }
            for (at, sum) in rest.iter_mut().enumerate() {
                for ((_, row), factor) in rows.iter().zip(factors) {
                    *sum += row[at] * factor;
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
}
