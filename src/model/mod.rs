//! A sentence encoder end to end: BERT in the sentence-transformers layout, with an adapter of its own on every sentence.
//!
//! The forward pass is made of this crate's operations alone. Sentences of different length lie end to end, with no padding between them.
//! q, k and v are one product, attention is the varlen form, and mean pooling and the L2 norm end the pass. Where adapters are attached,
//! they may act on all six linear layers of a block.
//!
//! # What a row depends on
//!
//! On one backend, a sentence's embedding is bitwise the same whatever sentences and adapters are in its batch. From [`MIN_ROWS`] rows on,
//! every product sums a row in an order that the row count does not change. Attention splits no sequence of up to 256 tokens. A model with
//! adapters attached runs base rows on the same path as the others.

#[cfg(feature = "compress")]
pub mod calibrate;

mod config;
mod forward;
mod growth;
mod laid_out;
mod layer;
mod pipeline;
mod place;
mod plans;
mod shape;
mod text;
mod upload;
mod weights;
mod wordpiece;

pub use config::{Config, Pooling};
pub use forward::{Encoder, EncoderOptions, Prepared};
pub use laid_out::Row;
pub use layer::Watch;
pub use place::{files, find};
pub use shape::MIN_ROWS;
pub use text::{Text, Tokens};

// What decoders need too.
#[cfg(feature = "llm")]
pub(crate) use config::json;
#[cfg(feature = "llm")]
pub(crate) use text::{guarded, tokenizer_bytes};
#[cfg(feature = "llm")]
pub(crate) use upload::upload;
