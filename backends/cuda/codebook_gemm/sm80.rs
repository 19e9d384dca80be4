//! `codebook_gemm` on the tensor cores of Ampere.

use super::entry::{Entry, entry, together};
use super::launch::{Group, each_group, forms, launch_group, sharing, tile_params, whole};
use super::tile::{ROWS, THREADS, each_form, plan_shared, rank_of, supports, unit, width_of};
use crate::backends::cuda::jit::Unit;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, TensorCores, Variant};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{CodebookGemm, CodebookGemmArgs};

pub(crate) const SM80: Variant<CodebookGemm> = Variant {
    name: "sm80",
    label: "codebook_gemm/sm80",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports: |op, target| supports(op, target, false),
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, _| plan_unit(op),
    units: |_| each_form(|_, _| [USUAL, ANY, GROUPED], |entry, dtype, rank, width| unit(entry, dtype, rank, width, false)),
    workspace: |_, _| 0,
    launch,
};

const USUAL: Entry = entry!("codebook_gemm_sm80");
const ANY: Entry = entry!("codebook_gemm_sm80_any");
const GROUPED: Entry = entry!("codebook_gemm_sm80_grouped");

/// The kernel of a launch, whose rows are `whole` multiples of 16 bytes or not.
fn kernel(group: Group, whole: bool) -> Entry {
    match (group.slices, whole) {
        (0 | 1, true) => USUAL,
        (0 | 1, false) => ANY,
        _ => GROUPED,
    }
}

fn plan_unit(op: &CodebookGemm) -> Unit {
    let kernels = forms(op).into_iter().map(|(group, whole)| kernel(group, whole));
    together(ANY, kernels, |entry| unit(entry, op.dtype, rank_of(op), width_of(op), false))
}

/// # Safety
/// As [`Plan::launch`].
unsafe fn launch(queue: &mut Queue, plan: &Plan<CodebookGemm>, _workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    each_group(op, args, |slices| {
        let group = Group::with(slices);
        // Every block computes h anew: few do it, unless there are many adapters to decode.
        let blocks = sharing(op, group, 2 * u64::from(plan.target.units), 16);
        let params: Vec<_> = slices.iter().map(|(slice, of)| tile_params(op, args, slice, of, blocks as u32)).collect();
        let grid = [(op.tokens.div_ceil(ROWS) * blocks) as u32, 1, 1];
        let launch = Launch { grid, shared_bytes: plan_shared(plan, false), ..Launch::new(1, THREADS) };
        // SAFETY: the caller's promise.
        unsafe { launch_group(queue, plan, &params, kernel(group, params.iter().all(whole)), &launch) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::cuda::codebook_gemm::entry::reach::{each_case, names};

    #[test]
    fn a_plan_has_every_kernel_that_its_launches_may_name() {
        each_case(|op, target| {
            if supports(op, target, false).is_ok() {
                let names = names(&plan_unit(op));
                for count in 1..=op.slices.len() as u64 {
                    let group = Group { slices: count, widest: 1, one_basis: true };
                    let whole = forms(op).contains(&(Group::of(&op.slices[..count as usize]), true));
                    assert!(!whole || names.contains(&kernel(group, true).name()), "{count} slices of {op:?}: {names:?}");
                }
                assert!(names.contains(&ANY.name()));
            }
        });
    }
}
