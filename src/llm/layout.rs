//! The rows of a pass as the device takes them: ids, positions, slots, and the pages of their sequences.

use std::collections::HashMap;

use super::shape::{PoolShape, Queries, Shape};
use super::step::{Step, Token};
use crate::backend::Backend;
use crate::error::{Error, Result, ensure};
use crate::ops::attention::AttentionIndex;
use crate::ops::index::{PageTable, RaggedPages, TokenAdapters};
use crate::session::Session;

/// The rows of a pass. Spare rows are token 0 of no sequence: their keys and values go nowhere.
#[derive(Clone, Debug)]
pub struct Layout {
    ids: Vec<i32>,
    /// Rows whose ids lie on the device alone, in their order: the row, and the place of its id among those that were drawn last.
    drawn: Vec<(usize, usize)>,
    pub(super) positions: Vec<i32>,
    pub(super) slots: Vec<i32>,
    /// Where the rows of each sequence begin, and where the last ones end.
    starts: Vec<i32>,
    /// Keys of each sequence, those of its rows included.
    keys: Vec<i32>,
    /// The pages of each sequence, `[sequences, pages]`.
    table: Vec<i32>,
}

/// The pages that a pass gathers, each once.
#[derive(Clone, Debug)]
pub struct Gathered {
    pages: Vec<i32>,
    /// Positions of the keys of those pages.
    pub positions: Vec<i32>,
    /// The first sequence that has each page.
    pub sequences: Vec<usize>,
}

impl Gathered {
    /// The pages, checked; −1 stands for none.
    ///
    /// # Errors
    /// Pages that the pool does not have.
    pub fn pages(&self, pools: PoolShape) -> Result<TokenAdapters> {
        TokenAdapters::rows(&self.pages, pools.pages)
    }
}

/// A number as an index on the device has it.
fn word(number: usize) -> Result<i32> {
    i32::try_from(number).map_err(|_| Error::invalid("pass", "numbers below 2^31", number))
}

impl Layout {
    /// A shape whose rows are all spare.
    pub fn spare(shape: &Shape) -> Self {
        let Shape { rows, sequences, pages, .. } = *shape;
        Self {
            ids: vec![0; rows],
            drawn: Vec::new(),
            positions: vec![0; rows],
            slots: vec![-1; rows],
            starts: vec![0; sequences + 1],
            keys: vec![0; sequences],
            table: vec![0; sequences * pages],
        }
    }

    /// A step of a schedule. `drawn` has each seat's place among the ids that were drawn last, which lie on the device.
    ///
    /// # Errors
    /// A step that the shape has no room for; a seat that no id was drawn for.
    pub fn of_step(step: &Step, shape: &Shape, drawn: &[Option<usize>]) -> Result<Self> {
        let mut all = Self::spare(shape);
        let longest = step.sequences.iter().map(|span| span.pages.len()).max().unwrap_or(0);
        let fits = step.rows.len() <= shape.rows && step.sequences.len() <= shape.sequences && longest <= shape.pages;
        ensure(
            fits,
            "step",
            format_args!("room for it in {shape:?}"),
            format_args!("{} rows of {} sequences, {longest} pages", step.rows.len(), step.sequences.len()),
        )?;
        for (at, row) in step.rows.iter().enumerate() {
            let id = match row.token {
                Token::Known(id) => id,
                Token::Sampled(seat) => {
                    let place = drawn.get(seat as usize).copied().flatten();
                    all.drawn.push((at, place.ok_or_else(|| Error::invalid("step", "seats that a token was drawn for", seat))?));
                    0
                }
            };
            (all.ids[at], all.positions[at], all.slots[at]) = (word(id as usize)?, word(row.position as usize)?, word(row.slot as usize)?);
        }
        for (at, span) in step.sequences.iter().enumerate() {
            all.starts[at + 1] = word(span.rows.end)?;
            all.keys[at] = word(span.kv_len as usize)?;
            for (to, page) in all.table[at * shape.pages..].iter_mut().zip(step.pages_of(span)) {
                *to = word(*page as usize)?;
            }
        }
        let end = all.starts[step.sequences.len()];
        all.starts[step.sequences.len()..].fill(end);
        Ok(all)
    }

    /// The next tokens of a text that lies in the pages 0, 1, 2 …, and that has `length` tokens before them.
    ///
    /// # Errors
    /// A text of more than 2^31 tokens.
    pub fn of_text(ids: &[u32], length: usize, shape: &Shape) -> Result<Self> {
        let mut all = Self::spare(shape);
        for (at, &id) in ids.iter().enumerate() {
            let position = word(length + at)?;
            (all.ids[at], all.positions[at], all.slots[at]) = (word(id as usize)?, position, position);
        }
        (all.starts[1], all.keys[0]) = (word(ids.len())?, word(length + ids.len())?);
        for (page, to) in all.table.iter_mut().enumerate() {
            *to = word(page)?;
        }
        Ok(all)
    }

    /// The ids, checked.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn ids(&self, vocabulary: u32) -> Result<TokenAdapters> {
        let found = self.ids.iter().find(|&&id| id < 0 || id as u32 >= vocabulary);
        found.map_or(Ok(()), |id| Err(Error::invalid("tokens", format!("ids below {vocabulary}"), id)))?;
        TokenAdapters::rows(&self.ids, vocabulary)
    }

    /// Rows side by side whose ids were drawn side by side: the first row, the place of its id, and how many there are.
    pub fn runs(&self) -> Vec<[usize; 3]> {
        let mut runs: Vec<[usize; 3]> = Vec::new();
        for &(row, place) in &self.drawn {
            match runs.last_mut() {
                Some([first, from, count]) if *first + *count == row && *from + *count == place => *count += 1,
                _ => runs.push([row, place, 1]),
            }
        }
        runs
    }

    /// The pages of sequences with as many rows each.
    ///
    /// # Errors
    /// Pages that the pool does not have.
    pub fn even(&self, shape: &Shape, pools: PoolShape) -> Result<PageTable> {
        PageTable::new(&self.table, &self.keys, pools.even(shape))
    }

    /// The pages of sequences with up to `most` rows.
    ///
    /// # Errors
    /// Pages that the pool does not have.
    pub fn ragged(&self, shape: &Shape, most: usize, pools: PoolShape) -> Result<RaggedPages> {
        RaggedPages::new(&self.starts, &self.keys, &self.table, pools.ragged(shape, most))
    }

    /// The pages of all sequences, each once, and the same rows with a table that counts among them.
    ///
    /// # Errors
    /// More pages than the shape has room for.
    pub fn gathered(&self, shape: &Shape, pools: PoolShape) -> Result<(Gathered, Self)> {
        let page = pools.page as usize;
        let (mut pages, mut positions) = (vec![-1; shape.gathered], vec![0; shape.gathered * page]);
        let (mut table, mut places, mut sequences) = (vec![0; self.table.len()], HashMap::new(), Vec::new());
        for (sequence, &keys) in self.keys.iter().enumerate() {
            let used = (keys.max(0) as usize).div_ceil(page.max(1)).min(shape.pages);
            for number in 0..used {
                let at = sequence * shape.pages + number;
                let next = places.len();
                let place = *places.entry(self.table[at]).or_insert(next);
                ensure(place < shape.gathered, "pass", format_args!("at most {} different pages", shape.gathered), place + 1)?;
                if place == next {
                    pages[place] = self.table[at];
                    sequences.push(sequence);
                    for (token, position) in positions[place * page..][..page].iter_mut().enumerate() {
                        *position = word(number * page + token)?;
                    }
                }
                table[at] = word(place)?;
            }
        }
        Ok((Gathered { pages, positions, sequences }, Self { table, ..self.clone() }))
    }

    /// Copies the pages of the sequences to the device.
    ///
    /// # Errors
    /// Pages that the pool does not have; no device memory.
    pub fn place<D: Backend>(&self, session: &mut Session<D>, shape: &Shape, pools: PoolShape) -> Result<AttentionIndex<D>> {
        match shape.queries {
            Queries::Even => Ok(AttentionIndex::Paged(session.index(&self.even(shape, pools)?)?)),
            Queries::Ragged { most } => Ok(AttentionIndex::RaggedPaged(session.index(&self.ragged(shape, most, pools)?)?)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::llm::step::Row;

    #[test]
    fn ids_on_the_device_are_taken_in_runs() {
        let row = |token| Row { token, position: 0, slot: 0, adapter: None };
        // The request of seat 1 has ended, and another one has come to its seat.
        let tokens = [Token::Sampled(0), Token::Sampled(2), Token::Sampled(3), Token::Known(9), Token::Sampled(5), Token::Sampled(4)];
        let step = Step { rows: tokens.map(row).to_vec(), ..Step::default() };
        let shape = Shape { rows: 8, sequences: 8, queries: Queries::Even, pages: 1, gathered: 0, batch_invariant: false };
        let places = [Some(0), Some(1), Some(2), Some(3), Some(4), Some(5)];
        let layout = Layout::of_step(&step, &shape, &places).unwrap();
        assert_eq!(layout.runs(), [[0, 0, 1], [1, 2, 2], [4, 5, 1], [5, 4, 1]]);
        assert_eq!(layout.ids, [0, 0, 0, 9, 0, 0, 0, 0]);
        assert!(Layout::of_step(&step, &shape, &[None; 6]).unwrap_err().to_string().contains("drawn for"));
        assert_eq!(Layout::spare(&shape).runs(), [[0; 3]; 0]);
    }

    #[test]
    fn pages_are_gathered_once() {
        let shape = Shape { rows: 3, sequences: 3, queries: Queries::Even, pages: 2, gathered: 4, batch_invariant: false };
        let pools = PoolShape { page: 2, pages: 12, filled: false };
        // Two sequences that share their first page, and a spare one; what lies behind a sequence's last key is not gathered.
        let layout = Layout { keys: vec![4, 3, 0], table: vec![5, 7, 5, 9, 11, 11], ..Layout::spare(&shape) };
        let (gathered, own) = layout.gathered(&shape, pools).unwrap();
        assert_eq!((&gathered.pages[..], &gathered.sequences[..]), (&[5, 7, 9, -1][..], &[0, 0, 1][..]));
        assert_eq!(gathered.positions, [0, 1, 2, 3, 2, 3, 0, 0]);
        assert_eq!((&own.table[..], &own.keys), (&[0, 1, 0, 2, 0, 0][..], &layout.keys));
        assert!(layout.gathered(&Shape { gathered: 2, ..shape }, pools).is_err());
        assert!(gathered.pages(PoolShape { pages: 9, ..pools }).is_err() && gathered.pages(pools).is_ok());
    }
}
