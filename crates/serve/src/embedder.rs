//! What turns sentences into vectors: an encoder, or what a test puts in its place.

use trifuse::adapters::encoded::EncodedAdapter;
use trifuse::adapters::engine::AdapterId;
use trifuse::backend::Backend;
use trifuse::model::{Encoder, Row, Text};
use trifuse::{Error, Result};

use crate::queueing::registry::Generation;

/// Something that embeds batches of sentences. It stays on the thread where it was opened.
pub trait Embedder {
    /// Puts a batch on the device, behind those that are there, and does not wait for it. The first `wanted` of its rows are asked for; the others fill it up.
    ///
    /// # Errors
    /// A row that is not sound; no device memory; a device that fails. Then the device does not have this batch, and has those before it.
    fn submit(&mut self, rows: &[Row<'_>], wanted: usize) -> Result<()>;

    /// The vectors that are wanted of the batch that was submitted first of those that are not finished, one after the other in the order of its rows. Waits for it.
    ///
    /// # Errors
    /// No batch was submitted; a device that fails. Then the batch is gone.
    fn finish(&mut self) -> Result<Vec<f32>>;

    /// Takes one more adapter.
    ///
    /// # Errors
    /// An adapter of another model, or any where none is taken; no device memory.
    fn add(&mut self, name: &str, adapter: EncodedAdapter) -> Result<AdapterId> {
        drop(adapter);
        Err(Error::invalid("adapter", "none, as this model takes no more", format!("{name:?}")))
    }

    /// Forgets an adapter.
    ///
    /// # Errors
    /// An adapter that is not there.
    fn remove(&mut self, adapter: AdapterId) -> Result<()> {
        Err(Error::invalid("adapter", "one that was added", format!("{adapter:?}")))
    }

    /// Whether an adapter is on the device.
    fn is_resident(&self, adapter: AdapterId) -> bool {
        let _ = adapter;
        false
    }
}

impl<D: Backend> Embedder for Encoder<D> {
    fn submit(&mut self, rows: &[Row<'_>], wanted: usize) -> Result<()> {
        Self::submit_first(self, rows, wanted)
    }

    fn finish(&mut self) -> Result<Vec<f32>> {
        Self::finish(self)
    }

    fn add(&mut self, name: &str, adapter: EncodedAdapter) -> Result<AdapterId> {
        self.add_adapter(name, adapter)
    }

    fn remove(&mut self, adapter: AdapterId) -> Result<()> {
        self.remove_adapter(adapter)
    }

    fn is_resident(&self, adapter: AdapterId) -> bool {
        self.engine().is_some_and(|engine| engine.is_resident(adapter))
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

/// What opens a model, on the thread that runs it.
pub type Open = Box<dyn FnOnce() -> Result<Opened> + Send>;

/// A model that is opened on each of its devices, by the thread that runs it there.
pub struct EmbeddingModel {
    /// The model's name in requests.
    pub name: String,
    /// The devices by their names, with what opens the model there. All are to have the same adapters.
    pub devices: Vec<(String, Open)>,
}

impl EmbeddingModel {
    /// A model on one device.
    pub fn new(name: impl Into<String>, device: impl Into<String>, open: Open) -> Self {
        Self { name: name.into(), devices: vec![(device.into(), open)] }
    }

    /// The model on one more device.
    #[must_use]
    pub fn and(mut self, device: impl Into<String>, open: Open) -> Self {
        self.devices.push((device.into(), open));
        self
    }
}
