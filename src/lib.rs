//! Three fused GPU operations behind one trait, for serving and studying compressed language models.

#![warn(missing_docs)]

pub mod adapters;
pub mod backend;
pub mod bench;
pub mod casefile;
pub mod cases;
pub mod conformance;
pub mod device;
pub mod dtype;
pub mod error;
pub mod layer;
#[cfg(feature = "model")]
pub mod model;
pub mod ops;
pub mod oracle;
pub mod safetensors_file;
pub mod session;
pub mod tolerance;
#[cfg(feature = "compress")]
pub mod verify;

pub use dtype::DType;
pub use error::{Error, Result};

#[path = "../backends/mod.rs"]
pub mod backends;

/// The examples of the front page run as tests.
#[cfg(all(doctest, feature = "cpu", feature = "compress"))]
#[doc = include_str!("../README.md")]
struct Readme;
