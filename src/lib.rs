//! Three fused GPU operations behind one trait, for serving many compressed LoRA adapters at once: a
//! [codebook GEMM](ops::CodebookGemm) that applies a mixed batch of adapters without decoding them to memory,
//! [attention](ops::Attention) with online softmax and a [fused MLP](ops::FusedMlp); and what a transformer layer needs
//! besides: [linear](ops::Linear), [groups of products](ops::GroupedLinear), [pointwise](ops::Pointwise), [attention over a shared prefix](ops::PrefixAttention), a
//! [sampler](ops::Sample) and [checksums](ops::Checksum).
//! They run on processors, on any GPU with a driver for Vulkan, Metal or DX12, and on NVIDIA GPUs through CUDA.
//!
//! An operation is a descriptor: sizes, types, strides. A [session](session::Session) plans it, which chooses a kernel and
//! compiles it, and then runs the plan on slices of device memory, as often as wanted:
//!
//! ```
//! # #[cfg(feature = "cpu")]
//! # fn main() -> trifuse::Result<()> {
//! use std::sync::Arc;
//! use trifuse::{DType, backends::cpu::Cpu, device::Open, ops::{Linear, LinearArgs}, session::Session};
//!
//! let mut session = Session::new(Arc::new(Cpu::open(0)?))?;
//! let plan = session.plan(Linear::new(DType::F32, [1, 3, 2]))?; // 1 token, d_in 3, d_out 2. Slow on a GPU: keep the plan.
//! let x = session.upload(&[1f32, 2.0, 3.0])?;
//! let w = session.upload(&[1f32, 0.0, 0.0, 0.0, 1.0, 1.0])?;
//! let y = session.alloc(2 * 4)?;
//! let args = LinearArgs::new(x, w, y.clone());
//! session.run(&plan, &args)?; // Checks every operand, puts the work into the queue and does not wait for it.
//! assert_eq!(session.download::<f32>(&y)?, [1.0, 5.0]);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "cpu"))]
//! # fn main() {}
//! ```
//!
//! Everything above the [`Device`](device::Device) trait is generic over it, and written once. [`Choice`](backends::Choice) opens the best
//! backend of a machine, and [`AnyDevice`](backends::AnyDevice) is one type for all of them. Each session has one in-order queue, whose
//! work can be [captured](session::Session::capture) and replayed as a graph. Everything that can go wrong is an [`Error`], which says what
//! was expected and what was found. Nothing panics on input from outside.
//!
//! | module | what is in it |
//! |---|---|
//! | [`ops`] | the operations: what each computes, its operands, every shape rule, its cost |
//! | [`session`], [`device`], [`backend`] | the safe front end; what a device offers; how an operation runs on one |
//! | [`backends`] | `cpu`, `wgpu` and `cuda`, and how to find and open them |
//! | [`layer`] | a transformer layer of these operations |
//! | `adapters` | PEFT folders, encoding with certificates, bundles, and the engine that serves mixed batches from them |
//! | `model` | a sentence encoder with an adapter of its own on every line |
//! | `llm` | decoders of Llama's family: weights, tokenizer, chat templates, generation; pages, prefixes, schedules, sampling |
//! | `shrink` | decoders whose projections become two factors each, within a budget |
//! | `read` | files from outside, read with a bound |
//! | `safetensors_file` | the one reader of safetensors files, which come from outside and are not trusted |
//!
//! Features: `cpu` (default), `wgpu` (default) and `cuda` add backends; `safetensors` adds the reader of such files, `adapters` PEFT folders,
//! bundles and the engine, `compress`, besides, encoding, `model` sentence encoders, `llm` language models, `structured` answers that are held
//! to a form, `gguf` models in files of that format and `shrink` makes them smaller. None changes a result.
//!
//! The crate `trifuse-testkit` proves a backend against float64; `trifuse-cli` is the `trifuse` command.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

#[cfg(feature = "adapters")]
pub mod adapters;
pub mod backend;
pub mod device;
pub mod dtype;
pub mod error;
#[cfg(feature = "adapters")]
mod hub;
pub mod layer;
#[cfg(feature = "llm")]
pub mod llm;
#[cfg(feature = "model")]
pub mod model;
pub mod ops;
#[cfg(feature = "safetensors")]
pub mod read;
#[cfg(feature = "safetensors")]
pub mod safetensors_file;
pub mod session;
#[cfg(feature = "shrink")]
pub mod shrink;

pub use dtype::DType;
pub use error::{Error, Result};

#[path = "../backends/mod.rs"]
pub mod backends;

/// The examples of the front page run as tests.
#[cfg(all(doctest, feature = "cpu", feature = "compress"))]
#[doc = include_str!("../README.md")]
struct Readme;
