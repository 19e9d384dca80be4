//! Both products of an MLP in wgmma tiles, from 65 tokens on.

use super::problem::{WAYS, beside, bring, chunks, shapes, up_strides};
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::problem::{HALVES, fits};
use crate::backends::cuda::gemm::sm90::start::WgmmaLaunch;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::gemm::sm90::units::{Form, WgmmaKernel};
use crate::backends::cuda::jit::Unit;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, Target};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{FusedMlp, FusedMlpArgs};

/// Every pair of tiles: both outside clusters, where they can be, or both in clusters.
pub(crate) fn pairs() -> impl Iterator<Item = [WgmmaTile; 2]> {
    WAYS.into_iter()
        .flat_map(|way| WgmmaTile::OF_UP.into_iter().flat_map(move |up| WgmmaTile::OF_DOWN.into_iter().filter_map(move |down| Some([way(up)?, way(down)?]))))
}

/// Whether a pair's kernels can compute chunks of this many rows, or why not.
pub(crate) fn takes(op: &FusedMlp, pair: &[WgmmaTile; 2], rows: u64, target: &Target) -> std::result::Result<(), String> {
    let [up, down] = pair;
    if !op.d_ff.is_multiple_of(8) {
        return Err(format!("an intermediate of {}: its first product writes eight outputs at once", op.d_ff));
    }
    if op.gated && !up.gates() {
        return Err("half of the first product's columns, of each weight, are not whole in runs".into());
    }
    for stride in up_strides(op) {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_ff), op.d_model, stride)?;
    }
    WgmmaTile::reads(op.dtype, op.d_out, op.d_ff, op.w2_stride)?;
    for (shape, tile) in shapes(op, rows).into_iter().zip(pair) {
        shape.can_compute(tile, target)?;
    }
    fits(up.shared_bytes().max(down.unaligned_shared_bytes()), target)
}

/// The index of the second product's first kernel among a plan's units.
const DOWN: usize = 1;

pub(crate) fn unit(op: &FusedMlp, [up, down]: &[WgmmaTile; 2]) -> Unit {
    let form = Form { dtype: op.dtype, gated: op.gated, activation: ActivationForm::of(Some(op.activation)) };
    let down = WgmmaKernel::within(down, op.d_out).map(|kernel| kernel.unit(down, Form::plain(op.dtype, ActivationForm::Floor)));
    Unit { also: down.chain(beside(op)).collect(), ..WgmmaKernel::Whole.unit(up, form) }
}

/// The units of both products, outside and in clusters.
pub(crate) fn units() -> impl Iterator<Item = Unit> {
    let ways = |tiles: [WgmmaTile; 7]| WAYS.into_iter().flat_map(move |way| tiles.into_iter().filter_map(way));
    let plain = ways(WgmmaTile::OF_UP).map(|tile| (tile, false));
    let gated = ways(WgmmaTile::OF_UP).filter(WgmmaTile::gates).map(|tile| (tile, true));
    let up = plain.chain(gated).flat_map(|(tile, gated)| Form::all(&HALVES, gated).map(move |form| WgmmaKernel::Whole.unit(&tile, form)));
    let down = ways(WgmmaTile::OF_DOWN).flat_map(|tile| [WgmmaKernel::Whole, WgmmaKernel::Unaligned].map(|kernel| (tile, kernel)));
    let down = down.flat_map(|(tile, kernel)| HALVES.map(|dtype| kernel.unit(&tile, Form::plain(dtype, ActivationForm::Floor))));
    up.chain(down)
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
    [up_tile, down_tile]: [WgmmaTile; 2],
) -> Result<()> {
    // The first of these kernels lets the next start after everything before it has ended, and none of them writes weights.
    let mut weights_early = false;
    for mut product in chunks(plan, workspace, args)?.into_iter().flatten() {
        let up = product.activation.is_some();
        // SAFETY: the caller's promise; a chunk's intermediate fits into the workspace, and aligned rows start where
        // TMA can read them. Kernels that are started early wait for the one before.
        unsafe {
            if up {
                bring(queue, plan, workspace, &mut product)?;
            }
            match (product.aligned(), up) {
                (true, true) if product.writes_whole() => {
                    let how = WgmmaLaunch { tile: up_tile, unit: 0, overlap: true, weights_early };
                    product.launch_wgmma(queue, plan, &how)?;
                    weights_early = true;
                }
                (true, false) => {
                    let how = WgmmaLaunch { tile: down_tile, unit: DOWN, overlap: true, weights_early };
                    product.launch_wgmma(queue, plan, &how)?;
                }
                _ => product.launch_fallback(queue, plan)?,
            }
        }
    }
    Ok(())
}
