//! Decoders of Llama's family end to end: weights from a folder or a GGUF file, tokens from text, logits from tokens, text as it comes.
//!
//! [`Files`] reads a model and checks it; a [`Model`] has its weights on a device; a [`Context`] holds the keys and values of one text. The
//! forward pass is made of this crate's operations alone.

mod chat;
mod config;
mod context;
mod files;
mod forward;
mod keys;
mod model;
pub mod perplexity;
mod placed;
mod plans;
mod rope;
mod tokenizer;
mod vocabulary;
mod weights;

pub use chat::{ChatTemplate, Message};
pub use config::{Config, Family};
pub use context::Context;
pub use files::Files;
pub use model::Model;
pub use rope::Scaling;
pub use tokenizer::{TextStream, Tokenizer};
#[cfg(feature = "gguf")]
pub use weights::GgufFile;
pub use weights::{Folder, WeightSource};
