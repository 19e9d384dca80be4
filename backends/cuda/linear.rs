//! `linear` on CUDA.

use super::codebook_gemm::{FactorParams, adapter_of_token, factor, factor_header};
use super::jit::{Arch, Unit, source};
use super::kernel::{Launch, Plan, RunsOn, Table, TensorCores, Variant, address, address_of, blocks, names};
use super::params::params;
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Activation, CodebookGemm, Linear, LinearArgs};

impl Table for Linear {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { VARIANTS.len() }>(&VARIANTS);

    /// The adapters' part, which the tensor-core variants find in y.
    fn delta(&self, variant: &Variant<Self>) -> Option<CodebookGemm> {
        let delta = self.delta.as_ref().filter(|_| variant.name != SIMT.name)?;
        Some(CodebookGemm { accumulate: false, ..delta.clone() })
    }
}

const VARIANTS: [Variant<Linear>; 11] = [
    super::linear_norm::NORM,
    super::linear_stream_adapted::ADAPTED,
    super::linear_ahead::AHEAD,
    super::linear_stream::STREAM,
    super::linear_short::SHORT,
    super::linear_across::ACROSS,
    super::linear_stationary::STATIONARY,
    super::linear_tensor::SM90,
    super::linear_rows::ROWS,
    super::linear_tensor::SM80,
    SIMT,
];

const SIMT: Variant<Linear> = Variant {
    name: "simt",
    label: "linear/simt",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::Without("it serves f32 and every size; the tensor cores round f32 to 11 bits"),
    covers: |op, _| op.one_slice().and_then(|()| op.no_norm()),
    unit: |op, _| unit(op.dtype),
    units: |_: Arch| DType::ALL.map(unit).into(),
    workspace: |op, _| op.delta.as_ref().map_or(0, |delta| op.tokens * delta.slices[0].rank * 4),
    launch,
};

params! {
    /// Of both kernels.
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
        /// Of the delta: the adapter of each token, or null.
        token_adapter: [const i32],
        scaling: [const f32],
        core: [const f32],
        projected: [f32],
        input: FactorParams,
        output: FactorParams,
        activation: u32,
        unused: u32,
    }
}

/// The numbers of `kernels/tile/activation.cuh`.
pub(super) fn activation_code(activation: Option<Activation>) -> u32 {
    match activation {
        None => 0,
        Some(Activation::GeluTanh) => 1,
        Some(Activation::GeluErf) => 2,
        Some(Activation::Silu) => 3,
        Some(Activation::Relu) => 4,
    }
}

/// Rows, and columns, of a block's tile in `kernels/tile/gemm.cuh`.
pub(super) const TILE: u64 = 64;

fn unit(dtype: DType) -> Unit {
    Unit {
        name: format!("linear/simt {dtype}"),
        source: source!("linear/simt.cu"),
        headers: vec![factor_header(), ("linear/params.cuh", LinearParams::cuda())],
        defines: vec![("ELEMENT", dtype.name().into())],
        entries: &["linear_project", "linear_simt"],
        shared_bytes: 0,
        also: Vec::new(),
    }
}

/// With the factors of the delta, if there is one.
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
        projected: address(workspace),
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
        unsafe { plan.launch(queue, "linear_project", &Launch::new(blocks(params.rows), 256), &params)? };
    }
    let tiles = op.tokens.div_ceil(TILE) * op.d_out.div_ceil(TILE);
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, "linear_simt", &Launch::new(blocks(tiles), 256), &params) }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::Target;
    use super::*;
    use crate::ops::CodeWidth;

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10 };
    const RTX3090: Target = Target { arch: Arch(86), units: 82, shared_bytes: 99 << 10 };

    /// The variant that is taken, and its workspace.
    fn taken(op: &Linear, target: &Target) -> Option<(&'static str, u64)> {
        let fits = |variant: &&Variant<Linear>| variant.runs_on.accept(target.arch).is_ok() && (variant.covers)(op, target).is_ok();
        VARIANTS.iter().find(fits).map(|variant| (variant.name, (variant.workspace)(op, target)))
    }

    #[test]
    fn few_rows_take_their_adapters_along() {
        let adapted = |tokens: u64, d_in: u64| {
            let delta = CodebookGemm::s2lc(DType::F16, tokens, [d_in, 4096, 16], 16, CodeWidth::FourThree);
            taken(&Linear { delta: Some(delta), ..Linear::new(DType::F16, [tokens, 4096, d_in]) }, &H200)
        };
        assert_eq!(adapted(16, 4096), Some(("sm90_stream_adapted", 0)));
        assert_eq!(adapted(33, 4096), Some(("sm90_stream", 0)));
        assert_eq!(adapted(16, 4092).map(|(name, _)| name), Some("sm80_rows"));
    }

    #[test]
    fn weights_packed_at_load_are_streamed_and_take_no_workspace() {
        // What is copied lies in the workspace: W never, X where its rows start anywhere.
        for (rows, packed, padded, copied) in
            [(1, "sm80_rows", "sm90_stream", 0), (16, "sm80_rows", "sm90_stream", 16), (64, "sm90_stream", "sm90_stream", 64), (2048, "sm90", "sm90", 2048)]
        {
            let op = Linear::new(DType::F16, [rows, 4096, 4095]);
            let whole = if rows < 17 { 0 } else { rows + 4096 };
            assert_eq!(taken(&op, &H200), Some((packed, whole * 8192)), "{rows} rows");
            let op = op.with_padded_weights();
            assert_eq!(taken(&op, &H200), Some((padded, copied * 8192)), "{rows} rows, w padded");
            assert_eq!(taken(&Linear { x_stride: 4096, ..op }, &H200), Some((padded, 0)), "{rows} rows, both padded");
        }
        for (rows, name, copied) in [(1, "sm80_rows", 0), (8, "sm80_rows", 0), (17, "sm80", 17), (2048, "sm80", 2048)] {
            let op = Linear::new(DType::F16, [rows, 4096, 4095]).with_padded_weights();
            assert_eq!(taken(&op, &RTX3090), Some((name, copied * 8192)), "{rows} rows");
        }
        let short = Linear { x_stride: 376, ..Linear::new(DType::BF16, [4096, 1536, 371]).with_padded_weights() };
        assert_eq!(taken(&short, &H200), Some(("sm90_stationary", 0)));
    }
}
