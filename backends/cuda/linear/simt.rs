//! `linear` without tensor cores: every dtype and size.

use crate::backends::cuda::codebook_gemm::factor::{FactorParams, adapter_of_token, factor, factor_header};
use crate::backends::cuda::gemm::activation::activation_code;
use crate::backends::cuda::gemm::entry::{Entry, entry, listed, widened};
use crate::backends::cuda::gemm::problem::{HALVES, SIMT_TILE};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::linear::problem::is_wide;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, TensorCores, Variant, address, address_of, blocks};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(crate) const SIMT: Variant<Linear> = Variant {
    name: "simt",
    label: "linear/simt",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::Without("it serves f32 and every size; the tensor cores round f32 to 11 bits"),
    // The tensor cores, which take most of the others, add up in an order of their own.
    supports: |op, _| op.one_slice().and_then(|()| op.no_norm()).and_then(|()| op.sums(op.dtype != DType::F32)),
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, _| {
        let product = kernel(PRODUCT, op.dtype);
        Unit { also: op.delta.iter().map(|_| kernel(SHRINK, op.dtype)).collect(), ..if is_wide(op) { widened(product) } else { product } }
    },
    units: |_: Arch| {
        let own = [PRODUCT, SHRINK].into_iter().flat_map(|entry| DType::ALL.map(|dtype| kernel(entry, dtype)));
        listed(own.chain(HALVES.map(|dtype| widened(kernel(PRODUCT, dtype)))), [])
    },
    workspace: |op, _| op.delta.as_ref().map_or(0, |delta| op.tokens * delta.slices[0].rank * 4),
    launch,
};

params! {
    /// Parameters of both kernels.
    LinearParams {
        x: [const element],
        w: [const element],
        bias: [const element],
        residual: [const element],
        y: [element],
        rows: u64,
        columns: u64,
        depth: u64,
        x_stride: u64,
        w_stride: u64,
        /// The adapter of each token for the delta, or null.
        token_adapter: [const i32],
        scaling: [const f32],
        core: [const f32],
        shrunk: [f32],
        input: FactorParams,
        output: FactorParams,
        activation: u32,
        unused: u32,
    }
}

/// The kernels: `SHRINK` leaves s·h·Q of each token in the workspace, and `PRODUCT` is the product.
const SHRINK: Entry = entry!("linear_shrink");
const PRODUCT: Entry = entry!("linear_simt");

fn kernel(entry: Entry, dtype: DType) -> Unit {
    entry.alone(Unit {
        headers: vec![factor_header(), ("gemm/linear_params.cuh", LinearParams::cuda())],
        defines: vec![("ELEMENT", dtype.name().into())],
        ..Unit::new(format!("{} {dtype}", entry.name()), source!("gemm/simt.cu"))
    })
}

/// The kernels' parameters, with the factors of the delta, if there is one.
fn linear_params(op: &Linear, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> LinearParams {
    let mut params = LinearParams {
        x: address(&args.x),
        w: address(&args.w),
        bias: address_of(args.bias.as_ref()),
        residual: address_of(args.residual.as_ref()),
        y: address(&args.y),
        rows: op.tokens,
        columns: op.d_out,
        depth: op.d_in,
        x_stride: op.x_stride,
        w_stride: op.w_stride,
        token_adapter: 0,
        scaling: 0,
        core: 0,
        shrunk: address(workspace),
        input: FactorParams::NONE,
        output: FactorParams::NONE,
        activation: activation_code(op.activation),
        unused: 0,
    };
    if let (Some(delta), Some(own)) = (&op.delta, &args.delta) {
        let (slice, of) = (&delta.slices[0], &own.slices[0]);
        params.token_adapter = adapter_of_token(&own.token_adapter);
        params.scaling = address(&own.scaling);
        params.core = address_of(of.core.as_ref());
        params.input = factor(slice.input, &of.input, op.d_in, slice.rank);
        params.output = factor(slice.output, &of.output, op.d_out, slice.rank);
    }
    params
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let params = linear_params(op, workspace, args);
    if op.delta.is_some() {
        // SAFETY: the caller's promise; the workspace holds a row of f32 for each token.
        unsafe { plan.launch(queue, SHRINK.name(), &Launch::new(blocks(params.rows), 256), &params)? };
    }
    let tiles = op.tokens.div_ceil(SIMT_TILE) * op.d_out.div_ceil(SIMT_TILE);
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, PRODUCT.name(), &Launch::new(blocks(tiles), 256), &params) }
}
