//! The server of trifuse: OpenAI's routes and the open inference protocol over HTTP, an adapter of its own for every input, and exactly one answer to every request.
//!
//! [`Server::start`] takes a [`Config`] and an [`EmbeddingModel`], and gives a [`Handle`]. What is decided without a socket, a device or a thread lies in
//! [`queueing`]; a [`LanguageModel`] is served by [`Generate`](generate::Generate), which other
//! engines may implement.
//!
//! Feature `grpc`: the open inference protocol over gRPC, on a port of its own. Feature `otlp`: a trace of every request, sent to a collector.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

mod account;
mod adapter_root;
mod config;
mod content;
mod embedder;
mod embeddings;
pub mod generate;
#[cfg(feature = "grpc")]
mod grpc;
mod http;
pub mod keeper;
mod keys;
mod kserve;
mod language_model;
pub mod line;
mod metrics;
pub mod operations;
#[cfg(feature = "otlp")]
mod otlp;
pub mod queueing;
mod replica;
mod runner;
mod server;
mod shm;
mod spent;
mod stats;
mod turns;
mod workers;

pub use adapter_root::AdapterRoot;
pub use config::{Config, Limits};
pub use content::{content, of_folder};
pub use embedder::{Embedder, EmbeddingModel, Open, Opened};
#[doc(hidden)]
pub use http::bodies;
pub use keys::{Key, Keys};
pub use language_model::{EngineOn, LanguageModel, Speech};
pub use metrics::cpu_seconds;
#[cfg(feature = "otlp")]
pub use otlp::Endpoint;
pub use replica::Replica;
pub use server::{Handle, Models, Server};
