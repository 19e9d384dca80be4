//! S2LC: a population of LoRA adapters, compressed truthfully, and served from the compressed form.

#[cfg(feature = "compress")]
pub mod add;
#[cfg(feature = "compress")]
pub(crate) mod allocate;
#[cfg(feature = "compress")]
pub(crate) mod basis;
pub mod bundle;
#[cfg(feature = "compress")]
pub mod calibration;
pub mod certificate;
#[cfg(feature = "compress")]
pub(crate) mod codebook;
pub mod decompress;
#[cfg(feature = "compress")]
pub(crate) mod draft;
#[cfg(feature = "compress")]
pub mod encode;
pub mod encoded;
pub mod engine;
#[cfg(feature = "compress")]
pub(crate) mod factor;
#[cfg(feature = "compress")]
pub(crate) mod ladder;
#[cfg(feature = "compress")]
pub(crate) mod linalg;
#[cfg(feature = "compress")]
pub mod options;
pub mod peft;
pub mod safetensors_file;
#[cfg(feature = "compress")]
pub(crate) mod terms;
pub mod whole;

#[cfg(all(test, feature = "compress"))]
mod encode_tests;
