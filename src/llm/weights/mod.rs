//! Weights by the names and in the layout of the Hugging Face libraries, whatever file they are from.

mod dense;
mod drawn;
mod factors;
#[cfg(feature = "gguf")]
mod gguf;
#[cfg(feature = "gguf")]
mod names;
mod safetensors;
mod source;

pub use dense::Dense;
pub use drawn::Drawn;
pub use factors::Factors;
#[cfg(feature = "gguf")]
pub use gguf::GgufFile;
pub use safetensors::Folder;
pub use source::{Elements, WeightSource};
