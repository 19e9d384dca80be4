//! Weights by the names and in the layout of the Hugging Face libraries, whatever file they are from.

mod drawn;
#[cfg(feature = "gguf")]
mod gguf;
#[cfg(feature = "gguf")]
mod names;
mod safetensors;
mod source;

pub use drawn::Drawn;
#[cfg(feature = "gguf")]
pub use gguf::GgufFile;
pub use safetensors::Folder;
pub use source::WeightSource;
