//! `linear` on few rows: the variant `sm90_skinny`.

use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::entry::listed;
use crate::backends::cuda::gemm::problem::HALVES;
use crate::backends::cuda::gemm::repack::{Copies, repack_unit};
use crate::backends::cuda::gemm::sm80::units::fallback_units;
use crate::backends::cuda::gemm::sm90::skinny::{StreamTile, StreamUse};
use crate::backends::cuda::gemm::sm90::units::{Form, StreamKernel};
use crate::backends::cuda::jit::{Arch, Unit};
use crate::backends::cuda::linear::problem::{product, repacked_bytes, stream_splits, stream_tile, streams};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(crate) const STREAM: Variant<Linear> = Variant {
    name: "sm90_skinny",
    label: "linear/sm90_skinny",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports: streams,
    suits: |_, _| Ok(()),
    unit,
    units: |_: Arch| {
        let fitted = || [false, true].into_iter().flat_map(|split| StreamTile::every(split, StreamTile::fitted).into_iter().map(move |tile| (tile, split)));
        let quartered = || StreamTile::every(true, StreamTile::fitted).into_iter().map(|tile| (tile.quartered(), true));
        let tiles = fitted().chain(quartered()).map(|(tile, split)| (StreamKernel::Tiles, tile, split));
        let kernels = tiles.chain(StreamTile::all_grouped().map(|tile| (StreamKernel::Groups, tile, false)));
        let own = kernels.flat_map(|(kernel, tile, split)| Form::all(&HALVES, false).map(move |form| kernel.unit(&tile, split, form)));
        listed(own, HALVES.into_iter().flat_map(|dtype| fallback_units(dtype).into_iter().chain([repack_unit(dtype)])))
    },
    workspace: |op, _| repacked_bytes(op),
    launch,
};

/// Whether W is so small that the second-level cache (50 MB on an H200) still has it at the next launch, if it is let stay. With many rows of X
/// what that costs others is more.
fn keeps(op: &Linear) -> bool {
    op.tokens <= 64 && op.d_out.saturating_mul(op.w_stride).saturating_mul(op.dtype.size()) <= 36 << 20
}

fn kernel(op: &Linear, target: &Target) -> StreamKernel {
    let groups = !stream_splits(op, target) && StreamTile::by_groups(op.d_out, StreamTile::clusters(target.units));
    if groups { StreamKernel::Groups } else { StreamKernel::Tiles }
}

fn unit(op: &Linear, target: &Target) -> Unit {
    let own = kernel(op, target).unit(&stream_tile(op, target), stream_splits(op, target), Form::plain(op.dtype, ActivationForm::of(op.activation)));
    Unit { also: fallback_units(op.dtype).into_iter().chain(Copies::of(op).unit(op.dtype)).collect(), ..own }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    if op.tokens == 0 {
        return Ok(());
    }
    let tile = stream_tile(op, &plan.target);
    // SAFETY: the caller's promise; aligned rows start where TMA can read them.
    unsafe {
        let (product, overlap) = product(queue, plan, workspace, args)?;
        if !product.aligned() {
            return product.launch_fallback(queue, plan);
        }
        let split = stream_splits(op, &plan.target);
        let room = match tile.cluster() {
            4 => {
                let resident = plan.once(|plan| plan.resident_clusters(StreamKernel::Tiles.name(), &tile.launch(u64::from(plan.target.units) / 4)))?;
                resident.max(StreamTile::quarter_clusters(plan.target.units))
            }
            _ => StreamTile::clusters(plan.target.units),
        };
        let how = StreamUse { unit: 0, clusters: room, split, keeps: keeps(op), overlap };
        tile.run(queue, plan, kernel(op, &plan.target).name(), &product, how)
    }
}
