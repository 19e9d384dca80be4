//! The file of the cpu backend that hands memory to launches, with its tests and no more than it stands on.
#![allow(dead_code)]

#[path = "../../src/error.rs"]
pub mod error;
#[path = "../../backends/cpu/memory.rs"]
mod memory;
