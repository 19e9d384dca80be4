//! What the `trifuse` command measures and checks: [`bench`](mod@bench) times operations, answers checked first, and
//! [`verify`] holds encoded adapters and the engine to float64.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

pub mod bench;
pub mod verify;
