//! WGSL through wgpu, by Vulkan, Metal or DX12: the portable reference, on any GPU or on a software driver.
//!
//! # How an operation is added
//!
//! 1. `shaders/<op>.wgsl`: a `struct Params` of 32-bit scalars and an entry point `main`, which takes its number from
//!    `group_number` and returns at once where that is not below `launch.groups`.
//! 2. `backends/wgpu/<op>.rs`: a [`Source`] lists the shader's operands, constants and files; `Wgpu::pipeline`
//!    compiles it (once a device); `Queue::dispatch` binds slices, and puts the work into the queue.
//! 3. A line in [`sources`], so that `tests/shaders.rs` validates every specialisation without a GPU.
//!
//! For an operand `x` the composed text has the binding `x` and functions that add the slice's offset and convert:
//! `load_x(i) -> f32` and `load4_x(i) -> vec4<f32>` (integers: `load_x(i)` alone), and where it is written
//! `store_x(i, v)`, `store2_x`, `store4_x`. Elements of 16 bits share words; the stores never touch a neighbour's half,
//! so that any offset, row length and division of the work is right. An operand that is not `present` reads as zeros.
//!
//! Every binding is read-write: x and y of an operation may be ranges of one buffer, and wgpu refuses a buffer that is
//! bound both ways in one dispatch.
//!
//! Specialisation is by text: constants and type aliases in front of the shader, so that what a plan fixes costs
//! nothing at run time. What changes from launch to launch goes into `Params`, by immediates (push constants).

mod adapter;
mod attention;
mod attention_shader;
mod buffer;
mod checksum;
mod codebook_gemm;
mod codebook_gemm_stage;
mod compiled;
mod context;
mod copies;
mod device;
mod event;
mod fault;
mod fused_mlp;
mod grouped_linear;
mod linear;
mod pipeline;
mod pointwise;
mod prefix_attention;
mod product;
mod queue;
mod sample;
mod source;
#[cfg(test)]
mod tests;

pub use buffer::Buffer;
pub use context::Wgpu;
pub use event::Event;
pub use queue::{Graph, Queue};
pub use source::{Constant, Element, File, Operand, Source};

/// Every shader of this backend in every specialisation, as the pipelines compose it.
pub fn sources() -> Vec<Source> {
    let mut all = vec![copies::patch_source()];
    all.extend(codebook_gemm::sources());
    all.extend(product::sources());
    all.extend(pointwise::sources());
    all.extend(sample::sources());
    all.extend(checksum::sources());
    all.extend(attention_shader::sources());
    all.extend(prefix_attention::sources());
    all
}
