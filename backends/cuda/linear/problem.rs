//! `linear` as a matrix product: operands, strides, and what is enqueued before it.

use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::problem::{HALVES, Product, half};
use crate::backends::cuda::gemm::repack::{Copies, padded};
use crate::backends::cuda::gemm::sm80::units::{fallback_units, wide_fallback_unit};
use crate::backends::cuda::gemm::sm90::cost::{Shape, straddles};
use crate::backends::cuda::gemm::sm90::skinny::SkinnyShape;
use crate::backends::cuda::jit::Unit;
use crate::backends::cuda::runtime::pdl::starts_early;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, range};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

/// Bytes of the copies that are made before the product.
pub(crate) fn repacked_bytes(op: &Linear) -> u64 {
    Copies::of(op).bytes([op.tokens, op.d_out], op.d_in)
}

/// The strides of X and of W that a product's kernel reads, after any copies.
pub(crate) fn strides(op: &Linear) -> [u64; 2] {
    Copies::of(op).strides([x_stride(op), op.w_stride], op.d_in)
}

/// The stride of X. The stride of a single row is never used, but TMA must accept it.
fn x_stride(op: &Linear) -> u64 {
    if op.tokens == 1 { padded(op.d_in) } else { op.x_stride }
}

/// The shape by which a tile is chosen.
pub(crate) fn shape(op: &Linear) -> Shape {
    let activated = ActivationForm::of(op.activation) != ActivationForm::Floor;
    Shape { rows: op.tokens, outputs: op.d_out, depth: padded(op.d_in), activated, straddles: straddles(op.dtype, strides(op)) }
}

/// Whether outputs are f32 where operands are not.
pub(crate) fn is_wide(op: &Linear) -> bool {
    op.y_dtype() != op.dtype
}

/// The units of the fallback for a product of an sm90 kernel.
pub(crate) fn fallback(op: &Linear) -> Vec<Unit> {
    if is_wide(op) { vec![wide_fallback_unit(op.dtype)] } else { fallback_units(op.dtype) }
}

/// The units of the fallbacks for all products of an sm90 variant that has wide outputs too.
pub(crate) fn every_fallback() -> impl Iterator<Item = Unit> {
    HALVES.into_iter().flat_map(|dtype| fallback_units(dtype).into_iter().chain([wide_fallback_unit(dtype)]))
}

/// Whether a kernel writes the operation's outputs, or why not. `has_wide` says that it is compiled for wide ones too.
pub(crate) fn writes(op: &Linear, has_wide: bool) -> std::result::Result<(), String> {
    if has_wide { Ok(()) } else { op.no_wide_outputs() }
}

/// The product on its operands in place.
pub(crate) fn unpacked<'a>(op: &Linear, args: &'a LinearArgs<Cuda>) -> Product<'a> {
    Product {
        dtype: op.dtype,
        x: args.x.clone(),
        w: args.w.clone(),
        gate: None,
        bias: args.bias.as_ref(),
        residual: args.residual.clone(),
        y: args.y.clone(),
        rows: op.tokens,
        columns: op.d_out,
        depth: op.d_in,
        x_stride: x_stride(op),
        w_stride: op.w_stride,
        y_stride: op.d_out,
        activation: op.activation,
        adds: op.delta.is_some(),
        wide: is_wide(op),
    }
}

/// The product on its operands in place. The adapters' part is enqueued before it, and stands in y, rounded once.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
pub(crate) unsafe fn adapted<'a>(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &'a LinearArgs<Cuda>) -> Result<Product<'a>> {
    if let (Some(delta), Some(own)) = (&plan.delta, &args.delta) {
        // SAFETY: the caller's promise: the delta's y is this operation's own.
        unsafe { delta.run(queue, &plan.delta_workspace(workspace)?, own)? };
    }
    Ok(unpacked(&plan.op, args))
}

/// The product, and whether it may start while the launch before still runs (see `Launch::overlap`). The adapters' part is enqueued before
/// it, and where that pays, copies of the operands into the workspace.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
pub(crate) unsafe fn product<'a>(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &'a LinearArgs<Cuda>) -> Result<(Product<'a>, bool)> {
    // SAFETY: the caller's promise; the workspace is as large as the copies want it.
    let product = unsafe {
        let mut product = adapted(queue, plan, workspace, args)?;
        Copies::of(&plan.op).launch(queue, plan, workspace, &mut product)?;
        product
    };
    let overlap = product.adds && early(queue, args);
    Ok((product, overlap))
}

/// Whether a product may start while the launches before still run. Its PDL wait stands only before it reads the adapters' part.
pub(crate) fn early(queue: &mut Queue, args: &LinearArgs<Cuda>) -> bool {
    let reads = [Some(&args.x), Some(&args.w), args.bias.as_ref(), args.residual.as_ref()];
    starts_early(&queue.take_open(), &reads.into_iter().flatten().map(range).collect::<Vec<_>>())
}

/// Whether kernels that multiply by the adapters' basis themselves take the product. They read X, W and the basis 16 bytes at a time, and
/// write so.
pub(crate) fn takes_lora(product: &Product<'_>) -> bool {
    product.width() == 16 && product.writes_whole()
}

/// Whether W can be streamed, or why not.
pub(crate) fn streams(op: &Linear) -> std::result::Result<(), String> {
    half(op.dtype)?;
    op.no_norm()?;
    SkinnyShape::supports(op.dtype, [op.tokens, op.d_out, op.d_in], strides(op))
}
