//! SGMV for dense factors on both sides: the variant of `codebook_gemm` for LoRA as it is trained, in a shrink and an expand kernel.

use super::choose_dense::trained;
use super::dense::{self, Form, may_be_whole};
use super::dense_pair::{BY_ELEMENT, CONFIGS, launch, plan_unit, units, workspace_bytes};
use crate::backends::cuda::variant::{Configs, RunsOn, Target, TensorCores, Variant};
use crate::ops::CodebookGemm;

pub(crate) const SGMV_DENSE: Variant<CodebookGemm> = Variant {
    name: "sgmv_dense",
    label: "codebook_gemm/sgmv_dense",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: trained,
    configs: Some(Configs { names: |_| CONFIGS.map(String::from).into(), choose: |_, _| 0 }),
    unit: plan_unit,
    units: |_| units(),
    workspace: |op, _| workspace_bytes(op),
    launch,
};

fn supports(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    dense::supports(op, target, Form::of(op).expand_bytes())?;
    if target.config == BY_ELEMENT && !may_be_whole(op) {
        return Err("rows that are read one element at a time anyhow".into());
    }
    Ok(())
}
