//! Weights by the names and in the layout of the Hugging Face libraries, whatever file they are from.

#[cfg(feature = "gguf")]
mod gguf;
#[cfg(feature = "gguf")]
mod names;
mod safetensors;
mod source;

#[cfg(feature = "gguf")]
pub use gguf::GgufFile;
pub use safetensors::Folder;
pub use source::WeightSource;
