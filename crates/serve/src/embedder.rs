//! What turns sentences into vectors: an encoder, or what a test puts in its place.

use trifuse::Result;
use trifuse::adapters::engine::AdapterId;
use trifuse::backend::Backend;
use trifuse::model::{Encoder, Row, Text};

use crate::queueing::registry::Generation;

/// Something that embeds a batch of sentences. It stays on the thread where it was opened.
pub trait Embedder {
    /// The vectors of `rows`, one after the other in their order.
    ///
    /// # Errors
    /// A row that is not sound; a device that fails.
    fn embed(&mut self, rows: &[Row<'_>]) -> Result<Vec<f32>>;
}

impl<D: Backend> Embedder for Encoder<D> {
    fn embed(&mut self, rows: &[Row<'_>]) -> Result<Vec<f32>> {
        Self::embed(self, rows)
    }
}

/// An encoder with all that serving it needs.
pub struct Opened {
    /// What computes.
    pub embedder: Box<dyn Embedder>,
    /// The encoder's tokenizer.
    pub text: Text,
    /// The adapters that it knows.
    pub adapters: Vec<Generation<AdapterId>>,
    /// Elements of a vector.
    pub width: usize,
    /// Rows of the token table.
    pub vocabulary: u32,
    /// The most tokens of a batch.
    pub batch_tokens: usize,
    /// Whether every shape of a batch is run once before the first request, as devices need that capture their work.
    pub warm: bool,
}

/// A model that is opened on the thread that runs it.
pub struct EmbeddingModel {
    /// The model's name in requests.
    pub name: String,
    /// What opens it.
    pub open: Box<dyn FnOnce() -> Result<Opened> + Send>,
}
