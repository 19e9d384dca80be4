//! Classes of batches. Sizes are rounded up, so that batches of similar size share plans, buffers and a captured graph.

use crate::error::{Error, Result, ensure};
use crate::ops::index::{Varlen, VarlenShape};

/// The fewest rows of a batch. With 128 or fewer, `cuda` chooses kernels that stream the weights once and sum in another order. With fewer
/// than 256 it chooses kernels that round the adapters' part before they add it; see the module's text. From 256 on it splits no K of up to
/// 1,024 outputs, and none below 4,096; an encoder has no other products.
pub const MIN_ROWS: usize = 256;
/// The step of rows and of lengths. It is a row tile of every backend that works on a part of one.
const ROW_STEP: usize = 64;
/// The fewest sequences of a batch.
const MIN_SEQUENCES: usize = 8;

/// The sizes of a batch. Past its own sentences it has rows that nobody reads, in sequences at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows: tokens of all sequences.
    pub rows: usize,
    /// Sequences.
    pub sequences: usize,
    /// The length of the longest sequence.
    pub longest: usize,
}

/// `count` rounded up to a multiple of an eighth of its leading power of two, or of `step` where that is more. That is an eighth more at
/// most, and eight classes from one power of two to the next.
fn rounded(count: usize, step: usize) -> usize {
    let eighth = (count.max(1).next_power_of_two() / 16).max(step);
    count.next_multiple_of(eighth)
}

impl Shape {
    /// The class of a batch of sentences of these lengths.
    pub fn of(lengths: &[usize]) -> Self {
        let longest = lengths.iter().copied().max().unwrap_or(0).max(1).next_multiple_of(ROW_STEP);
        let tokens: usize = lengths.iter().sum();
        let rows = rounded(tokens.max(MIN_ROWS), ROW_STEP);
        // The spare rows are sequences too, none longer than the longest.
        let sequences = rounded(lengths.len() + (rows - tokens).div_ceil(longest), MIN_SEQUENCES);
        Self { rows, sequences, longest }
    }

    /// Where each sequence starts.
    ///
    /// # Errors
    /// Lengths that are not of this class; more rows than an index counts.
    pub fn places(&self, lengths: &[usize]) -> Result<Varlen> {
        ensure(Self::of(lengths) == *self, "batch", format_args!("lengths of {self:?}"), format_args!("{:?}", Self::of(lengths)))?;
        let mut starts = Vec::with_capacity(self.sequences + 1);
        let mut at = 0usize;
        starts.push(0);
        for sequence in 0..self.sequences {
            at += lengths.get(sequence).copied().unwrap_or((self.rows - at).min(self.longest));
            starts.push(i32::try_from(at).map_err(|_| Error::invalid("batch", "fewer than 2^31 tokens", at))?);
        }
        Varlen::new(&starts, &starts, self.longest as u64, self.longest as u64)
    }

    /// The lengths of this class in an operation's terms.
    pub fn varlen(&self) -> VarlenShape {
        let (rows, longest) = (self.rows as u64, self.longest as u64);
        VarlenShape { batch: self.sequences as u64, total_q: rows, total_kv: rows, max_q: longest, max_kv: longest }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ops::index::HostIndex;

    #[test]
    fn every_batch_fits_its_class_and_little_more() {
        let draw = |count: usize, most: usize| (0..count).map(|i| 2 + (i * 7919 + 13) % (most - 1)).collect::<Vec<_>>();
        for (count, most) in [(1, 3), (1, 128), (2, 17), (7, 100), (32, 128), (63, 40), (256, 100), (1024, 128), (1000, 2)] {
            let lengths = draw(count, most);
            let shape = Shape::of(&lengths);
            let places = shape.places(&lengths).unwrap();
            assert_eq!(places.shape(), shape.varlen());
            let tokens: usize = lengths.iter().sum();
            assert!(shape.rows >= tokens && shape.rows * 8 <= tokens * 9 + 8 * MIN_ROWS, "{count} × {most}: {shape:?} for {tokens}");
            assert!(shape.rows.is_multiple_of(ROW_STEP) && shape.rows >= MIN_ROWS);
            assert_eq!(places.cu_q()[..3], [0, lengths[0] as i32, lengths.get(1).map_or(places.cu_q()[2], |second| (lengths[0] + second) as i32)]);
        }
        assert_eq!(Shape::of(&[128; 1024]), Shape { rows: 131_072, sequences: 1024, longest: 128 });
        assert!(Shape::of(&[5]).places(&[200]).is_err());
    }
}
