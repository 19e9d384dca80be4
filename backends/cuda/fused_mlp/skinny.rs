//! `fused_mlp` on few tokens, both products at the speed of memory: the variant `sm90_skinny`.

use crate::backends::cuda::fused_mlp::problem::{all_beside, beside, bring, chunk_rows, chunks, up_strides, workspace};
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::entry::listed;
use crate::backends::cuda::gemm::problem::{HALVES, fits, half};
use crate::backends::cuda::gemm::sm90::skinny::{SkinnyShape, SkinnyUse};
use crate::backends::cuda::gemm::sm90::units::{Form, SkinnyKernel};
use crate::backends::cuda::jit::{Arch, Unit};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{FusedMlp, FusedMlpArgs};

pub(crate) const SKINNY: Variant<FusedMlp> = Variant {
    name: "sm90_skinny",
    label: "fused_mlp/sm90_skinny",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports,
    suits: |_, _| Ok(()),
    configs: None,
    unit,
    units: |_: Arch| {
        let tiles = || SkinnyShape::every(false, SkinnyShape::filled).into_iter();
        let up = tiles().flat_map(|tile| [false, true].map(|gated| (tile, gated)));
        let up = up.flat_map(|(tile, gated)| Form::all(&HALVES, gated).map(move |form| SkinnyKernel::Tiles.unit(&tile, false, form)));
        let down = tiles().flat_map(|tile| [false, true].map(|split| (tile, split)));
        let down = down.flat_map(|(tile, split)| HALVES.map(|dtype| SkinnyKernel::Tiles.unit(&tile, split, Form::plain(dtype, ActivationForm::Floor))));
        listed(up.chain(down), all_beside())
    },
    workspace,
    launch,
};

/// The shape of a block's stages, for tiles of both products. Those of one that is split along K are never the larger ones.
fn tile(op: &FusedMlp, target: &Target) -> SkinnyShape {
    let rows = |columns: u64| SkinnyShape::tile_rows(columns, SkinnyShape::clusters(target.units), false);
    let down = if splits(op, target) { 0 } else { rows(op.d_out) };
    SkinnyShape::choose(op.tokens).filled(rows(op.d_ff).max(down), false)
}

fn splits(op: &FusedMlp, target: &Target) -> bool {
    SkinnyShape::splits(op.d_out, SkinnyShape::clusters(target.units))
}

fn supports(op: &FusedMlp, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    if chunk_rows(op, target)? < op.tokens {
        return Err(format!("the intermediate of {} tokens is larger than the workspace", op.tokens));
    }
    SkinnyShape::supports(op.dtype, [op.tokens, op.d_ff, op.d_model], up_strides(op))?;
    SkinnyShape::supports(op.dtype, [op.tokens, op.d_out, op.d_ff], [op.w2_stride; 2])?;
    fits(tile(op, target).shared_bytes(), target)
}

/// The number of the second product's kernel among a plan's units, behind the one of the first.
const DOWN: usize = 1;

fn unit(op: &FusedMlp, target: &Target) -> Unit {
    let (tile, [up, down]) = (tile(op, target), forms(op));
    let down = SkinnyKernel::Tiles.unit(&tile, splits(op, target), down);
    Unit { also: [vec![down], beside(op)].concat(), ..SkinnyKernel::Tiles.unit(&tile, false, up) }
}

/// What the kernels of both products are compiled for.
fn forms(op: &FusedMlp) -> [Form; 2] {
    let up = Form { dtype: op.dtype, gated: op.gated, activation: ActivationForm::of(Some(op.activation)) };
    [up, Form::plain(op.dtype, ActivationForm::Floor)]
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>) -> Result<()> {
    let tile = tile(&plan.op, &plan.target);
    let how = |unit, split| SkinnyUse { unit, clusters: SkinnyShape::clusters(plan.target.units), split, keeps: false, overlap: false };
    for [mut up, down] in chunks(plan, workspace, args)? {
        // SAFETY: the caller's promise; the intermediate fits into the workspace, and aligned rows start where TMA can read
        // them.
        unsafe {
            bring(queue, plan, workspace, &mut up)?;
            if up.aligned() && down.aligned() {
                tile.run(queue, plan, SkinnyKernel::Tiles.name(), &up, how(0, false))?;
                tile.run(queue, plan, SkinnyKernel::Tiles.name(), &down, how(DOWN, splits(&plan.op, &plan.target)))?;
                continue;
            }
            for product in [up, down] {
                product.launch_fallback(queue, plan)?;
            }
        }
    }
    Ok(())
}
