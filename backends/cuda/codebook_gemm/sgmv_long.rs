//! SGMV for long segments: the variant of `codebook_gemm` for many tokens of few adapters on the tensor cores. It takes a dense input
//! factor, f16 and bf16.

use super::choose::{few_adapters, long_way};
use super::entry::{Entry, entry, together};
use super::launch::{Slices, overlaps};
use super::long_tile::{
    LongWay, NAME, RANKS, ROWS, Room, SHRINK, SHRINK_3, SHRINK_ANY, STRIP, SgmvLongParams, UNPACK, aligned, bytes, group_params, may_be_aligned, may_be_whole,
    rank_of, shrink, shrink_kernel, supports, unit,
};
use crate::backends::cuda::gemm::problem::HALVES;
use crate::backends::cuda::jit::Unit;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, TensorCores, Variant, address, blocks, number, range};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{CodebookGemm, CodebookGemmArgs};

pub(crate) const SGMV_LONG: Variant<CodebookGemm> = Variant {
    name: NAME,
    label: "codebook_gemm/sgmv_long",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: few_adapters,
    configs: Some(Configs { names: |_| LongWay::ALL.map(|way| way.name().into()).into(), choose: |op, _| number(LongWay::ALL.into_iter(), &long_way(op)) }),
    unit: |op, target| plan_unit(op, LongWay::of(target)),
    units: |_| units(),
    workspace: |op, _| op.slices.iter().map(|slice| Room::of(op, slice).bytes()).sum::<u64>().max(bytes(op)),
    launch,
};

/// Warps of a block of the expand kernel, in `kernels/codebook_gemm/sgmv_long.cu`.
const EXPAND_WARPS: u64 = 4;

const EXPAND: Entry = entry!("codebook_gemm_expand");
const EXPAND_ADD: Entry = entry!("codebook_gemm_expand_add");
const EXPAND_ANY: Entry = entry!("codebook_gemm_expand_any");
const EXPAND_ANY_ADD: Entry = entry!("codebook_gemm_expand_any_add");

/// The expand kernel, by whether rows of y are `whole` multiples of 16 bytes, and whether it adds to y.
const fn expand_kernel(whole: bool, accumulate: bool) -> Entry {
    match (whole, accumulate) {
        (true, false) => EXPAND,
        (true, true) => EXPAND_ADD,
        (false, false) => EXPAND_ANY,
        (false, true) => EXPAND_ANY_ADD,
    }
}

fn plan_unit(op: &CodebookGemm, way: Option<LongWay>) -> Unit {
    let mut kernels = vec![expand_kernel(false, op.accumulate)];
    let quick = way != Some(LongWay::Any);
    if quick && op.slices.iter().any(may_be_whole) {
        kernels.push(expand_kernel(true, op.accumulate));
    }
    if quick && may_be_aligned(op) {
        let together = LongWay::at_once(way, op, true);
        let rest = if op.slices.len() >= together { op.slices.len() % together } else { op.slices.len() };
        kernels.extend((rest > 0 || together == 1).then_some(shrink_kernel(1, true)));
        kernels.extend((op.slices.len() >= together).then_some(shrink_kernel(together, true)));
    }
    // This kernel is for a product that computes h itself.
    kernels.extend((bytes(op) > 0).then_some(UNPACK));
    together(SHRINK_ANY, kernels, |entry| unit(entry, op.dtype, rank_of(op)))
}

/// The units of the kernels with tensor cores, and of the one that prepares factors beside them.
fn units() -> Vec<Unit> {
    let mut units = Vec::new();
    for (&dtype, rank) in HALVES.iter().flat_map(|dtype| RANKS.map(|rank| (dtype, rank))) {
        let least = rank == RANKS[0];
        let kernels = [SHRINK, EXPAND, EXPAND_ADD, EXPAND_ANY, EXPAND_ANY_ADD].into_iter().chain(least.then_some(SHRINK_3));
        units.push(together(SHRINK_ANY, least.then_some(UNPACK), |entry| unit(entry, dtype, rank)));
        units.extend(kernels.map(|entry| unit(entry, dtype, rank)));
    }
    units
}

/// Enqueues the expand kernel.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
unsafe fn expand(queue: &mut Queue, plan: &Plan<CodebookGemm>, params: &SgmvLongParams, group: &Slices<'_>) -> Result<()> {
    let op = &plan.op;
    let quick = LongWay::of(&plan.target) != Some(LongWay::Any);
    let whole = quick && group.iter().all(|(slice, of)| address(&of.y).is_multiple_of(16) && may_be_whole(slice));
    let strips = group.iter().map(|(slice, _)| slice.d_out.div_ceil(STRIP)).max().unwrap_or(0);
    let across = blocks((op.tokens.div_ceil(ROWS) * strips).div_ceil(EXPAND_WARPS));
    let launch = Launch { grid: [across, group.len() as u32, 1], overlap: overlaps(plan), ..Launch::new(1, EXPAND_WARPS as u32 * 32) };
    // SAFETY: as above.
    unsafe { plan.launch(queue, expand_kernel(whole, op.accumulate).name(), &launch, params) }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<CodebookGemm>, workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let slices: Vec<_> = op.slices.iter().zip(&args.slices).collect();
    let way = LongWay::of(&plan.target);
    let aligned = way != Some(LongWay::Any) && aligned(op, args);
    let together = LongWay::at_once(way, op, aligned);
    let (mut place, mut next) = (address(workspace), slices.as_slice());
    while !next.is_empty() {
        let (group, rest) = next.split_at(if next.len() >= together { together } else { 1 });
        next = rest;
        let params = group_params(plan, args, group, place);
        place += group.iter().map(|(slice, _)| Room::of(op, slice).bytes()).sum::<u64>();
        // SAFETY: the caller's promise.
        unsafe {
            shrink(queue, plan, &params, group.len(), aligned)?;
            expand(queue, plan, &params, group)?;
        }
    }
    // The shrink kernel lets the expand kernel start after everything before has ended. So only these two may be in flight when the next
    // launch starts.
    if overlaps(plan) {
        queue.leave_open(args.slices.iter().map(|of| range(&of.y)).chain([range(workspace)]).collect());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::long_tile::has_basis;
    use super::*;
    use crate::backends::cuda::codebook_gemm::entry::reach::{each_operation, names};

    #[test]
    fn a_plan_has_every_kernel_that_its_launches_may_name() {
        each_operation(|op, target| {
            for (target, config) in SGMV_LONG.able(op, target) {
                let way = LongWay::of(&target);
                let (names, quick) = (names(&plan_unit(op, way)), way != Some(LongWay::Any));
                let has = |kernel: Entry| assert!(names.contains(&kernel.name()), "{config}: {kernel:?} {op:?}: {names:?}");
                for aligned in [false, true].into_iter().filter(|aligned| !aligned || quick && may_be_aligned(op)) {
                    let (together, mut next) = (LongWay::at_once(way, op, aligned), op.slices.as_slice());
                    while !next.is_empty() {
                        let (group, rest) = next.split_at(if next.len() >= together { together } else { 1 });
                        next = rest;
                        has(shrink_kernel(group.len(), aligned));
                        has(expand_kernel(quick && group.iter().all(may_be_whole), op.accumulate));
                        has(expand_kernel(false, op.accumulate));
                    }
                }
                assert_eq!(has_basis(op), names.contains(&UNPACK.name()));
            }
        });
    }
}
