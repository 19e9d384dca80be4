//! Products of a tile in f32: streamed for a few rows, else by the `gemm` crate.

use super::element::Element;
use super::few_rows::{self, FEW_ROWS};
use super::view::View;

/// Elements of K that are widened at a time. A tile of them stays in L2.
const DEPTH: usize = 512;
/// Rows of w that are streamed as few rows of x are. The `gemm` crate sums along K in another order where an output has 256 elements or fewer: with
/// so few rows of w that would depend on how many rows of x there are.
const NARROW: usize = 256 / (FEW_ROWS + 1);

/// Rows of an operand, `stride` elements from row to row, the first at `start`.
pub struct Rows<T> {
    pub view: View<T>,
    pub start: usize,
    pub stride: usize,
}

impl<T> Clone for Rows<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Rows<T> {}

impl<T: Element> Rows<T> {
    /// The operand from row `row` and column `column` on.
    pub fn from(self, row: usize, column: usize) -> Self {
        Self { start: self.start + row * self.stride + column, ..self }
    }

    /// `len` elements of row `row`.
    ///
    /// # Safety
    /// The contract of [`View::read`].
    pub unsafe fn row<'a>(self, row: usize, len: usize) -> &'a [T] {
        // SAFETY: as this function's contract.
        unsafe { self.view.read(self.start + row * self.stride, len) }
    }

    /// `len` elements of row `row`, to write.
    ///
    /// # Safety
    /// The contract of [`View::write`].
    pub unsafe fn row_mut<'a>(self, row: usize, len: usize) -> &'a mut [T] {
        // SAFETY: as this function's contract.
        unsafe { self.view.write(self.start + row * self.stride, len) }
    }

    /// Widens the first `rows × columns` elements into `dst`, packed.
    ///
    /// # Safety
    /// The contract of [`View::read`].
    unsafe fn widen(self, rows: usize, columns: usize, dst: &mut [f32]) {
        for (row, dst) in dst.chunks_exact_mut(columns).take(rows).enumerate() {
            // SAFETY: as this function's contract.
            T::widen(unsafe { self.row(row, columns) }, dst);
        }
    }
}

/// How much scratch memory [`tile`] needs for `m` rows of x and `n` rows of w, of `k` elements.
pub const fn scratch_len(m: usize, n: usize, k: usize) -> usize {
    if m <= FEW_ROWS {
        return m * k;
    }
    let (panels, few) = ((m + n) * if k < DEPTH { k } else { DEPTH }, FEW_ROWS * k);
    if panels > few { panels } else { few }
}

/// Computes `out[i, j] = Σ_k x[i, k] · w[j, k]`, `out` packed `[m, n]`.
///
/// # Safety
/// `x` has `m` rows and `w` has `n`, of `k` elements, inside their views and written by nobody meanwhile.
pub unsafe fn tile<X: Element, W: Element>(x: Rows<X>, w: Rows<W>, [m, n, k]: [usize; 3], out: &mut [f32], scratch: &mut [f32]) {
    debug_assert!(out.len() == m * n && scratch.len() >= scratch_len(m, n, k));
    if m == 0 || n == 0 {
        return;
    }
    if m <= FEW_ROWS || n <= NARROW {
        for first in (0..m).step_by(FEW_ROWS) {
            let some = FEW_ROWS.min(m - first);
            let (wide, out) = (&mut scratch[..some * k], &mut out[first * n..][..some * n]);
            // SAFETY: as this function's contract; one row inside the view stands for all.
            unsafe {
                let x = panel(x.from(first, 0), some, k, wide);
                few_rows::dots([some, n, k], (out.as_mut_ptr(), n), false, x, (w.row(0, k).as_ptr(), w.stride), 1.0);
            }
        }
        return;
    }
    // Panels have a fixed depth also where both operands are f32 already. The library would cut K by the size of the tile, so the order of
    // a row's sums would depend on how many rows there are.
    let (x_wide, w_wide) = scratch.split_at_mut(m * k.min(DEPTH));
    for at in (0..k).step_by(DEPTH) {
        let depth = DEPTH.min(k - at);
        // SAFETY: as this function's contract; the panels are packed, `depth` a row.
        unsafe {
            let x_panel = panel(x.from(0, at), m, depth, x_wide);
            let w_panel = panel(w.from(0, at), n, depth, w_wide);
            multiply([m, n, depth], out, at > 0, x_panel, w_panel);
        }
    }
}

/// The first `rows × columns` elements as f32, and the distance between rows. f32 stays in place.
///
/// # Safety
/// The contract of [`View::read`].
unsafe fn panel<T: Element>(rows: Rows<T>, count: usize, columns: usize, scratch: &mut [f32]) -> (*const f32, usize) {
    // SAFETY: as this function's contract.
    if let Some(first) = T::as_f32(unsafe { rows.row(0, columns) }) {
        return (first.as_ptr(), rows.stride);
    }
    // SAFETY: as this function's contract.
    unsafe { rows.widen(count, columns, scratch) };
    (scratch.as_ptr(), columns)
}

/// Computes `out = X·Wᵀ`, or `out += X·Wᵀ`, `out` packed.
///
/// # Safety
/// `x` points to `m` rows and `w` to `n`, of `k` elements, the given number of elements apart.
unsafe fn multiply([m, n, k]: [usize; 3], out: &mut [f32], accumulate: bool, x: (*const f32, usize), w: (*const f32, usize)) {
    // SAFETY: as this function's contract; `out` holds m · n elements.
    unsafe { gemm([m, n, k], out.as_mut_ptr(), [n, 1], accumulate, (x.0, [x.1, 1]), (w.0, [1, w.1]), 1.0) };
}

/// Computes `dst (+)= factor · A·B`, `A [m, k]`, `B [k, n]`; strides are `[row, column]`. It runs on this thread alone, so that the order
/// of the sums depends on the shape and nothing else.
///
/// # Safety
/// The pointers are to matrices of those shapes and strides, `dst` written by nobody else.
pub unsafe fn gemm(
    [m, n, k]: [usize; 3],
    dst: *mut f32,
    dst_strides: [usize; 2],
    accumulate: bool,
    (a, a_strides): (*const f32, [usize; 2]),
    (b, b_strides): (*const f32, [usize; 2]),
    factor: f32,
) {
    if m <= FEW_ROWS && dst_strides[1] == 1 && a_strides[1] == 1 && b_strides.contains(&1) {
        // SAFETY: as this function's contract.
        unsafe { few_rows::product([m, n, k], (dst, dst_strides[0]), accumulate, (a, a_strides[0]), (b, b_strides), factor) };
        return;
    }
    let [d, l, r] = [dst_strides, a_strides, b_strides].map(|strides| strides.map(|stride| stride as isize));
    // SAFETY: as this function's contract.
    unsafe {
        gemm::gemm(m, n, k, dst, d[1], d[0], accumulate, a, l[1], l[0], b, r[1], r[0], 1.0, factor, false, false, false, gemm::Parallelism::None);
    }
}

/// How an output of `rows × columns` is cut. Shape alone decides. There are enough pieces for many threads, and each is large enough to
/// pay.
#[derive(Clone, Copy, Debug)]
pub struct Tiling {
    rows: usize,
    columns: usize,
    tile_rows: usize,
    tile_columns: usize,
}

impl Tiling {
    /// The tiling of an output of `rows × columns`.
    pub fn new(rows: usize, columns: usize) -> Self {
        let with = |tile_rows: usize, tile_columns: usize| Self { rows, columns, tile_rows: tile_rows.min(rows.max(1)), tile_columns };
        if rows <= FEW_ROWS {
            // Streamed columns need no width, and threads that are done at different times wait for the last piece.
            return with(FEW_ROWS, (columns / 64).next_multiple_of(32).clamp(32, 64));
        }
        let sizes = [(256, 256), (128, 256), (128, 128), (64, 64)].map(|(rows, columns)| with(rows, columns));
        sizes.into_iter().find(|tiling| tiling.count() >= 64).unwrap_or(sizes[3])
    }

    /// The tiling of an output of `rows × columns` into tiles of whole rows.
    pub fn whole_rows(rows: usize, columns: usize) -> Self {
        let tile_rows = if rows <= FEW_ROWS { FEW_ROWS } else { 64 };
        Self { rows, columns, tile_rows: tile_rows.min(rows.max(1)), tile_columns: columns }
    }

    /// The number of tiles.
    pub fn count(&self) -> usize {
        self.rows.div_ceil(self.tile_rows) * self.columns.div_ceil(self.tile_columns)
    }

    /// The rows and columns of a tile. Neighbouring tiles share their columns, and so their weights.
    pub fn get(&self, tile: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let down = self.rows.div_ceil(self.tile_rows);
        let (row, column) = (tile % down * self.tile_rows, tile / down * self.tile_columns);
        (row..(row + self.tile_rows).min(self.rows), column..(column + self.tile_columns).min(self.columns))
    }

    /// How much scratch memory [`tile`] needs for the largest tile, `k` deep.
    pub fn scratch_len(&self, k: usize) -> usize {
        scratch_len(self.tile_rows, self.tile_columns, k).max(scratch_len(FEW_ROWS, self.tile_columns, k))
    }
}
