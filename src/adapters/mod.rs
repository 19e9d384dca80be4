//! S2LC: a population of LoRA adapters, compressed truthfully, and served from the compressed form.

pub mod bundle;
pub mod certificate;
pub mod decompress;
pub mod encoded;
pub mod peft;
pub mod safetensors_file;
pub mod whole;
