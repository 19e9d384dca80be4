//! `codebook_gemm` in thread block clusters with early starts (PDL), for Hopper and newer.

use super::choose::clusters;
use super::choose_launch::shape_by_launch;
use super::clusters::{ANY, Known, Shape, config, configs, kernels};
use super::entry::together;
use super::launch::{Group, each_group, forms, launch_group, read_early, tile_params, whole};
use super::tile::{ROWS, THREADS, each_form, plan_shared, rank_of, supports as supports_tiles, unit, width_of};
use crate::backends::cuda::jit::Unit;
use crate::backends::cuda::runtime::pdl::starts_early;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, range};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{CodebookGemm, CodebookGemmArgs};

pub(crate) const SM90: Variant<CodebookGemm> = Variant {
    name: "sm90",
    label: "codebook_gemm/sm90",
    // The kernels take clusters and PDL, and nothing that only Hopper has.
    runs_on: RunsOn::From(90),
    // wgmma does not fit: it multiplies 64 rows at least, of which 16 tokens fill a quarter. It also reads its second operand from shared
    // memory alone, while codes are decoded into registers.
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: clusters,
    configs: Some(Configs { names: |_| configs().map(config).collect(), choose: |_, _| 0 }),
    unit: plan_unit,
    units: |_| each_form(kernels, |entry, dtype, rank, width| unit(entry, dtype, rank, width, true)),
    workspace: |_, _| 0,
    launch,
};

/// The kind of a launch of `group`: the target's configuration where that applies, else the fastest.
fn shape(op: &CodebookGemm, group: Group, target: &Target, known: Known) -> Shape {
    let own = target.configured(configs()).flatten().filter(|own| own.takes(group, known));
    own.unwrap_or_else(|| shape_by_launch(op, group, target.units.into(), known))
}

fn supports(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    supports_tiles(op, target, true)?;
    target.configured(configs()).flatten().map_or(Ok(()), |own| own.computes(op))
}

fn plan_unit(op: &CodebookGemm, target: &Target) -> Unit {
    let known = forms(op).into_iter().flat_map(|(group, whole)| Known::all(group, whole).map(move |known| (group, known)));
    let kernels = known.map(|(group, known)| shape(op, group, target, known).kernel);
    together(ANY, kernels, |entry| unit(entry, op.dtype, rank_of(op), width_of(op), true))
}

/// Enqueues a kernel for each group of slices.
///
/// # Safety
/// As [`Plan::launch`].
unsafe fn launch(queue: &mut Queue, plan: &Plan<CodebookGemm>, _workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    // Whether all launches in flight are this operation's.
    let mut own = false;
    each_group(op, args, |slices| {
        let group = Group::with(slices);
        let mut open = queue.take_open();
        let early = starts_early(&open, &slices.iter().flat_map(|(_, of)| read_early(args, of)).collect::<Vec<_>>());
        let cores = slices.iter().filter_map(|(_, of)| of.core.as_ref());
        let x_early = !early || starts_early(&open, &cores.chain([&args.x]).map(range).collect::<Vec<_>>());
        let mut params: Vec<_> = slices.iter().map(|(slice, of)| tile_params(op, args, slice, of, 1)).collect();
        let known = Known { whole: params.iter().all(whole), early, x_early, basis_of: params.iter().any(|params| params.input.basis_of != 0) };
        let Shape { kernel, blocks, cluster } = shape(op, group, &plan.target, known);
        for params in &mut params {
            params.blocks = blocks as u32;
            params.x_early = u32::from(x_early);
            params.y_early = u32::from(x_early && own);
        }
        // Every y of an operation lies apart from the others, and from x.
        own |= !early;
        if !early {
            open.clear();
        }
        open.extend(slices.iter().map(|(_, of)| range(&of.y)));
        let launch = Launch {
            grid: [(op.tokens.div_ceil(ROWS) * blocks) as u32, 1, 1],
            shared_bytes: plan_shared(plan, true),
            cluster: [cluster as u32, 1, 1],
            overlap: early,
            ..Launch::new(1, THREADS)
        };
        // SAFETY: the caller's promise; and launches in flight write nothing that this one reads before its PDL wait.
        unsafe { launch_group(queue, plan, &params, kernel, &launch)? };
        if op.tokens > 0 {
            queue.leave_open(open);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::cuda::codebook_gemm::entry::reach::{each_operation, names};

    #[test]
    fn a_plan_has_every_kernel_that_its_launches_may_name_and_its_form_has_it() {
        let flags = |bits: u32| [1, 2, 4].map(|bit| bits & bit != 0);
        each_operation(|op, target| {
            for (target, config) in SM90.able(op, target) {
                let names = names(&plan_unit(op, &target));
                assert!(names.iter().all(|name| kernels(rank_of(op), width_of(op)).any(|kernel| kernel.name() == *name)), "{config}, {op:?}: {names:?}");
                for (group, whole) in forms(op) {
                    for [early, x_early, given] in (0..8).map(flags) {
                        // A launch that does not start early need not ask whether x may be read early. More than one basis is always given.
                        let known = Known { whole, early, x_early: x_early || !early, basis_of: given || !group.one_basis };
                        let Shape { kernel, .. } = shape(op, group, &target, known);
                        assert!(names.contains(&kernel.name()), "{config}: {kernel:?} {known:?} {op:?}: {names:?}");
                    }
                }
            }
        });
    }
}
