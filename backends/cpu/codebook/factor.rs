//! One factor of the adapters: dense bases, or codes that are widened a tile at a time.

use std::ops::Range;

use crate::backends::cpu::Cpu;
use crate::backends::cpu::element::Element;
use crate::backends::cpu::view::View;
use crate::error::{Error, Result};
use crate::ops::codebook_gemm::{self as op, FactorArgs};
use crate::ops::codes::{CODEBOOK_LEN, CodeWidth};
use crate::ops::index::CodesShape;

/// Every 32nd field of a column starts on a word boundary. Tiles of codes start at a multiple of this.
pub const FIELDS: usize = 32;

/// A factor of `d` elements a column.
pub enum Factor<'a, T> {
    Dense { values: View<T>, basis_of: Option<&'a [i32]>, d: usize, rank: usize },
    Coded { shape: CodesShape, words: &'a [u32], codebooks: &'a [f32] },
}

impl<'a, T: Element> Factor<'a, T> {
    /// The factor that `args` give. All of `basis_of` is checked, since its words become addresses.
    ///
    /// # Safety
    /// [`crate::ops::check`] accepted the operands, and they are held.
    pub unsafe fn new(args: &FactorArgs<Cpu>, factor: op::Factor, adapters: u32, d: u64, rank: u64) -> Result<Self> {
        match (args, factor) {
            (FactorArgs::Dense { values, basis_of }, op::Factor::Dense { bases }) => {
                // SAFETY: as this function's contract.
                let basis_of = basis_of.as_ref().map(|index| unsafe { View::<i32>::new(index.slice()).read(0, adapters as usize) });
                if basis_of.is_some_and(|basis_of| basis_of.iter().any(|&basis| basis < 0 || basis as u32 >= bases)) {
                    return Err(Error::invalid("basis_of", format!("numbers below {bases}"), "others (was its memory written to?)"));
                }
                Ok(Self::Dense { values: View::new(values), basis_of, d: d as usize, rank: rank as usize })
            }
            (FactorArgs::Coded { codes, codebooks }, _) => {
                // SAFETY: as this function's contract.
                let (words, codebooks) = unsafe { (View::new(codes.slice()).all(), View::new(codebooks).all()) };
                Ok(Self::Coded { shape: *codes.shape(), words, codebooks })
            }
            (FactorArgs::Dense { .. }, op::Factor::Coded { .. }) => Err(Error::invalid("codebook_gemm: factor", "codes", "dense values")),
        }
    }

    /// The number by which an adapter's values are found: its basis, or its own number.
    pub fn key(&self, adapter: usize) -> usize {
        match self {
            Self::Dense { basis_of, .. } => basis_of.map_or(0, |basis_of| basis_of[adapter] as usize),
            Self::Coded { .. } => adapter,
        }
    }

    /// The values of `elements × columns`, and their strides `[element, column]`. They are in place, or widened into `scratch`. Codes start
    /// at a multiple of [`FIELDS`].
    ///
    /// # Safety
    /// The contract of [`new`](Self::new); the ranges lie inside the factor.
    pub unsafe fn tile(&self, key: usize, elements: Range<usize>, columns: Range<usize>, scratch: &mut [f32]) -> (*const f32, [usize; 2]) {
        match self {
            Self::Dense { values, d, rank, .. } => {
                let start = (key * d + elements.start) * rank + columns.start;
                // SAFETY: as this function's contract.
                let row = |e: usize| unsafe { values.read(start + e * rank, columns.len()) };
                if let Some(first) = T::as_f32(row(0)) {
                    return (first.as_ptr(), [*rank, 1]);
                }
                for (e, wide) in scratch.chunks_exact_mut(columns.len()).take(elements.len()).enumerate() {
                    T::widen(row(e), wide);
                }
                (scratch.as_ptr(), [columns.len(), 1])
            }
            Self::Coded { shape, words, codebooks } => {
                let region = shape.words_per_adapter as usize;
                let region = words.get(key * region..(key + 1) * region).unwrap_or_default();
                let codebook = codebooks.get(key * CODEBOOK_LEN..(key + 1) * CODEBOOK_LEN).unwrap_or_default();
                let mut table = Table::new(codebook);
                for (j, wide) in columns.zip(scratch.chunks_exact_mut(elements.len())) {
                    let (width, column) = shape.column(region, j).unwrap_or((CodeWidth::Zero, &[]));
                    table.widen(width, column, elements.start, wide);
                }
                (scratch.as_ptr(), [1, elements.len()])
            }
        }
    }
}

/// The sums of centroids that the fields of one width stand for.
struct Table<'a> {
    codebook: &'a [f32],
    width: CodeWidth,
    /// The sums, by `i1 | i2 << 4`.
    sums: [f32; 128],
}

impl<'a> Table<'a> {
    fn new(codebook: &'a [f32]) -> Self {
        Self { codebook, width: CodeWidth::Zero, sums: [0.0; 128] }
    }

    /// Widens the fields of a column from element `first`, a multiple of [`FIELDS`], on.
    fn widen(&mut self, width: CodeWidth, column: &[u32], first: usize, out: &mut [f32]) {
        if self.width != width {
            let stage = |range: Range<usize>| self.codebook.get(range).unwrap_or_default();
            let (stage1, stage2) = (stage(width.stage1()), stage(width.stage2()));
            let at = |stage: &[f32], index: usize| stage.get(index).copied().unwrap_or(0.0);
            self.sums = std::array::from_fn(|index| at(stage1, index & 15) + at(stage2, index >> 4));
            self.width = width;
        }
        let bits = width.bits() as usize;
        let words = column.get(first / FIELDS * bits..).unwrap_or_default();
        match width {
            CodeWidth::Zero => out.fill(0.0),
            CodeWidth::Two => self.fields::<2>(words, out),
            CodeWidth::Three => self.fields::<3>(words, out),
            CodeWidth::Four => self.fields::<4>(words, out),
            CodeWidth::FourThree => self.fields::<7>(words, out),
            CodeWidth::Bytes => self.fields::<16>(words, out),
        }
    }

    fn fields<const BITS: usize>(&self, words: &[u32], out: &mut [f32]) {
        for (words, out) in words.chunks_exact(BITS).zip(out.chunks_mut(FIELDS)) {
            let mut wide = [0.0; FIELDS];
            for (e, wide) in wide.iter_mut().enumerate() {
                let (word, shift) = (e * BITS / 32, e * BITS % 32);
                let high = if shift + BITS > 32 { u64::from(words[word + 1]) << 32 } else { 0 };
                let field = ((high | u64::from(words[word])) >> shift) as usize & ((1 << BITS) - 1);
                // A byte a stage leaves a gap between the indices, which this closes.
                let index = if BITS == 16 { field & 15 | field >> 4 & 0x70 } else { field };
                *wide = self.sums[index & 127];
            }
            out.copy_from_slice(&wide[..out.len()]);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ops::codes::{decode_column, pack};

    #[test]
    fn tiles_of_every_width_are_what_the_plain_reader_gives() {
        let codebook: Vec<f32> = (0..CODEBOOK_LEN).map(|i| 1.5 + i as f32 * i as f32).collect();
        let d = 77;
        for width in CodeWidth::ALL {
            let indices = |range: Range<usize>, step: usize| (0..d).map(|e| (e * step % range.len().max(1)) as u8).collect::<Vec<_>>();
            let column = pack(width, &indices(width.stage1(), 5), &indices(width.stage2(), 3)).unwrap();
            let mut want = vec![0.0; d];
            decode_column(width, &column, &codebook, &mut want);
            for (first, last) in [(0, 77), (32, 64), (64, 77)] {
                let mut got = vec![f32::NAN; last - first];
                Table::new(&codebook).widen(width, &column, first, &mut got);
                assert_eq!(got, want[first..last], "{width:?} {first}..{last}");
            }
        }
    }
}
