//! What a pass is planned for: rows, sequences, and pages of keys and values.

use crate::error::{Error, Result};
use crate::ops::index::{PageShape, RaggedShape};

/// What a pass is planned for. The same plans serve every pass of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows: tokens to compute, and spare ones.
    pub rows: usize,
    /// Sequences that the rows belong to, and spare ones.
    pub sequences: usize,
    /// How the rows are spread over the sequences.
    pub queries: Queries,
    /// The most pages of a sequence.
    pub pages: usize,
    /// Whether a row has the same bits in every shape: see [`Linear::batch_invariant`](crate::ops::Linear).
    pub batch_invariant: bool,
    /// The most different pages of all sequences together, where they are gathered; else 0.
    pub gathered: usize,
}

impl Shape {
    /// Whether each sequence has one row.
    pub fn one_each(&self) -> bool {
        match self.queries {
            Queries::Even => self.rows == self.sequences,
            Queries::Ragged { most } => most == 1,
        }
    }

    /// Whether passes of another shape may be passes of this one, with more spare rows, sequences and pages, and attention of the same form.
    pub fn holds(&self, other: &Self) -> bool {
        let alike = match (self.queries, other.queries) {
            (Queries::Even, Queries::Even) => self.one_each() && other.one_each(),
            (Queries::Ragged { most }, Queries::Ragged { most: least }) => (most == 1) == (least == 1) && most >= least,
            _ => false,
        };
        let room = |shape: &Self| [shape.rows, shape.sequences, shape.pages, shape.gathered];
        let wide = room(self).iter().zip(room(other)).all(|(own, other)| *own >= other);
        alike && wide && self.batch_invariant == other.batch_invariant
    }
}

/// How rows are spread over sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queries {
    /// As many in each.
    Even,
    /// Numbers of their own, `most` at most.
    Ragged { most: usize },
}

/// The size of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolShape {
    /// Tokens of a page.
    pub page: u32,
    /// Pages of the pool.
    pub pages: u32,
    /// Whether pages of latents hold what adapters' bases give as well, where the padding carries them.
    pub filled: bool,
}

impl PoolShape {
    /// Tokens of the pool.
    ///
    /// # Errors
    /// More than 2^31 of them.
    pub fn tokens(&self) -> Result<u32> {
        let all = u64::from(self.page) * u64::from(self.pages);
        u32::try_from(all).ok().filter(|&all| i32::try_from(all).is_ok()).ok_or_else(|| Error::invalid("pool", "fewer than 2^31 tokens", all))
    }

    /// The page table of a shape whose sequences have as many rows each.
    pub fn even(&self, shape: &Shape) -> PageShape {
        PageShape { batch: shape.sequences as u64, pages: shape.pages as u64, page: self.page.into(), pool_pages: self.pages.into() }
    }

    /// The page table of a shape whose sequences have `most` rows at most.
    pub fn ragged(&self, shape: &Shape, most: usize) -> RaggedShape {
        let (batch, rows, pages) = (shape.sequences as u64, shape.rows as u64, shape.pages as u64);
        RaggedShape { batch, total_q: rows, max_q: most as u64, pages, page: self.page.into(), pool_pages: self.pages.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wider_shape_of_the_same_form_holds_another() {
        let shape = |rows, sequences, queries| Shape { rows, sequences, queries, pages: 4, gathered: 0, batch_invariant: false };
        let ragged = |rows, sequences| shape(rows, sequences, Queries::Ragged { most: rows });
        let even = |rows| shape(rows, rows, Queries::Even);
        assert!(ragged(64, 16).holds(&ragged(48, 16)) && even(12).holds(&even(8)) && even(8).holds(&even(8)));
        assert!(!ragged(64, 16).holds(&ragged(48, 24)) && !even(8).holds(&even(12)));
        // Forms differ: a row each against several, and one invariant against one that is not.
        assert!(!ragged(64, 64).holds(&even(8)) && !even(64).holds(&ragged(8, 8)));
        assert!(!ragged(64, 64).holds(&shape(8, 8, Queries::Ragged { most: 1 })));
        assert!(!even(64).holds(&Shape { batch_invariant: true, ..even(8) }) && !even(64).holds(&Shape { pages: 5, ..even(8) }));
        assert!(!shape(8, 1, Queries::Even).one_each() && shape(8, 8, Queries::Ragged { most: 1 }).one_each());
    }
}
