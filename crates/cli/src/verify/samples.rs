//! Real data that the tests run on.

use super::prefix::Prefix;
use trifuse::adapters::peft::LoraAdapter;

/// What the tests run on.
pub struct Samples {
    /// A few real adapters of one base model.
    pub adapters: Vec<LoraAdapter>,
    /// Real activations of a shared prefix.
    pub prefix: Prefix,
}
