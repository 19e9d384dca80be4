//! `linear` on 65 to 128 rows at the rate of memory: configurations of `sm90_skinny`, of `kernels/gemm/sm90/skinny_tile.cuh`.

use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::entry::listed;
use crate::backends::cuda::gemm::problem::{HALVES, fits, half};
use crate::backends::cuda::gemm::repack::{Copies, repack_unit};
use crate::backends::cuda::gemm::sm80::units::fallback_units;
use crate::backends::cuda::gemm::sm90::skinny_tile::SkinnyTile;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::gemm::sm90::units::{Form, skinny_tile_unit};
use crate::backends::cuda::jit::{Arch, Unit};
use crate::backends::cuda::linear::problem::{product, repacked_bytes, strides};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(crate) const SKINNY_TILE: Variant<Linear> = Variant {
    name: "sm90_skinny",
    label: "linear/sm90_skinny",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports,
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, target| unit(op, &configured(target)),
    units: |_: Arch| {
        let own = TILES.iter().flat_map(|tile| Form::all(&HALVES, false).map(move |form| skinny_tile_unit(tile, form.dtype, form.activation)));
        listed(own, HALVES.into_iter().flat_map(|dtype| fallback_units(dtype).into_iter().chain([repack_unit(dtype)])))
    },
    workspace: |op, _| repacked_bytes(op),
    launch,
};

pub(crate) const TILES: [SkinnyTile; 10] = [
    SkinnyTile::new(24, 1),
    SkinnyTile::new(40, 1),
    SkinnyTile::new(72, 1),
    SkinnyTile::new(112, 1),
    SkinnyTile::new(144, 1),
    SkinnyTile::new(208, 1),
    SkinnyTile::new(256, 1),
    SkinnyTile::new(40, 2),
    SkinnyTile::new(64, 2),
    SkinnyTile::new(72, 2),
];

pub(crate) fn names(_: Arch) -> Vec<String> {
    TILES.iter().map(|tile| format!("{}-tile", tile.config())).collect()
}

/// The configuration of a target that supports the operation.
fn configured(target: &Target) -> SkinnyTile {
    target.configured(TILES.into_iter()).unwrap_or(TILES[0])
}

fn supports(op: &Linear, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    op.no_norm()?;
    op.no_wide_outputs()?;
    if op.tokens > SkinnyTile::ROWS {
        return Err(format!("{} rows: a block has tiles of {}", op.tokens, SkinnyTile::ROWS));
    }
    op.no_delta()?;
    for stride in strides(op) {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_out), op.d_in, stride)?;
    }
    target.any(TILES.iter(), |tile| op.sums(tile.parts > 1).and_then(|()| fits(tile.shared_bytes(), target)))
}

fn unit(op: &Linear, tile: &SkinnyTile) -> Unit {
    let own = skinny_tile_unit(tile, op.dtype, ActivationForm::of(op.activation));
    Unit { also: fallback_units(op.dtype).into_iter().chain(Copies::of(op).unit(op.dtype)).collect(), ..own }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    if plan.op.tokens == 0 {
        return Ok(());
    }
    // SAFETY: the caller's promise; aligned rows start where TMA can read them.
    unsafe {
        let (product, _) = product(queue, plan, workspace, args)?;
        match product.aligned() {
            true => configured(&plan.target).run(queue, plan, 0, &product),
            false => product.launch_fallback(queue, plan),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    #[test]
    fn it_takes_up_to_128_rows() {
        for tile in TILES {
            assert!(tile.shared_bytes() <= 227 << 10 && tile.stages() >= 3, "{tile:?}: {} stages", tile.stages());
        }
        let takes = |op: &Linear| supports(op, &Target::H200).is_ok();
        let op = Linear::new(DType::F16, [72, 3584, 4608]);
        assert!(takes(&op) && takes(&Linear { tokens: 64, ..op.clone() }) && !takes(&Linear { tokens: 129, ..op.clone() }));
        assert!(!takes(&Linear { dtype: DType::F32, ..op }));
    }
}
