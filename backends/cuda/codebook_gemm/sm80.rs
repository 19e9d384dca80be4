//! `codebook_gemm` with the tensor cores of sm80.

use super::choose_launch::blocks_by_launch;
use super::entry::{Entry, entry, together};
use super::launch::{Group, each_group, forms, launch_group, tile_params, whole};
use super::tile::{GROUP, ROWS, THREADS, each_form, plan_shared, rank_of, supports as supports_tiles, unit, width_of};
use crate::backends::cuda::jit::Unit;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{CodebookGemm, CodebookGemmArgs};

pub(crate) const SM80: Variant<CodebookGemm> = Variant {
    name: "sm80",
    label: "codebook_gemm/sm80",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: |_, _| Ok(()),
    configs: Some(Configs { names: |_| configs().map(|shape| shape.map_or_else(|| "by-launch".into(), Shape::config)).collect(), choose: |_, _| 0 }),
    unit: plan_unit,
    units: |_| each_form(|_, _| [USUAL, ANY, GROUPED], |entry, dtype, rank, width| unit(entry, dtype, rank, width, false)),
    workspace: |_, _| 0,
    launch,
};

const USUAL: Entry = entry!("codebook_gemm_sm80");
const ANY: Entry = entry!("codebook_gemm_sm80_any");
const GROUPED: Entry = entry!("codebook_gemm_sm80_grouped");

/// A configuration of all launches: the blocks that share a tile, and whether one slice's operands are read whatever their alignment.
#[derive(Clone, Copy, Debug)]
struct Shape {
    blocks: u64,
    any: bool,
}

/// The configurations. `None` lets each launch choose by what it knows; the others fix the number of blocks.
fn configs() -> impl Iterator<Item = Option<Shape>> {
    let of = |any| [1, 2, 4, 8, 16].map(|blocks| Some(Shape { blocks, any }));
    std::iter::once(None).chain(of(false)).chain(of(true))
}

fn configured(target: &Target) -> Option<Shape> {
    target.configured(configs()).flatten()
}

impl Shape {
    fn config(self) -> String {
        format!("{}-{}", if self.any { "any" } else { "blocks" }, self.blocks)
    }

    /// Whether the configuration changes anything for `op`, or why not.
    fn computes(self, op: &CodebookGemm) -> std::result::Result<(), String> {
        let forms = forms(op);
        if self.any && !(forms.iter().any(|(_, whole)| *whole) && forms.iter().all(|(group, _)| group.slices == 1)) {
            return Err("several slices, or rows that are read whatever they start on anyhow".into());
        }
        let columns = forms.iter().map(|(group, _)| group.widest.div_ceil(GROUP)).max().unwrap_or(0);
        if self.blocks > columns { Err(format!("{} blocks, with columns for {columns}", self.blocks)) } else { Ok(()) }
    }
}

fn supports(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    supports_tiles(op, target, false)?;
    configured(target).map_or(Ok(()), |shape| shape.computes(op))
}

/// The kernel of a launch whose rows are `whole` multiples of 16 bytes or not.
fn kernel(group: Group, whole: bool, target: &Target) -> Entry {
    match (group.slices, whole && !configured(target).is_some_and(|shape| shape.any)) {
        (0 | 1, true) => USUAL,
        (0 | 1, false) => ANY,
        _ => GROUPED,
    }
}

fn plan_unit(op: &CodebookGemm, target: &Target) -> Unit {
    let kernels = forms(op).into_iter().map(|(group, whole)| kernel(group, whole, target));
    together(ANY, kernels, |entry| unit(entry, op.dtype, rank_of(op), width_of(op), false))
}

/// Enqueues a kernel for each group of slices.
///
/// # Safety
/// As [`Plan::launch`].
unsafe fn launch(queue: &mut Queue, plan: &Plan<CodebookGemm>, _workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    each_group(op, args, |slices| {
        let group = Group::with(slices);
        let blocks = configured(&plan.target).map_or_else(|| blocks_by_launch(op, group, plan.target.units.into()), |shape| shape.blocks);
        let params: Vec<_> = slices.iter().map(|(slice, of)| tile_params(op, args, slice, of, blocks as u32)).collect();
        let grid = [(op.tokens.div_ceil(ROWS) * blocks) as u32, 1, 1];
        let launch = Launch { grid, shared_bytes: plan_shared(plan, false), ..Launch::new(1, THREADS) };
        // SAFETY: the caller's promise.
        unsafe { launch_group(queue, plan, &params, kernel(group, params.iter().all(whole), &plan.target), &launch) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::cuda::codebook_gemm::entry::reach::{each_operation, names};

    #[test]
    fn a_plan_has_every_kernel_that_its_launches_may_name() {
        each_operation(|op, target| {
            for (target, config) in SM80.able(op, target) {
                let names = names(&plan_unit(op, &target));
                for count in 1..=op.slices.len() as u64 {
                    let group = Group { slices: count, widest: 1, one_basis: true };
                    let whole = forms(op).contains(&(Group::of(&op.slices[..count as usize]), true));
                    assert!(!whole || names.contains(&kernel(group, true, &target).name()), "{config}: {count} slices of {op:?}: {names:?}");
                }
                assert!(names.contains(&ANY.name()));
            }
        });
    }
}
