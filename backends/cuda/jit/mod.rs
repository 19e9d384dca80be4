//! From CUDA C++ to kernels on the device: what is compiled together, NVRTC, the cache on disk, loading.

pub(crate) mod cache;
pub(crate) mod module;
pub(crate) mod resources;
pub(crate) mod unit;

pub use cache::{Built, CACHE_DIR, Cache};
pub(crate) use module::Module;
pub use resources::Resources;
pub(crate) use unit::source;
pub use unit::{Arch, Source, Unit, resources};
