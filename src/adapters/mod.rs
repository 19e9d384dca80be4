//! S2LC: a population of LoRA adapters, compressed truthfully, and served from the compressed form.

pub mod certificate;
pub mod encoded;
pub mod engine;
