//! A batch as the device will read it, laid out on the host.

use super::config::Config;
use super::shape::Shape;
use crate::adapters::engine::AdapterId;
use crate::error::{Result, ensure};
use crate::ops::index::{TokenAdapters, Varlen};

/// One sentence of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Rows of the token table, 1 to [`Config::max_tokens`] of them.
    pub ids: &'a [i32],
    /// The sentence's adapter; `None` for the base model alone.
    pub adapter: Option<AdapterId>,
}

/// A checked batch of sentences with its indices.
pub struct LaidOut {
    pub shape: Shape,
    /// Sentences.
    pub count: usize,
    /// Tokens of all sentences.
    pub tokens: usize,
    pub ids: TokenAdapters,
    pub positions: TokenAdapters,
    pub places: Varlen,
    /// The adapter of each row.
    pub adapters: Vec<Option<AdapterId>>,
}

impl LaidOut {
    /// Checks and lays out a batch.
    ///
    /// # Errors
    /// No rows; a row with no tokens or more than the model allows; an id that is not in the table.
    pub fn new(config: &Config, rows: &[Row<'_>]) -> Result<Self> {
        ensure(!rows.is_empty(), "batch", "at least one sentence", 0)?;
        let most = config.max_tokens;
        for (number, row) in rows.iter().enumerate() {
            let length = row.ids.len();
            ensure((1..=most).contains(&length), format_args!("sentence {number}"), format_args!("1 to {most} tokens"), length)?;
            ensure(row.ids.iter().all(|&id| id >= 0), format_args!("sentence {number}"), "tokens of at least 0", "a negative one")?;
        }
        let lengths: Vec<usize> = rows.iter().map(|row| row.ids.len()).collect();
        let shape = Shape::of(&lengths);
        // Rows past the last sentence have no token and no position: zeros.
        let filled = |values: &mut dyn Iterator<Item = i32>| values.chain(std::iter::repeat(-1)).take(shape.rows).collect::<Vec<_>>();
        let ids = filled(&mut rows.iter().flat_map(|row| row.ids).copied());
        let positions = filled(&mut lengths.iter().flat_map(|&length| 0..length as i32));
        let mut adapters: Vec<Option<AdapterId>> = rows.iter().flat_map(|row| std::iter::repeat_n(row.adapter, row.ids.len())).collect();
        adapters.resize(shape.rows, None);
        Ok(Self {
            shape,
            count: rows.len(),
            tokens: lengths.iter().sum(),
            ids: TokenAdapters::rows(&ids, config.vocabulary)?,
            positions: TokenAdapters::rows(&positions, config.positions)?,
            places: shape.places(&lengths)?,
            adapters,
        })
    }
}
