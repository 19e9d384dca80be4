//! Decoders of Llama's family end to end: weights from a folder or a GGUF file, tokens from text, logits from tokens, text as it comes.
//!
//! [`Files`] reads a model and checks it; a [`Model`] has its weights on a device; a [`Context`] holds the keys and values of one text. The
//! forward pass is made of this crate's operations alone.
//!
//! What serving decides is apart from that, without a device, a clock or a thread, so that tests can try every case of it:
//!
//! | module | what is in it |
//! |---|---|
//! | [`cache`] | pages of K and V: reference counts, prefixes by chained hashes, a request's list of pages |
//! | [`schedule`] | which requests run in a step, and with how many tokens |
//! | [`sample`] | the choice of a token from logits |
//! | [`step`] | what a schedule tells a model to compute |
//! | [`tokens`], [`stops`] | text from tokens as they come: UTF-8 and stop strings across their edges |

mod beside;
pub mod cache;
mod chat;
mod config;
mod context;
mod deltas;
mod divergence;
pub mod engine;
mod factored;
mod files;
mod fill;
mod filled;
mod form;
mod forward;
mod grammar;
mod head;
mod keys;
mod latent;
mod layout;
mod loading;
mod model;
mod part;
pub mod perplexity;
mod place;
mod placed;
mod plans;
mod pools;
mod products;
mod ranks;
mod rope;
mod rows;
pub mod sample;
pub mod schedule;
mod shape;
mod spelling;
pub mod step;
pub mod stops;
#[cfg(feature = "structured")]
mod structure;
mod tokenizer;
pub mod tokens;
mod vocabulary;
mod watch;
mod weights;

pub use beside::Beside;
pub use chat::{ChatTemplate, Message};
pub use config::{Config, Family};
pub use context::Context;
pub use divergence::{Difference, Forecasts};
pub use files::Files;
pub use fill::{Fill, Fills};
pub use forward::Watch;
pub use grammar::{Grammar, Rule};
pub use loading::Loading;
pub use model::Model;
pub use ranks::Ranks;
pub use rope::Scaling;
#[cfg(feature = "structured")]
pub use structure::{Structure, Structures};
pub use tokenizer::{TextStream, Tokenizer};
pub use watch::Watched;
#[cfg(feature = "gguf")]
pub use weights::GgufFile;
pub use weights::{Dense, Drawn, Elements, Folder, WeightSource};
