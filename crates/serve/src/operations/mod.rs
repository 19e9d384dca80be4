//! Single operations that are served: their tasks, the memory that they name, and the thread of their device.

mod attend;
mod maps;
mod mask;
mod operator;
mod plans;
pub mod regions;
mod resident;
mod runner;
mod service;
pub mod task;
mod tensors;
mod together;

pub use operator::{Operate, Operator, Ran};
pub use service::{Operations, OperationsModel};
