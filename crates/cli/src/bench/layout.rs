//! How the blocks of a sparse pattern lie.

use serde::{Deserialize, Serialize};

use trifuse_testkit::cases::Draw;

/// Where the blocks of a row stand, and how many it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Anywhere, as many in each row as in the next, but for one.
    Random,
    /// Side by side around the diagonal: a window.
    Banded,
    /// In squares of four rows and columns of blocks: neighbouring rows list the same columns.
    Clustered,
    /// Anywhere, but the n-th longest row has an n-th of the longest: a few rows have most of the blocks.
    PowerLaw,
}

/// Rows and columns of a square of [`Layout::Clustered`].
const SIDE: u32 = 4;

impl Layout {
    /// Name of the layout, as names of shapes have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Banded => "banded",
            Self::Clustered => "clustered",
            Self::PowerLaw => "power-law",
        }
    }

    /// The columns of each of `rows`, rising, the diagonal's among them: `count` in all, as nearly as the layout allows.
    pub(super) fn draw(self, count: u32, [rows, columns]: [u32; 2], draw: &mut Draw) -> Vec<Vec<i32>> {
        let own = |row: u32| row % columns;
        let even = |row: u32| share(count, row, rows);
        match self {
            Self::Random => (0..rows).map(|row| some_columns(even(row), own(row), columns, draw)).collect(),
            Self::Banded => (0..rows)
                .map(|row| {
                    let width = even(row).clamp(1, columns);
                    let first = own(row).saturating_sub(width / 2).min(columns - width);
                    (first..first + width).map(|column| column as i32).collect()
                })
                .collect(),
            Self::Clustered => {
                let (bands, across) = (rows.div_ceil(SIDE), columns.div_ceil(SIDE));
                let squares = (count + SIDE * SIDE / 2) / (SIDE * SIDE);
                let expand = |square: i32| (square * SIDE as i32..(square + 1) * SIDE as i32).filter(|&column| column < columns as i32);
                let listed: Vec<Vec<i32>> = (0..bands)
                    .map(|band| some_columns(share(squares, band, bands), band % across, across, draw).into_iter().flat_map(expand).collect())
                    .collect();
                (0..rows as usize).map(|row| listed[row / SIDE as usize].clone()).collect()
            }
            Self::PowerLaw => {
                let lengths = power_law(count, rows, columns);
                let mut order: Vec<u32> = (0..rows).collect();
                for last in (1..rows).rev() {
                    order.swap(last as usize, draw.below(last + 1) as usize);
                }
                (0..rows).map(|row| some_columns(lengths[order[row as usize] as usize], own(row), columns, draw)).collect()
            }
        }
    }
}

/// How many of `count` things spread over `rows` are in `row`.
fn share(count: u32, row: u32, rows: u32) -> u32 {
    let until = |row: u32| (u64::from(count) * u64::from(row) / u64::from(rows)) as u32;
    until(row + 1) - until(row)
}

/// `count` different columns, rising, `own` among them; each of the others is as likely as the next.
fn some_columns(count: u32, own: u32, columns: u32, draw: &mut Draw) -> Vec<i32> {
    let mut wanted = count.min(columns).saturating_sub(1);
    let mut chosen = Vec::new();
    // Selection sampling (Knuth, The Art of Computer Programming, volume 2, algorithm S).
    let mut left = columns - 1;
    for column in 0..columns {
        if column == own {
            chosen.push(column as i32);
            continue;
        }
        if draw.below(left) < wanted {
            chosen.push(column as i32);
            wanted -= 1;
        }
        left -= 1;
    }
    chosen
}

/// Lengths of rows, the longest first, that fall as 1 / n and add up to `count`, nearly: none has more than `columns`, each has one.
fn power_law(count: u32, rows: u32, columns: u32) -> Vec<u32> {
    let lengths = |longest: f64| (1..=rows).map(move |n| ((longest / f64::from(n)).round() as u32).clamp(1, columns));
    let (mut low, mut high) = (0.0, f64::from(columns) * f64::from(rows));
    for _ in 0..64 {
        let middle = (low + high) / 2.0;
        if lengths(middle).sum::<u32>() < count { low = middle } else { high = middle }
    }
    lengths(high).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Layout; 4] = [Layout::Random, Layout::Banded, Layout::Clustered, Layout::PowerLaw];

    #[test]
    fn every_layout_has_about_as_many_blocks_and_the_diagonal() {
        for layout in ALL {
            for percent in [5, 20, 50, 100] {
                let count = 64 * 64 * percent / 100;
                let rows = layout.draw(count, [64, 64], &mut Draw::seeded("layout"));
                assert_eq!(rows.len(), 64);
                for (number, row) in rows.iter().enumerate() {
                    assert!(row.windows(2).all(|pair| pair[0] < pair[1]) && row.iter().all(|&column| (0..64).contains(&column)), "{row:?}");
                    assert!(row.contains(&(number as i32)), "{layout:?}: row {number} is {row:?}");
                }
                let total: usize = rows.iter().map(Vec::len).sum();
                let off = (total as f64 - f64::from(count)).abs() / f64::from(count);
                assert!(off < 0.26, "{layout:?} {percent} %: {total} of {count}");
            }
        }
    }

    #[test]
    fn layouts_differ_in_what_they_are_named_for() {
        let rows = |layout: Layout| layout.draw(820, [64, 64], &mut Draw::seeded("layout"));
        let longest = |layout| rows(layout).iter().map(Vec::len).max();
        assert_eq!((longest(Layout::Random), longest(Layout::Banded), longest(Layout::PowerLaw)), (Some(13), Some(13), Some(64)));
        assert!(rows(Layout::Banded).iter().all(|row| row.windows(2).all(|pair| pair[1] == pair[0] + 1)));
        assert!(rows(Layout::Clustered).chunks(SIDE as usize).all(|same| same.iter().all(|row| *row == same[0])));
    }
}
