//! SGMV: the variant of `codebook_gemm` for many tokens of many adapters on the tensor cores. It takes S2LC's form, with a block for the
//! tokens of one adapter.

use super::choose::{many_adapters, way};
use super::segments::{self, Way, plan_unit, shrunk_bytes, units};
use super::tile::supports as supports_tiles;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Configs, Cuda, Plan, RunsOn, Target, TensorCores, Variant, number};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{CodebookGemm, CodebookGemmArgs};

pub(crate) const SGMV: Variant<CodebookGemm> = Variant {
    name: "sgmv",
    label: "codebook_gemm/sgmv",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: many_adapters,
    configs: Some(Configs { names: |_| Way::ALL.map(|way| way.name().into()).into(), choose: |op, _| number(Way::ALL.into_iter(), &way(op)) }),
    unit: |op, target| plan_unit(op, Way::of(target)),
    units: |_| units(),
    workspace: |op, _| shrunk_bytes(op),
    launch,
};

fn supports(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    supports_tiles(op, target, false)?;
    segments::supports(op, target)?;
    Way::of(target).map_or(Ok(()), |way| way.computes(op))
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<CodebookGemm>, workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { segments::launch(queue, plan, Way::of(&plan.target), workspace, args) }
}
