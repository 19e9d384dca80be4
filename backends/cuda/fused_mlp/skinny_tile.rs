//! Both products of an MLP of up to 128 tokens, at the rate of memory, in tiles of `kernels/gemm/sm90/skinny_tile.cuh`.

use super::problem::{beside, bring, chunks, up_strides};
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::problem::{HALVES, fits};
use crate::backends::cuda::gemm::sm90::skinny_tile::SkinnyTile;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::gemm::sm90::units::{Form, skinny_tile_unit};
use crate::backends::cuda::jit::Unit;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, Target};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{FusedMlp, FusedMlpArgs};

/// The tiles of the first product, plain and gated, and of the second, which has fewer outputs. Their widths fit Llama's layers.
pub(crate) const UP: [SkinnyTile; 3] = [SkinnyTile::new(88, 1).once(), SkinnyTile::new(112, 1).once(), SkinnyTile::new(128, 1).once()];
pub(crate) const SEVERAL: [SkinnyTile; 1] = [SkinnyTile::new(112, 1)];
pub(crate) const GATED: [SkinnyTile; 4] = [SkinnyTile::gated(72), SkinnyTile::gated(88), SkinnyTile::gated(112), SkinnyTile::gated(128)];
pub(crate) const DOWN: [SkinnyTile; 3] = [SkinnyTile::new(64, 2), SkinnyTile::new(80, 2), SkinnyTile::new(128, 2)];

fn ups() -> impl Iterator<Item = SkinnyTile> {
    UP.into_iter().chain(SEVERAL).chain(GATED)
}

/// Every pair of tiles.
pub(crate) fn pairs() -> impl Iterator<Item = [SkinnyTile; 2]> {
    ups().flat_map(|up| DOWN.map(|down| [up, down]))
}

/// The pair's name as a configuration.
pub(crate) fn config([up, down]: &[SkinnyTile; 2]) -> String {
    let kind = match (up.gated, up.several) {
        (true, _) => "-gated",
        (false, true) => "-persistent",
        (false, false) => "",
    };
    format!("{}{kind}+{}", up.config(), down.config())
}

/// Whether a pair's kernels can compute one chunk of all tokens, or why not.
pub(crate) fn takes(op: &FusedMlp, [up, down]: &[SkinnyTile; 2], rows: u64, target: &Target) -> std::result::Result<(), String> {
    if op.tokens > SkinnyTile::ROWS {
        return Err(format!("{} tokens: a block has tiles of {}", op.tokens, SkinnyTile::ROWS));
    }
    if rows < op.tokens {
        return Err(format!("the intermediate of {} tokens is larger than the workspace", op.tokens));
    }
    if op.gated != up.gated {
        return Err(format!("a first product of {} weights", if up.gated { 2 } else { 1 }));
    }
    for stride in up_strides(op) {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_ff), op.d_model, stride)?;
    }
    WgmmaTile::reads(op.dtype, op.d_out, op.d_ff, op.w2_stride)?;
    fits(up.shared_bytes().max(down.shared_bytes()), target)
}

/// The index of the second product's kernel among a plan's units.
const SECOND: usize = 1;

pub(crate) fn unit(op: &FusedMlp, [up, down]: &[SkinnyTile; 2]) -> Unit {
    let second = skinny_tile_unit(down, op.dtype, ActivationForm::Floor);
    Unit { also: [vec![second], beside(op)].concat(), ..skinny_tile_unit(up, op.dtype, ActivationForm::of(Some(op.activation))) }
}

/// The units of both products.
pub(crate) fn units() -> impl Iterator<Item = Unit> {
    let up = ups().flat_map(|up| Form::all(&HALVES, up.gated).map(move |form| skinny_tile_unit(&up, form.dtype, form.activation)));
    up.chain(DOWN.into_iter().flat_map(|down| HALVES.map(|dtype| skinny_tile_unit(&down, dtype, ActivationForm::Floor))))
}

/// Enqueues both products of every chunk.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
pub(crate) unsafe fn launch(
    queue: &mut Queue,
    plan: &Plan<FusedMlp>,
    workspace: &Slice<Cuda>,
    args: &FusedMlpArgs<Cuda>,
    tiles: &[SkinnyTile; 2],
) -> Result<()> {
    for [mut up, down] in chunks(plan, workspace, args)? {
        // SAFETY: the caller's promise; the intermediate fits into the workspace, and aligned rows start where TMA can read them.
        unsafe {
            bring(queue, plan, workspace, &mut up)?;
            if up.aligned() && down.aligned() {
                tiles[0].run(queue, plan, 0, &up)?;
                tiles[1].run(queue, plan, SECOND, &down)?;
                continue;
            }
            for product in [up, down] {
                product.launch_fallback(queue, plan)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_has_stages() {
        for tile in ups().chain(DOWN) {
            assert!(tile.shared_bytes() <= 227 << 10 && tile.stages() >= tile.x_stages(), "{tile:?}: {} stages", tile.stages());
        }
    }
}
