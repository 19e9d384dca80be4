//! From CUDA C++ to kernels on the device: what is compiled together, NVRTC, the cache on disk, loading.

pub(crate) mod building;
pub(crate) mod built;
pub(crate) mod cache;
pub(crate) mod lock;
pub(crate) mod module;
pub(crate) mod pack;
pub(crate) mod pack_writer;
pub(crate) mod resources;
pub(crate) mod sources;
pub(crate) mod unit;

pub use built::Built;
pub use cache::{CACHE_DIR, Cache};
pub(crate) use module::{Function, Module};
pub use pack::{KERNELS, Pack, Packs};
pub use pack_writer::PackWriter;
pub use resources::Resources;
pub use sources::Source;
pub(crate) use sources::source;
pub use unit::{Arch, KERNEL_DEBUG, KERNEL_LINES, Unit, compilations, resources};
