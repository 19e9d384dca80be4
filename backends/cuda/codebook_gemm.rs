//! `codebook_gemm` on CUDA, and what the adapters' factors look like to a kernel.

use super::jit::{Arch, Unit, source};
use super::kernel::{Launch, Plan, RunsOn, Table, TensorCores, Variant, address, address_of, blocks, names};
use super::params::params;
use super::{Cuda, Queue, adapter_basis, codebook_gemm_joint, codebook_gemm_runs, codebook_gemm_runs_sm80, codebook_gemm_segments, codebook_gemm_tile};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::codebook_gemm::{Factor, FactorArgs, ScaledBy};
use crate::ops::index::{Index, TokenAdapters};
use crate::ops::{CodebookGemm, CodebookGemmArgs};

impl Table for CodebookGemm {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { VARIANTS.len() }>(&VARIANTS);

    fn prepared_bytes(plan: &Plan<Self>) -> u64 {
        adapter_basis::prepared_bytes(plan)
    }

    unsafe fn prepare(queue: &mut Queue, plan: &Plan<Self>, prepared: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { adapter_basis::unpack(queue, plan, prepared, args) }
    }
}

const VARIANTS: [Variant<CodebookGemm>; 7] = [
    codebook_gemm_joint::JOINT,
    codebook_gemm_runs_sm80::RUNS_SM80,
    codebook_gemm_runs::RUNS,
    codebook_gemm_segments::SEGMENTS,
    codebook_gemm_tile::SM90,
    codebook_gemm_tile::SM80,
    SIMT,
];

const SIMT: Variant<CodebookGemm> = Variant {
    name: "simt",
    label: "codebook_gemm/simt",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::Without("a block takes one token: the few-rows form, and f32"),
    covers: |_, _| Ok(()),
    unit: |op, _| unit(op.dtype),
    units: |_: Arch| DType::ALL.map(unit).into(),
    workspace: |_, _| 0,
    launch,
};

params! {
    /// A factor of compressed adapters: dense (`values`, `basis_of`) or coded (`codes`, `codebooks`).
    FactorParams {
        values: [const element],
        basis_of: [const i32],
        codes: [const u32],
        codebooks: [const f32],
        d: u64,
        rank: u32,
        coded: u32,
        /// Of a field; 255 where every column names its own.
        bits: u32,
        words_per_adapter: u32,
    }
}

impl FactorParams {
    /// Where an operation has no adapters.
    pub(super) const NONE: Self = Self { values: 0, basis_of: 0, codes: 0, codebooks: 0, d: 0, rank: 0, coded: 0, bits: 0, words_per_adapter: 0 };
}

/// The header that `kernels/tile/codes.cuh` includes.
pub(super) fn factor_header() -> (&'static str, String) {
    ("tile/factor.cuh", FactorParams::cuda())
}

/// `d` rows and `rank` columns, given as `args`.
pub(super) fn factor(factor: Factor, args: &FactorArgs<Cuda>, d: u64, rank: u64) -> FactorParams {
    let common = FactorParams { d, rank: rank as u32, ..FactorParams::NONE };
    match (factor, args) {
        (Factor::Coded { width, words_per_adapter }, FactorArgs::Coded { codes, codebooks }) => FactorParams {
            codes: address(codes.slice()),
            codebooks: address(codebooks),
            coded: 1,
            bits: width.map_or(255, |width| width.bits()),
            words_per_adapter,
            ..common
        },
        (_, FactorArgs::Dense { values, basis_of }) => {
            FactorParams { values: address(values), basis_of: address_of(basis_of.as_ref().map(|index| index.slice())), ..common }
        }
        // `check` has refused the other pairings.
        (_, FactorArgs::Coded { .. }) => common,
    }
}

params! {
    /// Of one slice.
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
        /// The scaling is each token's own.
        scaled_by_token: u32,
    }
}

/// Where each token's adapter stands in the words of the index: behind two counts.
pub(super) fn adapter_of_token(index: &Index<TokenAdapters, Cuda>) -> u64 {
    address(index.slice()) + 8
}

/// As kernels take it.
pub(super) fn scaled_by_token(op: &CodebookGemm) -> u32 {
    u32::from(op.scaled_by == ScaledBy::Token)
}

/// Columns of y that a block of `kernels/codebook_gemm/simt.cu` takes.
const OUTPUTS: u64 = 1024;

fn unit(dtype: DType) -> Unit {
    Unit {
        name: format!("codebook_gemm/simt {dtype}"),
        source: source!("codebook_gemm/simt.cu"),
        headers: vec![factor_header(), ("codebook_gemm/params.cuh", CodebookGemmParams::cuda())],
        defines: vec![("ELEMENT", dtype.name().into())],
        entries: &["codebook_gemm_simt"],
        shared_bytes: 0,
        also: Vec::new(),
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
