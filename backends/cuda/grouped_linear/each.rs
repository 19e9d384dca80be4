//! `grouped_linear` by the launches of its products, each as `linear` chooses it: the variant `each`.

use crate::backends::cuda::gemm::entry::gathered;
use crate::backends::cuda::grouped_linear::problem::no_gate;
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, RunsOn, Table, TensorCores, Variant, choose};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{GroupedLinear, GroupedLinearArgs, Linear};

pub(crate) const EACH: Variant<GroupedLinear> = Variant {
    name: "each",
    label: "grouped_linear/each",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::Without("its kernels are those of linear, which show their own"),
    supports: |op, target| {
        no_gate(op)?;
        let can = |problem: &Linear| Linear::VARIANTS.iter().any(|variant| variant.accepts(problem, target).is_ok());
        match op.problems.iter().find(|problem| !can(problem)) {
            None => Ok(()),
            Some(problem) => Err(format!("no variant of linear computes {problem:?}")),
        }
    },
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, target| {
        let chosen = op.problems.iter().filter_map(|problem| choose(Linear::VARIANTS, problem, target, None).ok().zip(Some(problem)));
        // `supports` has refused an operation whose products have none.
        gathered(chosen.map(|((variant, target), problem)| (variant.unit)(problem, &target))).unwrap_or_else(|| Unit::new("each", source!("gemm/simt.cu")))
    },
    units: |arch: Arch| Linear::VARIANTS.iter().filter(|variant| variant.runs_on.accept(arch).is_ok()).flat_map(|variant| (variant.units)(arch)).collect(),
    workspace: |_, _| 0,
    launch,
};

unsafe fn launch(queue: &mut Queue, plan: &Plan<GroupedLinear>, workspace: &Slice<Cuda>, args: &GroupedLinearArgs<Cuda>) -> Result<()> {
    for (number, (product, own)) in plan.products.iter().zip(&args.problems).enumerate() {
        // SAFETY: the caller's promise, of each product.
        unsafe { product.run(queue, &plan.product_workspace(workspace, number)?, own)? };
    }
    Ok(())
}
