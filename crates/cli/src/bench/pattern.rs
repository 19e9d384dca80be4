//! The blocks of a block-sparse attention that are there.

use serde::{Deserialize, Serialize};

use super::layout::Layout;
use trifuse::error::Result;
use trifuse::ops::Attention;
use trifuse::ops::attention::Form;
use trifuse::ops::index::{BlockMap, BlockMask, BlockShape, HostIndex, MapShape};
use trifuse_testkit::cases::Draw;

/// A pattern of blocks, the same for all heads; the diagonal is always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// Queries and keys of a block.
    pub size: u32,
    /// One block in so many is there.
    pub one_in: u32,
    /// How many are there in all; drawn where not said.
    pub count: Option<u32>,
    /// How many of a hundred blocks are there; drawn where not said.
    pub percent: Option<u32>,
    /// How the blocks lie whose number is said.
    pub layout: Layout,
    /// Whether the device has a byte for each block of the square, and makes the lists itself in every run.
    pub map: bool,
}

impl Blocks {
    /// What the name of a shape says of it.
    pub(super) fn name(&self) -> String {
        let Self { size, one_in, count, percent, layout, map } = self;
        let from = if *map { " from a map" } else { "" };
        match (count, percent) {
            (Some(count), _) => format!("{count} blocks of {size}{from}"),
            (None, Some(percent)) => format!("{percent} % {} blocks of {size}", layout.name()) + from,
            (None, None) => format!("sparse{} block{size}{from}", 100 - 100 / one_in),
        }
    }
}

/// Blocks in compressed sparse rows.
#[derive(Clone, Debug, Serialize)]
pub struct Pattern {
    /// Queries and keys of a block.
    pub block: u32,
    /// Where the blocks of each row of blocks begin, and where the last ends.
    pub row_ptr: Vec<i32>,
    /// The column of each block.
    pub col_idx: Vec<i32>,
    /// The blocks as checked index data.
    #[serde(skip)]
    pub mask: BlockMask,
    /// The blocks as a map, where the device gets that.
    #[serde(skip)]
    pub map: Option<BlockMap>,
}

impl Pattern {
    /// Draws it for that many queries and keys.
    ///
    /// # Errors
    /// Sizes past what an index holds.
    pub(super) fn draw(blocks: Blocks, [queries, keys]: [u64; 2], draw: &mut Draw) -> Result<Self> {
        let [rows, columns] = [queries, keys].map(|length| length.div_ceil(u64::from(blocks.size)) as u32);
        let (mut row_ptr, mut col_idx) = (vec![0], Vec::new());
        let percent = |percent: u32| (u64::from(rows) * u64::from(columns) * u64::from(percent)).div_ceil(100) as u32;
        let listed = match blocks.count.or(blocks.percent.map(percent)) {
            Some(count) => blocks.layout.draw(count, [rows, columns], draw),
            None => {
                let mut there = |row, column| draw.below(blocks.one_in) == 0 || column == row % columns;
                (0..rows).map(|row| (0..columns).filter(|&column| there(row, column)).map(|column| column as i32).collect()).collect()
            }
        };
        for row in &listed {
            col_idx.extend(row);
            row_ptr.push(col_idx.len() as i32);
        }
        let shape = BlockShape { block: blocks.size, q_blocks: rows, kv_blocks: columns, patterns: 1, capacity: col_idx.len() as u32, masks: 0 };
        let mask = BlockMask::new(&row_ptr, &col_idx, &[], &[], shape)?;
        let map = || {
            let mut bytes = vec![0; (u64::from(rows) * u64::from(columns)) as usize];
            for (row, listed) in listed.iter().enumerate() {
                listed.iter().for_each(|&column| bytes[row * columns as usize + column as usize] = 1);
            }
            BlockMap::new(&bytes, MapShape { block: blocks.size, q_blocks: rows, kv_blocks: columns, patterns: 1 })
        };
        let map = blocks.map.then(map).transpose()?;
        Ok(Self { block: blocks.size, row_ptr, col_idx, mask, map })
    }
}

/// `op` over the blocks of a list or a map.
pub(super) fn sparse(op: Attention, pattern: Option<&Pattern>) -> Attention {
    match pattern {
        Some(Pattern { map: Some(map), .. }) => op.with_form(Form::BlockMap(map.shape())),
        Some(pattern) => op.with_form(Form::Blocks(pattern.mask.shape())),
        None => op,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_blocks_is_spread_over_the_rows() {
        for (count, length) in [(800, 8064), (1600, 11392), (63, 8064)] {
            let blocks = Blocks { size: 128, one_in: 5, count: Some(count), percent: None, layout: Layout::Random, map: true };
            let pattern = Pattern::draw(blocks, [length, length], &mut Draw::seeded("blocks")).unwrap();
            assert_eq!(pattern.col_idx.len(), count as usize);
            let map = pattern.map.as_ref().unwrap();
            let side = length as usize / 128;
            for (row, column) in (0..side).flat_map(|row| (0..side).map(move |column| (row, column))) {
                assert_eq!(map.block(0, row, column).is_some(), pattern.mask.row(0, row).any(|(listed, _)| listed == column), "{row} {column}");
            }
            let rows = pattern.row_ptr.windows(2).map(|pair| &pattern.col_idx[pair[0] as usize..pair[1] as usize]);
            let least = count as usize / (length as usize / 128);
            for (number, row) in rows.enumerate() {
                assert!([least, least + 1].contains(&row.len()), "{row:?}");
                assert!(row.windows(2).all(|pair| pair[0] < pair[1]) && row.contains(&(number as i32)), "{row:?}");
            }
        }
    }

    #[test]
    fn one_in_so_many_is_drawn_and_the_diagonal_is_there() {
        let blocks = Blocks { size: 128, one_in: 5, count: None, percent: None, layout: Layout::Random, map: false };
        let pattern = Pattern::draw(blocks, [8192, 8192], &mut Draw::seeded("blocks")).unwrap();
        assert!((700..1000).contains(&pattern.col_idx.len()), "{}", pattern.col_idx.len());
        assert!((0..64).all(|row| pattern.mask.row(0, row).any(|(column, _)| column == row)));
    }
}
