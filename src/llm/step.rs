//! One pass of the model: the whole interface between the schedule and the model.

use std::ops::Range;

/// The number of a request. Numbers rise in the order of arrival and are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What a model computes in one pass.
///
/// The model stores K and V of every row before it attends, layer by layer. Steps run in the order of their plans: pages that one step
/// reads may be written by the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Tokens to compute, those of a sequence side by side.
    pub rows: Vec<Row>,
    /// Sequences, in the order of their rows.
    pub sequences: Vec<Span>,
    /// Rows whose logits a token is drawn from.
    pub sample: Vec<SampleRow>,
    /// Pages of all sequences, one list behind the other; [`Span::pages`] points into it.
    pub pages: Vec<u32>,
}

/// One token to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where the token's id comes from.
    pub token: Token,
    /// The token's place in its sequence, from 0.
    pub position: u32,
    /// Where K and V of the token go: its page times the tokens of a page, plus its place in the page.
    pub slot: u32,
    /// The place of the request's adapter in the pool of adapters; `None` is the base model.
    pub adapter: Option<u32>,
}

/// The source of a token's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// An id that the host knows.
    Known(u32),
    /// The id that the last sample wrote to this seat. The host may not know it yet.
    Sampled(u32),
}

/// One sequence of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The request that the sequence belongs to.
    pub request: RequestId,
    /// Its rows, as indices into [`Step::rows`]: the last tokens of its first [`kv_len`](Self::kv_len).
    pub rows: Range<usize>,
    /// Its pages in order, as indices into [`Step::pages`]: as many as `kv_len` tokens fill.
    pub pages: Range<usize>,
    /// Tokens whose K and V the rows attend to, the rows themselves included.
    pub kv_len: u32,
}

/// A row whose logits give the next token of its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRow {
    /// The index of the row in [`Step::rows`].
    pub row: usize,
    /// The seat that takes the sampled id on the device. The host copies it after this step and before the next.
    pub seat: u32,
    /// The request whose sampling parameters apply.
    pub request: RequestId,
    /// The place of the new token in its sequence. The random numbers depend on it and on the request's seed alone.
    pub position: u32,
}

impl Step {
    /// Empties the step and keeps its memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.sequences.clear();
        self.sample.clear();
        self.pages.clear();
    }

    /// The pages of one of its sequences; empty for a span of another step.
    pub fn pages_of(&self, span: &Span) -> &[u32] {
        self.pages.get(span.pages.clone()).unwrap_or_default()
    }
}
