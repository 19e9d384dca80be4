//! SGMV without tensor cores: the variant of `codebook_gemm` for many tokens of few adapters, as sentences of a batch have.

use super::choose::few_adapters;
use super::entry::{Entry, entry, together};
use super::factor::{FactorParams, adapter_of_token, factor, factor_header, scaled_by_token};
use super::launch::overlaps;
use crate::backends::cuda::jit::{Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, address, address_of, blocks};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{CodebookGemm, CodebookGemmArgs};

pub(crate) const SGMV_SIMT: Variant<CodebookGemm> = Variant {
    name: "sgmv_simt",
    label: "codebook_gemm/sgmv_simt",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::Without("ranks are small: x and y take longer to move than to multiply"),
    supports,
    suits: few_adapters,
    configs: None,
    unit: |op, _| plan_unit(op.dtype, rank_of(op)),
    units: |_| {
        let forms = DType::ALL.into_iter().flat_map(|dtype| RANKS.map(|rank| (dtype, rank)));
        forms.flat_map(|(dtype, rank)| [SHRINK, EXPAND].map(|entry| unit(entry, dtype, rank))).collect()
    },
    workspace: |op, _| op.tokens * rank_of(op) * 4,
    launch,
};

params! {
    /// Parameters of both kernels.
    SgmvSimtParams {
        x: [const element],
        y: [element],
        token_adapter: [const i32],
        scaling: [const f32],
        core: [const f32],
        shrunk: [f32],
        tokens: u64,
        x_stride: u64,
        y_stride: u64,
        input: FactorParams,
        output: FactorParams,
        accumulate: u32,
        /// Whether rows of x are whole multiples of 16 bytes; then whether rows of y are whole multiples of what a thread writes.
        x_vector: u32,
        y_vector: u32,
        /// Whether each token has a scaling of its own.
        scaled_by_token: u32,
    }
}

/// Columns of both factors that the kernels are compiled for.
const RANKS: [u64; 3] = [8, 16, 32];
/// Constants of `kernels/codebook_gemm/sgmv_simt.cu`.
const TOKENS: u64 = 64;
const SHRINK_THREADS: u32 = 256;
const EXPAND_THREADS: u32 = 96;

fn rank_of(op: &CodebookGemm) -> u64 {
    let rank = op.slices.iter().map(|slice| slice.rank).max().unwrap_or(0);
    RANKS.into_iter().find(|&padded| rank <= padded).unwrap_or(rank)
}

/// Columns of y that a thread takes.
const fn columns(rank: u64, size: u64) -> u64 {
    if rank * size <= 32 { 4 } else { 2 }
}

fn supports(op: &CodebookGemm, _target: &Target) -> std::result::Result<(), String> {
    let rank = rank_of(op);
    if !RANKS.contains(&rank) {
        return Err(format!("rank {rank}, more than a thread's registers take of columns, {}", RANKS[RANKS.len() - 1]));
    }
    Ok(())
}

const SHRINK: Entry = entry!("codebook_gemm_shrink");
const EXPAND: Entry = entry!("codebook_gemm_expand");

/// The units of both kernels. Every launch has one after the other.
fn plan_unit(dtype: DType, rank: u64) -> Unit {
    together(SHRINK, [EXPAND], |entry| unit(entry, dtype, rank))
}

fn unit(entry: Entry, dtype: DType, rank: u64) -> Unit {
    let base = Unit {
        headers: vec![factor_header(), ("codebook_gemm/sgmv_simt_params.cuh", SgmvSimtParams::cuda())],
        defines: vec![("ELEMENT", dtype.name().into()), ("RANK", rank.to_string())],
        ..Unit::new(format!("codebook_gemm/sgmv_simt {dtype} rank {rank}"), source!("codebook_gemm/sgmv_simt.cu"))
    };
    entry.unit(base, "codebook_gemm", 0)
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<CodebookGemm>, workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let (op, rank) = (&plan.op, rank_of(&plan.op));
    let size = op.dtype.size();
    let overlap = overlaps(plan);
    for (slice, of) in op.slices.iter().zip(&args.slices) {
        let (x, y, whole) = (address(&args.x), address(&of.y), columns(rank, size));
        let params = SgmvSimtParams {
            x,
            y,
            token_adapter: adapter_of_token(&args.token_adapter),
            scaling: address(&args.scaling),
            core: address_of(of.core.as_ref()),
            shrunk: address(workspace),
            tokens: op.tokens,
            x_stride: op.x_stride,
            y_stride: slice.y_stride,
            input: factor(slice.input, &of.input, op.d_in, slice.rank),
            output: factor(slice.output, &of.output, slice.d_out, slice.rank),
            accumulate: u32::from(op.accumulate),
            x_vector: u32::from([x, op.x_stride * size, op.d_in * size].iter().all(|place| place.is_multiple_of(16))),
            y_vector: u32::from([y, slice.y_stride * size, slice.d_out * size].iter().all(|place| place.is_multiple_of(whole * size))),
            scaled_by_token: scaled_by_token(op),
        };
        let tiles = op.tokens.div_ceil(TOKENS);
        let across = slice.d_out.div_ceil(u64::from(EXPAND_THREADS) * whole);
        // SAFETY: the caller's promise; the workspace holds a row of f32 for each token. Both kernels have a PDL wait before they read.
        unsafe {
            plan.launch(queue, SHRINK.name(), &Launch { overlap, ..Launch::new(blocks(tiles), SHRINK_THREADS) }, &params)?;
            plan.launch(queue, EXPAND.name(), &Launch { overlap, ..Launch::new(blocks(tiles * across), EXPAND_THREADS) }, &params)?;
        }
    }
    Ok(())
}
