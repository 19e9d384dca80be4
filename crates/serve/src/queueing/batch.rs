//! Batches of a fixed grid of shapes, so that a device plans and captures each of them once, before the first request.

use super::queues::Queues;

/// The sizes of a batch as the encoder sees it, with what fills it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    /// Tokens of all sentences.
    pub rows: usize,
    /// Sentences.
    pub sentences: usize,
    /// The most tokens of a sentence. At least one has more than 64 less.
    pub longest: usize,
}

/// The fewest rows of a batch: the encoder computes no fewer.
const MIN_ROWS: usize = 256;
/// The step in which an encoder counts the longest sentence.
const LENGTH_STEP: usize = 64;
/// The rows for each sentence of a full batch.
const ROWS_A_SENTENCE: usize = 16;

/// The shapes that batches may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    rows: Vec<usize>,
    longest: Vec<usize>,
}

impl Grid {
    /// The shapes of batches of up to `batch_tokens` tokens, of sentences of up to `max_tokens`, which are at least 2. A batch holds two of the longest sentences in any case.
    pub fn new(batch_tokens: usize, max_tokens: usize) -> Self {
        let powers = |from: usize| std::iter::successors(Some(from), |power| power.checked_mul(2));
        let longest: Vec<usize> = powers(LENGTH_STEP).take_while(|length| *length < max_tokens).collect();
        let last = max_tokens.max(2);
        let most = batch_tokens.max(2 * last).max(MIN_ROWS);
        // From one power of two to the next there is one step between: half as many rows again.
        let rows: Vec<usize> = powers(MIN_ROWS).flat_map(|rows| [rows, rows / 2 * 3]).take_while(|rows| *rows < most).collect();
        let end = powers(MIN_ROWS).flat_map(|rows| [rows, rows / 2 * 3]).find(|rows| *rows >= most);
        Self { rows: rows.into_iter().chain(end).collect(), longest: longest.into_iter().chain([last]).collect() }
    }

    /// Every shape.
    pub fn shapes(&self) -> impl Iterator<Item = Shape> + '_ {
        self.rows.iter().flat_map(|rows| self.longest.iter().filter(|longest| *longest <= rows).map(|longest| shape(*rows, *longest)))
    }

    /// Whether that many sentences, of that many tokens together, fill a batch: what comes behind them is not in the next one, whenever that is taken.
    pub fn is_filled_by(&self, count: usize, tokens: u64) -> bool {
        let (Some(rows), Some(longest)) = (self.rows.last(), self.longest.first()) else { return false };
        // Of the shortest sentences a shape has the most.
        tokens >= *rows as u64 || count >= shape(*rows, *longest).sentences
    }

    /// The smallest shape for `count` sentences of `tokens` tokens together, the longest of `longest`.
    pub fn shape(&self, count: usize, tokens: usize, longest: usize) -> Option<Shape> {
        let class = *self.longest.iter().find(|class| **class >= longest)?;
        let step = |length: usize| length.max(1).next_multiple_of(LENGTH_STEP);
        let anchored = step(longest) == step(class);
        self.rows.iter().map(|rows| shape(*rows, class)).find(|shape| {
            let (Some(spare), Some(rows)) = (shape.sentences.checked_sub(count), shape.rows.checked_sub(tokens)) else { return false };
            let fills = if spare == 0 { rows == 0 } else { (spare..=spare * class).contains(&rows) };
            // Without a sentence of the class, one that fills has to be.
            fills && (anchored || (spare > 0 && rows - (spare - 1) >= class))
        })
    }
}

fn shape(rows: usize, longest: usize) -> Shape {
    Shape { rows, sentences: rows / ROWS_A_SENTENCE + rows.div_ceil(longest), longest }
}

impl Shape {
    /// The lengths of the sentences that fill up a batch of `count` sentences of `tokens` tokens. Nobody reads what they give.
    pub fn filling(&self, count: usize, tokens: usize) -> Vec<usize> {
        let (spare, mut rows) = (self.sentences.saturating_sub(count), self.rows.saturating_sub(tokens));
        let lengths = (0..spare).rev().map(|later| {
            let length = rows.saturating_sub(later).min(self.longest);
            rows -= length;
            length
        });
        lengths.filter(|length| *length > 0).collect()
    }
}

/// What goes to the device together. What an item costs is its tokens where it has some.
#[derive(Debug)]
pub struct Batch<T> {
    /// The sentences, in the order of their turns.
    pub items: Vec<T>,
    /// Their tokens.
    pub tokens: usize,
    /// The shape in which they run; `None` where nothing waits.
    pub shape: Option<Shape>,
    /// Tokens of items that were taken out of the queues and do not run.
    pub spared: usize,
}

/// Takes the next batch out of the queues. An item costs its tokens. `keep` gives an item back that is to run, or deals with it: one that nobody waits
/// for, or whose time is over.
pub fn take<T>(queues: &mut Queues<T>, grid: &Grid, keep: &mut dyn FnMut(T) -> Option<T>) -> Batch<T> {
    let mut batch = Batch { items: Vec::new(), tokens: 0, shape: None, spared: 0 };
    let mut longest = 0;
    while let Some(cost) = queues.next_cost() {
        let cost = cost as usize;
        let Some(shape) = grid.shape(batch.items.len() + 1, batch.tokens + cost, longest.max(cost)) else { break };
        let Some(item) = queues.pop() else { break };
        match keep(item) {
            None => batch.spared += cost,
            Some(item) => {
                batch.items.push(item);
                batch.tokens += cost;
                batch.shape = Some(shape);
                longest = longest.max(cost);
            }
        }
    }
    batch
}

/// Takes the next items out of the queues, `most` at most, of no shape. `keep` is that of [`take`].
pub fn take_few<T>(queues: &mut Queues<T>, most: usize, keep: &mut dyn FnMut(T) -> Option<T>) -> Batch<T> {
    let mut batch = Batch { items: Vec::new(), tokens: 0, shape: None, spared: 0 };
    while batch.items.len() < most {
        let Some(cost) = queues.next_cost() else { break };
        match queues.pop().map(&mut *keep) {
            None => break,
            Some(None) => batch.spared += cost as usize,
            Some(Some(item)) => {
                batch.items.push(item);
                batch.tokens += cost as usize;
            }
        }
    }
    batch
}
