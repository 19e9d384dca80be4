//! `linear` on few rows: the variant `sm90_skinny`.

use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::entry::listed;
use crate::backends::cuda::gemm::problem::HALVES;
use crate::backends::cuda::gemm::repack::{Copies, repack_unit};
use crate::backends::cuda::gemm::sm80::units::fallback_units;
use crate::backends::cuda::gemm::sm90::skinny::{SkinnyShape, SkinnyUse};
use crate::backends::cuda::gemm::sm90::units::{Form, SkinnyKernel};
use crate::backends::cuda::jit::{Arch, Unit};
use crate::backends::cuda::linear::problem::{product, repacked_bytes, skinny_shape, skinny_splits, streams};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(crate) const SKINNY: Variant<Linear> = Variant {
    name: "sm90_skinny",
    label: "linear/sm90_skinny",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports: streams,
    suits: |_, _| Ok(()),
    configs: None,
    unit,
    units: |_: Arch| {
        let fitted = || [false, true].into_iter().flat_map(|split| SkinnyShape::every(split, SkinnyShape::fitted).into_iter().map(move |tile| (tile, split)));
        let quartered = || SkinnyShape::every(true, SkinnyShape::fitted).into_iter().map(|tile| (tile.quartered(), true));
        let tiles = fitted().chain(quartered()).map(|(tile, split)| (SkinnyKernel::Tiles, tile, split));
        let kernels = tiles.chain(SkinnyShape::all_grouped().map(|tile| (SkinnyKernel::Groups, tile, false)));
        let own = kernels.flat_map(|(kernel, tile, split)| Form::all(&HALVES, false).map(move |form| kernel.unit(&tile, split, form)));
        listed(own, HALVES.into_iter().flat_map(|dtype| fallback_units(dtype).into_iter().chain([repack_unit(dtype)])))
    },
    workspace: |op, _| repacked_bytes(op),
    launch,
};

/// Whether W is so small that L2 (50 MB on an H200) still has it at the next launch, if it is let stay. With many rows of X
/// what that costs others is more.
fn keeps(op: &Linear) -> bool {
    op.tokens <= 64 && op.d_out.saturating_mul(op.w_stride).saturating_mul(op.dtype.size()) <= 36 << 20
}

fn kernel(op: &Linear, target: &Target) -> SkinnyKernel {
    let groups = !skinny_splits(op, target) && SkinnyShape::by_groups(op.d_out, SkinnyShape::clusters(target.units));
    if groups { SkinnyKernel::Groups } else { SkinnyKernel::Tiles }
}

fn unit(op: &Linear, target: &Target) -> Unit {
    let own = kernel(op, target).unit(&skinny_shape(op, target), skinny_splits(op, target), Form::plain(op.dtype, ActivationForm::of(op.activation)));
    Unit { also: fallback_units(op.dtype).into_iter().chain(Copies::of(op).unit(op.dtype)).collect(), ..own }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    if op.tokens == 0 {
        return Ok(());
    }
    let tile = skinny_shape(op, &plan.target);
    // SAFETY: the caller's promise; aligned rows start where TMA can read them.
    unsafe {
        let (product, overlap) = product(queue, plan, workspace, args)?;
        if !product.aligned() {
            return product.launch_fallback(queue, plan);
        }
        let split = skinny_splits(op, &plan.target);
        let room = match tile.cluster() {
            4 => {
                let resident = plan.once(|plan| plan.resident_clusters(SkinnyKernel::Tiles.name(), &tile.launch(u64::from(plan.target.units) / 4)))?;
                resident.max(SkinnyShape::quarter_clusters(plan.target.units))
            }
            _ => SkinnyShape::clusters(plan.target.units),
        };
        let how = SkinnyUse { unit: 0, clusters: room, split, keeps: keeps(op), overlap };
        tile.run(queue, plan, kernel(op, &plan.target).name(), &product, how)
    }
}
