//! SGMV for dense factors on both sides: the variant of `codebook_gemm` for LoRA as it is trained, in a shrink and an expand kernel.

use super::choose_dense::trained;
use super::dense::{self, Form, may_be_whole};
use super::dense_pair::{self, plan_unit, units, workspace_bytes};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Configs, Cuda, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{CodebookGemm, CodebookGemmArgs};

pub(crate) const SGMV_DENSE: Variant<CodebookGemm> = Variant {
    name: "sgmv_dense",
    label: "codebook_gemm/sgmv_dense",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: trained,
    configs: Some(Configs { names: |_| CONFIGS.map(String::from).into(), choose: |_, _| 0 }),
    unit: |op, target| plan_unit(op, target.config == BY_ELEMENT),
    units: |_| units(),
    workspace: |op, _| workspace_bytes(op),
    launch,
};

/// The configurations: rows by 16 bytes where operands allow it, or one element at a time.
const CONFIGS: [&str; 2] = ["whole", "any"];
/// The number of the configuration that reads one element at a time.
const BY_ELEMENT: Option<u16> = Some(1);

fn supports(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    dense::supports(op, target, Form::of(op).expand_bytes())?;
    if target.config == BY_ELEMENT && !may_be_whole(op) {
        return Err("rows that are read one element at a time anyhow".into());
    }
    Ok(())
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<CodebookGemm>, workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { dense_pair::launch(queue, plan, plan.target.config == BY_ELEMENT, workspace, args) }
}
