//! `codebook_gemm` without tensor cores: every form, dtype and rank.

use super::factor::{FactorParams, adapter_of_token, factor, factor_header, scaled_by_token};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, TensorCores, Variant, address, address_of, blocks};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{CodebookGemm, CodebookGemmArgs};

pub(crate) const SIMT: Variant<CodebookGemm> = Variant {
    name: "simt",
    label: "codebook_gemm/simt",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::Without("a block takes one token: the few-rows form, and f32"),
    supports: |_, _| Ok(()),
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, _| unit(op.dtype),
    units: |_: Arch| DType::ALL.map(unit).into(),
    workspace: |_, _| 0,
    launch,
};

params! {
    /// Parameters of one slice.
    CodebookGemmParams {
        x: [const element],
        y: [element],
        token_adapter: [const i32],
        scaling: [const f32],
        core: [const f32],
        tokens: u64,
        x_stride: u64,
        y_stride: u64,
        input: FactorParams,
        output: FactorParams,
        accumulate: u32,
        /// Whether each token has a scaling of its own.
        scaled_by_token: u32,
    }
}

/// Columns of y that a block of `kernels/codebook_gemm/simt.cu` takes.
const OUTPUTS: u64 = 1024;

fn unit(dtype: DType) -> Unit {
    Unit {
        headers: vec![factor_header(), ("codebook_gemm/params.cuh", CodebookGemmParams::cuda())],
        defines: vec![("ELEMENT", dtype.name().into())],
        entries: &["codebook_gemm_simt"],
        ..Unit::new(format!("codebook_gemm/simt {dtype}"), source!("codebook_gemm/simt.cu"))
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<CodebookGemm>, _workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    for (slice, of) in op.slices.iter().zip(&args.slices) {
        let params = CodebookGemmParams {
            x: address(&args.x),
            y: address(&of.y),
            token_adapter: adapter_of_token(&args.token_adapter),
            scaling: address(&args.scaling),
            core: address_of(of.core.as_ref()),
            tokens: op.tokens,
            x_stride: op.x_stride,
            y_stride: slice.y_stride,
            input: factor(slice.input, &of.input, op.d_in, slice.rank),
            output: factor(slice.output, &of.output, slice.d_out, slice.rank),
            accumulate: u32::from(op.accumulate),
            scaled_by_token: scaled_by_token(op),
        };
        let grid = blocks(op.tokens * slice.d_out.div_ceil(OUTPUTS));
        // SAFETY: the caller's promise.
        unsafe { plan.launch(queue, "codebook_gemm_simt", &Launch::new(grid, 256), &params)? };
    }
    Ok(())
}
