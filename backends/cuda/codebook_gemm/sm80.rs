//! `codebook_gemm` on the tensor cores of Ampere.

use super::launch::*;
use super::tile::*;
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
    unit: |op, _| unit(op.dtype, rank_of(op), width_of(op), false),
    units: |_| units(false),
    workspace: |_, _| 0,
    launch,
};

/// # Safety
/// As [`Plan::launch`].
unsafe fn launch(queue: &mut Queue, plan: &Plan<CodebookGemm>, _workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    each_group(op, args, |group| {
        // Every block computes h anew: few do it, unless there are many adapters to decode.
        let blocks = sharing(op, group, 2 * u64::from(plan.target.units), 16);
        let params: Vec<_> = group.iter().map(|(slice, of)| tile_params(op, args, slice, of, blocks as u32)).collect();
        let grid = [(op.tokens.div_ceil(ROWS) * blocks) as u32, 1, 1];
        let launch = Launch { grid, shared_bytes: plan_shared(plan, false), ..Launch::new(1, THREADS) };
        let single = if params.iter().all(whole) { "codebook_gemm_sm80" } else { "codebook_gemm_sm80_any" };
        // SAFETY: the caller's promise.
        unsafe { launch_group(queue, plan, &params, [single, "codebook_gemm_sm80_grouped"], &launch) }
    })
}
