//! What a product takes of adapters so as to add their part to its sums itself (`kernels/tile/adapter_sums.cuh`): their output factors,
//! decoded, and of each token h, or the input factor to make it of.

use super::codebook_gemm_runs::overlaps;
use super::codebook_gemm_runs_sm80::{
    ALIGN, GROUP, LEAST_ROWS, PROJECT_WARPS, RANKS, RUNS_SM80, RunsMmaParams, TOGETHER, aligned, decoding_bytes, group_params, project, rank_of,
};
use super::gemm::GemmParams;
use super::kernel::{Launch, Plan, address, blocks, range};
use super::params::params;
use super::{Cuda, Queue};
use crate::backend::Kernel;
use crate::device::Slice;
use crate::error::{Result, ensure};
use crate::ops::codebook_gemm::{CodebookSlice, Factor};
use crate::ops::{CodebookGemm, CodebookGemmArgs};

params! {
    /// Of a slice, what `kernels/tile/adapter_sums.cuh` reads.
    AdapterSlice {
        projected: [const element],
        token_scale: [const f32],
        fragments: [const u32],
        table_scale: [const f32],
        basis: [const element],
    }
}

params! {
    /// What a product reads to add what adapters do to its sums.
    AdapterSums {
        token_adapter: [const i32],
        /// Of each slice, all alike; and groups of 32 of them.
        columns: u32,
        groups: u32,
        slices: [AdapterSlice; 3],
    }
}

params! {
    /// Of a product with what adapters add.
    AdaptedParams {
        gemm: GemmParams,
        sums: AdapterSums,
    }
}

/// The headers of [`AdaptedParams`], beside that of the product.
pub(super) fn adapted_headers() -> Vec<(&'static str, String)> {
    vec![adapter_header(), ("linear/adapted_params.cuh", AdaptedParams::cuda())]
}

/// The header of [`AdapterSums`].
pub(super) fn adapter_header() -> (&'static str, String) {
    ("tile/adapter_params.cuh", [AdapterSlice::cuda(), AdapterSums::cuda()].concat())
}

/// Elements of K, and bytes, of what a step of a product reads of an input factor.
const DEPTH: u64 = 64;
const STEP_BYTES: u64 = DEPTH * 16 * 2;

/// Bytes of a slice's output factors, of its input factor and of its scales, in this order.
fn parts(op: &CodebookGemm, slice: &CodebookSlice) -> [u64; 3] {
    let adapters = u64::from(op.adapters);
    [adapters * slice.d_out * RANKS[0] * 2, op.d_in.div_ceil(DEPTH) * STEP_BYTES, (adapters * 4).next_multiple_of(ALIGN)]
}

/// Whether one input factor serves all adapters, and their output factors are codes: a product then makes h itself, and multiplies rows of
/// other adapters by zeros, which is right where decoding has seen to it that every factor is finite.
pub(super) fn has_basis(op: &CodebookGemm) -> bool {
    let one = |slice: &CodebookSlice| {
        matches!((slice.input, slice.output), (Factor::Dense { bases: 1 }, Factor::Coded { .. }))
            && slice.d_out.is_multiple_of(GROUP)
            && slice.d_out == op.slices[0].d_out
    };
    matches!(op.slices.len(), 1 | TOGETHER) && rank_of(op) == RANKS[0] && op.slices.iter().all(one)
}

/// Bytes of what [`unpack`] leaves.
pub(super) fn bytes(op: &CodebookGemm) -> u64 {
    if has_basis(op) { op.slices.iter().map(|slice| parts(op, slice).iter().sum::<u64>()).sum() } else { 0 }
}

/// The same of a plan; 0 for one of another variant.
pub(super) fn prepared_bytes(plan: &Plan<CodebookGemm>) -> u64 {
    if <Cuda as Kernel<CodebookGemm>>::variant(plan) == RUNS_SM80.name { bytes(&plan.op) } else { 0 }
}

/// With what [`unpack`] leaves at `place`.
fn unpacked(plan: &Plan<CodebookGemm>, args: &CodebookGemmArgs<Cuda>, mut place: u64) -> RunsMmaParams {
    let op = &plan.op;
    let slices: Vec<_> = op.slices.iter().zip(&args.slices).collect();
    let mut params = group_params(plan, args, &slices, 0);
    for (of, slice) in params.slices.iter_mut().zip(&op.slices) {
        let [factors, basis, scales] = parts(op, slice);
        (of.projected, of.token_scale) = (0, 0);
        (of.fragments, of.basis, of.table_scale) = (place, place + factors, place + factors + basis);
        place += factors + basis + scales;
    }
    for of in &mut params.slices[op.slices.len()..] {
        of.decoding = 0;
    }
    params
}

/// Leaves at `to` what a product takes that does not depend on tokens.
///
/// # Safety
/// As [`Plan::launch`].
pub(super) unsafe fn unpack(queue: &mut Queue, plan: &Plan<CodebookGemm>, to: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    if prepared_bytes(plan) == 0 {
        return Ok(());
    }
    let params = unpacked(plan, args, address(to));
    let turning = op.slices.len() as u64 * op.d_in.div_ceil(DEPTH);
    let launch =
        Launch { shared_bytes: decoding_bytes(RANKS[0]), overlap: overlaps(plan), ..Launch::new(params.decoding + blocks(turning), PROJECT_WARPS as u32 * 32) };
    // SAFETY: the caller's promise; the kernel waits before it writes.
    unsafe { plan.launch(queue, "codebook_gemm_unpack", &launch, &params) }
}

/// What a product needs to make h itself, whose tiles are `tile` columns wide; put into the queue first where it is not prepared. `None`,
/// and nothing is done, where adapters are not of that form.
///
/// # Safety
/// As [`Plan::launch`].
pub(super) unsafe fn with_basis(
    queue: &mut Queue,
    plan: &Plan<CodebookGemm>,
    workspace: &Slice<Cuda>,
    args: &CodebookGemmArgs<Cuda>,
    tile: u64,
) -> Result<Option<AdapterSums>> {
    let op = &plan.op;
    let needed = prepared_bytes(plan);
    if needed == 0 || (op.slices.len() > 1 && !op.slices[0].d_out.is_multiple_of(tile)) {
        return Ok(None);
    }
    let place = match &args.prepared {
        Some(prepared) => {
            ensure(prepared.len == needed && address(prepared).is_multiple_of(ALIGN), "prepared", format_args!("{needed} bytes, of this plan"), prepared.len)?;
            prepared
        }
        None => {
            // SAFETY: the caller's promise; the workspace has room for it.
            unsafe { unpack(queue, plan, workspace, args)? };
            workspace
        }
    };
    Ok(Some(sums(op, &unpacked(plan, args, address(place)))))
}

/// The projection alone, for a product that adds `h·(O·Qᵀ)ᵀ` to its sums itself, whose tiles are `tile` columns wide; `None`, and nothing
/// is done, where what the plan leaves is not what it could read.
///
/// # Safety
/// As [`Plan::launch`].
pub(super) unsafe fn projected(
    queue: &mut Queue,
    plan: &Plan<CodebookGemm>,
    workspace: &Slice<Cuda>,
    args: &CodebookGemmArgs<Cuda>,
    tile: u64,
) -> Result<Option<AdapterSums>> {
    let op = &plan.op;
    let slices: Vec<_> = op.slices.iter().zip(&args.slices).collect();
    let columns = op.slices.first().map_or(0, |slice| slice.d_out);
    let readable = match slices.len() {
        1 => true,
        TOGETHER => op.d_in <= LEAST_ROWS && aligned(op, args) && columns.is_multiple_of(tile) && op.slices.iter().all(|slice| slice.d_out == columns),
        _ => false,
    };
    if <Cuda as Kernel<CodebookGemm>>::variant(plan) != RUNS_SM80.name || !readable || rank_of(op) != RANKS[0] {
        return Ok(None);
    }
    let params = group_params(plan, args, &slices, address(workspace));
    // SAFETY: the caller's promise.
    unsafe { project(queue, plan, &params, slices.len(), aligned(op, args))? };
    if overlaps(plan) {
        queue.leave_open(range(workspace).into());
    }
    Ok(Some(sums(op, &params)))
}

fn sums(op: &CodebookGemm, params: &RunsMmaParams) -> AdapterSums {
    let columns = op.slices[0].d_out;
    AdapterSums {
        token_adapter: params.token_adapter,
        columns: columns as u32,
        groups: columns.div_ceil(GROUP) as u32,
        slices: params.slices.map(|of| AdapterSlice {
            projected: of.projected,
            token_scale: of.token_scale,
            fragments: of.fragments,
            table_scale: of.table_scale,
            basis: of.basis,
        }),
    }
}
