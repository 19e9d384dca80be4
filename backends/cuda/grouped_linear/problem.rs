//! A product of a group on the kernels that stream W.

use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::repack::padded;
use crate::backends::cuda::gemm::sm90::skinny::SkinnyShape;
use crate::ops::{GroupedLinear, Linear};

/// Whether the kernels stream the weight of a product among others, or why not.
pub(crate) fn streams(op: &Linear) -> std::result::Result<(), String> {
    if ActivationForm::of(op.activation) != ActivationForm::Floor {
        return Err("an activation: it is compiled for none but relu".into());
    }
    // No operand is copied first. The stride of a single row is never used.
    let x_stride = if op.tokens == 1 { padded(op.d_in) } else { op.x_stride };
    SkinnyShape::supports(op.dtype, [op.tokens, op.d_out, op.d_in], [x_stride, op.w_stride])
}

/// Whether the products have each a y of its own, or why a kernel that writes these does not take them.
pub(crate) fn no_gate(op: &GroupedLinear) -> std::result::Result<(), String> {
    if op.gate.is_some() { Err("a gate: each product would write its own y".into()) } else { Ok(()) }
}
