//! The variant of `codebook_gemm` for many tokens of many adapters on the tensor cores: S2LC's form, a block for the tokens of one adapter.

use super::choose::many_adapters;
use super::segments::{self, launch, plan_unit, shrunk_bytes, units};
use super::tile::supports as supports_tiles;
use crate::backends::cuda::variant::{RunsOn, Target, TensorCores, Variant};
use crate::ops::CodebookGemm;

pub(crate) const SGMV: Variant<CodebookGemm> = Variant {
    name: "sgmv",
    label: "codebook_gemm/sgmv",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: many_adapters,
    configs: None,
    unit: |op, _| plan_unit(op),
    units: |_| units(),
    workspace: |op, _| shrunk_bytes(op),
    launch,
};

fn supports(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    supports_tiles(op, target, false)?;
    segments::supports(op, target)
}
