//! S2LC: a population of LoRA adapters, compressed truthfully, and served from the compressed form.

pub mod bundle;
pub mod certificate;
pub mod decompress;
#[cfg(feature = "compress")]
pub mod encode;
pub mod encoded;
pub mod engine;
mod matrix;
pub mod peft;
pub mod prefix;
pub mod whole;
