//! NVIDIA GPUs from compute capability 8.0 on, through the driver and NVRTC. Both are loaded at run time. The backend builds with no CUDA
//! toolkit and starts with no driver.

mod attention;
mod catalogue;
mod checksum;
mod codebook_gemm;
mod device;
mod fused_mlp;
mod gemm;
mod grouped_linear;
mod heads;
pub mod jit;
mod linear;
mod pointwise;
mod prefix_attention;
mod runtime;
mod sample;
mod variant;

pub use catalogue::{Entry, catalogue};
pub use device::{Cuda, Target};
pub use jit::{Built, CACHE_DIR, Cache, KERNELS, Pack, PackWriter, Packs, Resources};
pub use runtime::event::Event;
pub use runtime::library::{LIBRARY_DIR, nvrtc as nvrtc_version};
pub use runtime::memory::Buffer;
pub use runtime::queue::{Graph, Queue};
pub use variant::{RunsOn, TensorCores};
