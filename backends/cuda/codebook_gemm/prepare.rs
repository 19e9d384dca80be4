//! Adapters in the form that a product takes: decoded output factors, and h of each token, or the input factor with which a product
//! computes h.

use super::choose::few_adapters_in_product;
use super::launch::overlaps;
use super::long_tile::{
    ALIGN, DEPTH, GROUP, LEAST_ROWS, NAME, RANKS, SHRINK_WARPS, SgmvLongParams, TOGETHER, UNPACK, aligned, bytes, decoding_bytes, group_params, parts, rank_of,
    shrink, supports,
};
use crate::backend::Kernel;
use crate::backends::cuda::gemm::lora::{AdapterSlice, AdapterSums};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, Target, address, blocks, range};
use crate::device::Slice;
use crate::error::{Result, ensure};
use crate::ops::{CodebookGemm, CodebookGemmArgs};

/// Whether a product can compute a delta along with its own sums, or why not. The delta's plan is then of [`NAME`], whose
/// factors are prepared.
pub(crate) fn prepares(delta: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    // The target's configuration is the product's.
    let target = &Target { config: None, ..*target };
    supports(delta, target).and_then(|()| few_adapters_in_product(delta, target))
}

/// Bytes that [`unpack`] writes for a plan; 0 for a plan of another variant.
pub(crate) fn prepared_bytes(plan: &Plan<CodebookGemm>) -> u64 {
    if <Cuda as Kernel<CodebookGemm>>::variant(plan) == NAME { bytes(&plan.op) } else { 0 }
}

/// The parameters with [`unpack`]'s result at `place`.
fn unpacked(plan: &Plan<CodebookGemm>, args: &CodebookGemmArgs<Cuda>, mut place: u64) -> SgmvLongParams {
    let op = &plan.op;
    let slices: Vec<_> = op.slices.iter().zip(&args.slices).collect();
    let mut params = group_params(plan, args, &slices, 0);
    for (of, slice) in params.slices.iter_mut().zip(&op.slices) {
        let [factors, basis, scales] = parts(op, slice);
        (of.shrunk, of.token_scale) = (0, 0);
        (of.fragments, of.basis, of.table_scale) = (place, place + factors, place + factors + basis);
        place += factors + basis + scales;
    }
    for of in &mut params.slices[op.slices.len()..] {
        of.decoding = 0;
    }
    params
}

/// Writes to `to` what a product takes of adapters for any tokens.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
pub(crate) unsafe fn unpack(queue: &mut Queue, plan: &Plan<CodebookGemm>, to: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    if prepared_bytes(plan) == 0 {
        return Ok(());
    }
    let params = unpacked(plan, args, address(to));
    let turning = op.slices.len() as u64 * op.d_in.div_ceil(DEPTH);
    let launch =
        Launch { shared_bytes: decoding_bytes(RANKS[0]), overlap: overlaps(plan), ..Launch::new(params.decoding + blocks(turning), SHRINK_WARPS as u32 * 32) };
    // SAFETY: the caller's promise; the kernel's PDL wait stands before its first write.
    unsafe { plan.launch(queue, UNPACK.name(), &launch, &params) }
}

/// What a product with tiles of `tile` columns needs to compute h itself. Where it has not been prepared, that is enqueued first. `None`,
/// with nothing enqueued, where adapters are not of that form.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
pub(crate) unsafe fn with_basis(
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

/// Enqueues the shrink kernel alone, for a product with tiles of `tile` columns that adds `h·(O·Qᵀ)ᵀ` to its sums itself. `None`, with
/// nothing enqueued, where the product could not read the plan's result.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
pub(crate) unsafe fn shrunk(
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
    if <Cuda as Kernel<CodebookGemm>>::variant(plan) != NAME || !readable || rank_of(op) != RANKS[0] {
        return Ok(None);
    }
    let params = group_params(plan, args, &slices, address(workspace));
    // SAFETY: the caller's promise.
    unsafe { shrink(queue, plan, &params, slices.len(), aligned(op, args))? };
    if overlaps(plan) {
        queue.leave_open(range(workspace).into());
    }
    Ok(Some(sums(op, &params)))
}

fn sums(op: &CodebookGemm, params: &SgmvLongParams) -> AdapterSums {
    let columns = op.slices[0].d_out;
    AdapterSums {
        token_adapter: params.token_adapter,
        columns: columns as u32,
        groups: columns.div_ceil(GROUP) as u32,
        slices: params.slices.map(|of| AdapterSlice {
            shrunk: of.shrunk,
            token_scale: of.token_scale,
            fragments: of.fragments,
            table_scale: of.table_scale,
            basis: of.basis,
        }),
    }
}
