use std::borrow::Cow;

use super::HostIndex;
use crate::error::{Error, Result, ensure};

/// The present blocks of the score matrix, in compressed sparse rows.
///
/// Words: `row_ptr[patterns, q_blocks + 1]` (absolute places in the lists that follow), `col_idx[nnz]`, `kind[nnz]`
/// (−1 full, −2 causal, else the number of a bit mask), then the bit masks, each `[block, block / 32]` words:
/// bit `j % 32` of word `[i, j / 32]` says whether query `i` of the block sees key `j` of it. `nnz` and the number of
/// masks are capacities: unused entries are 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockMask {
    row_ptr: Vec<i32>,
    col_idx: Vec<i32>,
    kinds: Vec<i32>,
    bits: Vec<u32>,
    shape: BlockShape,
}

/// What the device's copy is sized and read by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockShape {
    /// Queries and keys of a block: 64 or 128.
    pub block: u32,
    /// Blocks along the queries: `q_len / block`, rounded up.
    pub q_blocks: u32,
    /// Blocks along the keys.
    pub kv_blocks: u32,
    /// The number of patterns: 1 (shared by all), `heads` (shared by the batch), or `batch · heads`.
    pub patterns: u32,
    /// The most blocks, of all patterns together.
    pub capacity: u32,
    /// The most bit masks.
    pub masks: u32,
}

/// What is seen inside a present block. A causal operation masks inside every block besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Every key.
    Full,
    /// Keys at or before the query's position, as the causal mask of the whole operation would say.
    Causal,
    /// The keys that the bit mask with this number lists.
    Bits(u32),
}

impl BlockKind {
    const fn word(self) -> i32 {
        match self {
            Self::Full => -1,
            Self::Causal => -2,
            Self::Bits(mask) => mask as i32,
        }
    }
}

impl BlockMask {
    /// A block mask from lists. `row_ptr[patterns, q_blocks + 1]` points into `col_idx`, whose columns rise strictly in each row. `kinds`
    /// has one entry a block, or is empty where all are full. `bits` holds the bit masks one after another.
    ///
    /// # Errors
    /// Lists that do not fit the shape or each other, columns that do not rise or do not exist, a bit mask that does not exist.
    pub fn new(row_ptr: &[i32], col_idx: &[i32], kinds: &[BlockKind], bits: &[u32], shape: BlockShape) -> Result<Self> {
        ensure(shape.block == 64 || shape.block == 128, "block", "64 or 128", shape.block)?;
        let rows = shape.q_blocks as usize + 1;
        ensure(row_ptr.len() == rows * shape.patterns as usize, "row_ptr", format_args!("{} patterns of {rows} numbers", shape.patterns), row_ptr.len())?;
        ensure(col_idx.len() <= shape.capacity as usize, "col_idx", format_args!("at most {} blocks", shape.capacity), col_idx.len())?;
        ensure(kinds.is_empty() || kinds.len() == col_idx.len(), "block kinds", format_args!("{} or none", col_idx.len()), kinds.len())?;
        let mask_words = Self::mask_words(&shape);
        ensure(
            bits.len().is_multiple_of(mask_words) && bits.len() / mask_words <= shape.masks as usize,
            "bit masks",
            format_args!("at most {} of {mask_words} words", shape.masks),
            format_args!("{} words", bits.len()),
        )?;
        for (pattern, ptr) in row_ptr.chunks_exact(rows).enumerate() {
            for (row, pair) in ptr.windows(2).enumerate() {
                let place = format!("row_ptr: pattern {pattern}, row {row}");
                let range = (pair[0] >= 0 && pair[0] <= pair[1] && pair[1] as usize <= col_idx.len()).then(|| pair[0] as usize..pair[1] as usize);
                let range =
                    range.ok_or_else(|| Error::invalid(&place, format!("a rising range inside 0..{}", col_idx.len()), format!("{}..{}", pair[0], pair[1])))?;
                let columns = &col_idx[range];
                if let Some(pair) = columns.windows(2).find(|pair| pair[0] >= pair[1]) {
                    return Err(Error::invalid(
                        format!("col_idx: pattern {pattern}, row {row}"),
                        "columns in strictly rising order",
                        format!("{} before {}", pair[0], pair[1]),
                    ));
                }
                if let Some(&column) = columns.iter().find(|&&c| c < 0 || c as u32 >= shape.kv_blocks) {
                    return Err(Error::invalid(format!("col_idx: pattern {pattern}, row {row}"), format!("columns below {}", shape.kv_blocks), column));
                }
            }
        }
        let masks = (bits.len() / mask_words) as u32;
        if let Some(mask) = kinds.iter().find(|kind| matches!(kind, BlockKind::Bits(m) if *m >= masks)) {
            return Err(Error::invalid("block kinds", format!("bit masks below {masks}"), format!("{mask:?}")));
        }
        let kinds = if kinds.is_empty() { vec![BlockKind::Full.word(); col_idx.len()] } else { kinds.iter().map(|kind| kind.word()).collect() };
        let mask = Self { row_ptr: row_ptr.to_vec(), col_idx: col_idx.to_vec(), kinds, bits: bits.to_vec(), shape };
        super::word("block mask", Self::capacity(&shape))?;
        Ok(mask)
    }

    /// Words of one bit mask.
    fn mask_words(shape: &BlockShape) -> usize {
        (shape.block * shape.block / 32) as usize
    }

    /// The blocks of a row, as `(column, kind)`.
    ///
    /// # Panics
    /// The pattern or the row does not exist.
    pub fn row(&self, pattern: usize, row: usize) -> impl Iterator<Item = (usize, BlockKind)> + '_ {
        let at = pattern * (self.shape.q_blocks as usize + 1) + row;
        (self.row_ptr[at] as usize..self.row_ptr[at + 1] as usize).map(|place| {
            let kind = match self.kinds[place] {
                -1 => BlockKind::Full,
                -2 => BlockKind::Causal,
                mask => BlockKind::Bits(mask as u32),
            };
            (self.col_idx[place] as usize, kind)
        })
    }

    /// Whether bit mask `mask` lets query `i` of the block see key `j` of it.
    ///
    /// # Panics
    /// The mask does not exist, or the place lies outside its block.
    pub fn sees(&self, mask: u32, i: usize, j: usize) -> bool {
        let word = mask as usize * Self::mask_words(&self.shape) + i * (self.shape.block as usize / 32) + j / 32;
        self.bits[word] >> (j % 32) & 1 == 1
    }

    /// The number of present blocks, of all patterns together.
    pub fn nnz(&self) -> usize {
        self.col_idx.len()
    }
}

impl HostIndex for BlockMask {
    const NAME: &'static str = "block mask";
    type Shape = BlockShape;

    fn shape(&self) -> BlockShape {
        self.shape
    }

    fn words(&self) -> Cow<'_, [i32]> {
        let capacity = self.shape.capacity as usize;
        let padded = |list: &[i32]| list.iter().copied().chain(std::iter::repeat(0)).take(capacity).collect::<Vec<_>>();
        let mut words = self.row_ptr.clone();
        words.extend(padded(&self.col_idx));
        words.extend(padded(&self.kinds));
        words.extend(self.bits.iter().map(|&word| word as i32));
        words.resize(Self::capacity(&self.shape) as usize, 0);
        words.into()
    }

    fn capacity(shape: &BlockShape) -> u64 {
        let rows = u64::from(shape.patterns) * (u64::from(shape.q_blocks) + 1);
        rows + 2 * u64::from(shape.capacity) + u64::from(shape.masks) * u64::from(shape.block) * u64::from(shape.block) / 32
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SHAPE: BlockShape = BlockShape { block: 64, q_blocks: 2, kv_blocks: 3, patterns: 1, capacity: 4, masks: 1 };

    #[test]
    fn a_legal_mask_is_laid_out_as_documented() {
        let mut bits = vec![0; 128];
        bits[1] = 1;
        let mask = BlockMask::new(&[0, 2, 3], &[0, 2, 1], &[BlockKind::Full, BlockKind::Bits(0), BlockKind::Causal], &bits, SHAPE).unwrap();
        assert_eq!(mask.row(0, 0).collect::<Vec<_>>(), [(0, BlockKind::Full), (2, BlockKind::Bits(0))]);
        assert!(mask.sees(0, 0, 32) && !mask.sees(0, 0, 33));
        let words = mask.words();
        assert_eq!(words[..11], [0, 2, 3, 0, 2, 1, 0, -1, 0, -2, 0]);
        assert_eq!(words.len() as u64, BlockMask::capacity(&SHAPE));
    }

    #[test]
    fn unsorted_duplicate_and_outlying_columns_are_refused() {
        for columns in [[2, 0, 1], [1, 1, 0], [0, 3, 1], [-1, 0, 1]] {
            assert!(BlockMask::new(&[0, 2, 3], &columns, &[], &[], SHAPE).is_err(), "{columns:?}");
        }
        assert!(BlockMask::new(&[0, 2, 4], &[0, 1, 2], &[], &[], SHAPE).is_err());
        assert!(BlockMask::new(&[0, 2, 1], &[0, 1, 2], &[], &[], SHAPE).is_err());
        assert!(BlockMask::new(&[0, 1, 1], &[0], &[BlockKind::Bits(0)], &[], SHAPE).is_err());
    }
}
