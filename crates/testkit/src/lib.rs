//! What proves a backend of [`trifuse`]: the float64 definition of every operation, named cases, how far a result may be
//! from the definition, a runner that compares the two, and what every device must do besides.
//!
//! A crate with a backend of its own takes it as a dev-dependency and runs every case through
//! [`conformance::run_case`] and every test of [`contract::tests`].
//!
//! | module | what is in it |
//! |---|---|
//! | [`oracle`] | what each operation computes, in float64 |
//! | [`cases`] | named shapes with seeded operands |
//! | [`tolerance`] | how far from float64 a correct result may be |
//! | [`casefile`] | cases with results from outside, one safetensors file each |
//! | [`conformance`] | runs a case on a backend and checks it |
//! | [`contract`] | what every [`Device`](trifuse::device::Device) must do: memory, order, capture, refusals |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

pub mod casefile;
pub mod cases;
pub mod conformance;
pub mod contract;
pub mod oracle;
pub mod tolerance;
