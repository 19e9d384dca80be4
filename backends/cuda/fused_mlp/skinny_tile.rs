//! `fused_mlp` on 65 to 128 tokens, both products at the speed of memory: the variant `sm90_skinny_tile`, of `kernels/gemm/sm90/skinny_tile.cuh`.

use crate::backends::cuda::fused_mlp::problem::{all_beside, beside, bring, chunk_rows, chunks, up_strides, workspace};
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::entry::listed;
use crate::backends::cuda::gemm::problem::{HALVES, fits, half};
use crate::backends::cuda::gemm::sm90::skinny_tile::SkinnyTile;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::gemm::sm90::units::{Form, skinny_tile_unit};
use crate::backends::cuda::jit::{Arch, Unit};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{FusedMlp, FusedMlpArgs};

pub(crate) const SKINNY_TILE: Variant<FusedMlp> = Variant {
    name: "sm90_skinny_tile",
    label: "fused_mlp/sm90_skinny_tile",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports,
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, target| {
        let tiles = tiles(op, target).unwrap_or(Tiles { up: if op.gated { GATED[0] } else { UP[0] }, down: DOWN[0], several: op.gated });
        unit(op, &tiles)
    },
    units: |_: Arch| {
        let ups = UP.map(|up| (up, false)).into_iter().chain(SEVERAL.into_iter().chain(GATED).map(|up| (up, true)));
        let up = ups.flat_map(|(up, several)| Form::all(&HALVES, up.gated).map(move |form| skinny_tile_unit(&up, several, form.dtype, form.activation)));
        let down = DOWN.into_iter().flat_map(|down| HALVES.map(|dtype| skinny_tile_unit(&down, false, dtype, ActivationForm::Floor)));
        listed(up.chain(down), all_beside())
    },
    workspace,
    launch,
};

/// Tiles of the first product, plain and gated, and of the second, whose outputs are fewer: the widths of Llama's layers.
const UP: [SkinnyTile; 3] = [SkinnyTile::new(88, 1), SkinnyTile::new(112, 1), SkinnyTile::new(128, 1)];
const SEVERAL: [SkinnyTile; 1] = [UP[1]];
const GATED: [SkinnyTile; 4] = [SkinnyTile::gated(72), SkinnyTile::gated(88), SkinnyTile::gated(112), SkinnyTile::gated(128)];
const DOWN: [SkinnyTile; 3] = [SkinnyTile::new(64, 2), SkinnyTile::new(80, 2), SkinnyTile::new(128, 2)];
/// Of the first product, a block takes no more.
const MOST: u64 = 4;

/// Those of both products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiles {
    up: SkinnyTile,
    down: SkinnyTile,
    /// Whether blocks of the first product may take one tile after another.
    several: bool,
}

/// Those with which most SMs have a tile, and none many.
pub(crate) fn filling(op: &FusedMlp, target: &Target) -> Option<Tiles> {
    let several = |tiles| SkinnyTile::choose(tiles, op.d_ff, MOST, target).map(|up| (up, true));
    let (up, several) =
        if op.gated { several(&GATED) } else { SkinnyTile::choose(&UP, op.d_ff, 1, target).map(|up| (up, false)).or_else(|| several(&SEVERAL)) }?;
    Some(Tiles { up, down: SkinnyTile::choose(&DOWN, op.d_out, 1, target)?, several })
}

/// Those, or else any that there are: blocks of the first product take one tile after another, those of the second have one.
fn tiles(op: &FusedMlp, target: &Target) -> Option<Tiles> {
    let any = || {
        let up = if op.gated { GATED[2] } else { SEVERAL[0] };
        let down = DOWN.into_iter().find(|tile| tile.rounds(op.d_out, target) <= 1)?;
        Some(Tiles { up, down, several: true })
    };
    filling(op, target).or_else(any)
}

fn supports(op: &FusedMlp, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    if op.tokens > SkinnyTile::ROWS {
        return Err(format!("{} tokens: a block has tiles of {}", op.tokens, SkinnyTile::ROWS));
    }
    if chunk_rows(op, target)? < op.tokens {
        return Err(format!("the intermediate of {} tokens is larger than the workspace", op.tokens));
    }
    for stride in up_strides(op) {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_ff), op.d_model, stride)?;
    }
    WgmmaTile::reads(op.dtype, op.d_out, op.d_ff, op.w2_stride)?;
    let Tiles { up, down, .. } = tiles(op, target).ok_or_else(|| format!("{} outputs: more tiles than have room at once", op.d_out))?;
    fits(up.shared_bytes().max(down.shared_bytes()), target)
}

/// The number of the second product's kernel among a plan's units, behind the one of the first.
const SECOND: usize = 1;

fn unit(op: &FusedMlp, Tiles { up, down, several }: &Tiles) -> Unit {
    let second = skinny_tile_unit(down, false, op.dtype, ActivationForm::Floor);
    Unit { also: [vec![second], beside(op)].concat(), ..skinny_tile_unit(up, *several, op.dtype, ActivationForm::of(Some(op.activation))) }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>) -> Result<()> {
    for [mut up, down] in chunks(plan, workspace, args)? {
        // SAFETY: the caller's promise; the intermediate fits into the workspace, and aligned rows start where TMA can read them.
        unsafe {
            bring(queue, plan, workspace, &mut up)?;
            match tiles(&plan.op, &plan.target) {
                Some(tiles) if up.aligned() && down.aligned() => {
                    tiles.up.run(queue, plan, 0, &up)?;
                    tiles.down.run(queue, plan, SECOND, &down)?;
                }
                _ => {
                    for product in [up, down] {
                        product.launch_fallback(queue, plan)?;
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };

    #[test]
    fn a_tile_a_block_of_most_multiprocessors() {
        let of = |op: FusedMlp| filling(&op, &H200).map(|tiles| (tiles.up.columns, tiles.down.columns, tiles.several));
        let plain = |dims: [u64; 4]| FusedMlp::new(DType::F16, dims, crate::ops::Activation::Silu);
        assert_eq!(of(plain([128, 4096, 11008, 4096])), Some((88, 64, false)));
        assert_eq!(of(plain([128, 4096, 14336, 4096])), Some((112, 64, false)));
        assert_eq!(of(plain([128, 5120, 13824, 5120])), Some((112, 80, false)));
        assert_eq!(of(plain([128, 8192, 28672, 8192])), Some((112, 128, true)), "two tiles a block");
        assert_eq!(of(plain([128, 768, 3072, 768])), None, "fewer than multiprocessors");
        let gated = |d_ff| of(FusedMlp { gated: true, ..plain([128, 4096, d_ff, 4096]) });
        let chosen = [11008, 14336, 18944, 28672].map(gated);
        assert_eq!(chosen, [88, 112, 72, 112].map(|columns| Some((columns, 64, true))));
        for tile in UP.into_iter().chain(GATED).chain(DOWN) {
            assert!(tile.shared_bytes() <= 227 << 10 && tile.stages() >= tile.x_stages(), "{tile:?}: {} stages", tile.stages());
        }
    }
}
