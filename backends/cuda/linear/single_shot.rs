//! `linear` on a K of one or two k-blocks: tiles of `sm90` that load all of K at once, of `kernels/gemm/sm90/single_shot.cuh`.

use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::problem::{HALVES, fits, gemm_header};
use crate::backends::cuda::gemm::sm90::start::WgmmaLaunch;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::jit::{Unit, source};
use crate::backends::cuda::linear::problem::product;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, Target};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

/// The tiles, narrow first, and the most k-blocks.
pub(crate) const TILES: [WgmmaTile; 2] = [WgmmaTile::SLIM, WgmmaTile::NARROW];
const STEPS: u64 = 2;
const THREADS: u32 = 256;
const ENTRY: [&str; 1] = ["linear_single_shot"];

/// Blocks that an SM has room for. Registers decide, as the kernel is compiled.
const fn room(tile: &WgmmaTile) -> u64 {
    if tile.columns == WgmmaTile::SLIM.columns { 3 } else { 2 }
}

const fn shared_bytes(tile: &WgmmaTile) -> u32 {
    // The stages with a barrier each, and up to 1,024 bytes before an aligned start.
    (STEPS * ((tile.rows + tile.columns) * WgmmaTile::DEPTH * 2 + 8) + 1024) as u32
}

fn blocks(op: &Linear, tile: &WgmmaTile) -> u64 {
    op.tokens.div_ceil(tile.rows).saturating_mul(op.d_out.div_ceil(tile.columns))
}

/// Whether all blocks are resident at once.
pub(crate) fn has_room(op: &Linear, tile: &WgmmaTile, target: &Target) -> bool {
    blocks(op, tile) <= room(tile) * u64::from(target.units)
}

/// The configuration's name: rows of X by rows of W.
pub(crate) fn config(tile: &WgmmaTile) -> String {
    format!("{}x{}-single_shot", tile.rows, tile.columns)
}

/// Whether the tile's kernel can compute an operation that other tiles of `sm90` can, or why not.
pub(crate) fn supports(op: &Linear, tile: &WgmmaTile, target: &Target) -> std::result::Result<(), String> {
    op.no_delta()?;
    if op.d_in > STEPS * WgmmaTile::DEPTH {
        return Err(format!("a K of {}: a block asks for all of at most {}", op.d_in, STEPS * WgmmaTile::DEPTH));
    }
    if !op.d_out.is_multiple_of(8) {
        return Err(format!("{} outputs: it writes eight at once", op.d_out));
    }
    // No operand is copied first.
    for stride in [op.x_stride, op.w_stride] {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_out), op.d_in, stride)?;
    }
    fits(shared_bytes(tile), target)
}

/// The unit of every kernel.
pub(crate) fn units() -> impl Iterator<Item = Unit> {
    let forms = || TILES.into_iter().flat_map(|tile| ActivationForm::ALL.map(|form| (tile, form)));
    HALVES.iter().flat_map(move |&dtype| forms().map(move |(tile, form)| unit(dtype, &tile, form)))
}

/// The unit of a tile's kernel.
pub(crate) fn unit(dtype: DType, tile: &WgmmaTile, activation: ActivationForm) -> Unit {
    let mut defines = tile.defines();
    defines.extend([("ELEMENT", dtype.name().into()), ("ACTIVATION_FORM", activation.name().into())]);
    defines.extend([("SINGLE_SHOT_STEPS", STEPS.to_string()), ("SINGLE_SHOT_BLOCKS", room(tile).to_string())]);
    Unit {
        name: format!("{} {dtype}, {}, {}", ENTRY[0], tile.name(), activation.name()),
        source: source!("gemm/sm90/single_shot.cu"),
        headers: vec![gemm_header()],
        defines,
        entries: &ENTRY,
        shared_bytes: shared_bytes(tile),
        also: Vec::new(),
    }
}

/// Enqueues the tile's kernel.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
pub(crate) unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>, tile: WgmmaTile) -> Result<()> {
    // SAFETY: the caller's promise; rows start where TMA can read them, and 16 bytes can be written.
    unsafe {
        let (product, _) = product(queue, plan, workspace, args)?;
        if !product.aligned() || !product.writes_whole() {
            return product.launch_fallback(queue, plan);
        }
        // The kernel's PDL wait stands before its first read.
        let how = WgmmaLaunch { tile, unit: 0, overlap: true, weights_early: false };
        let (params, launch) = product.wgmma_start(&how, &plan.target)?;
        let launch = Launch { shared_bytes: shared_bytes(&tile), overlap: launch.overlap, ..Launch::new(blocks(&plan.op, &tile) as u32, THREADS) };
        plan.launch(queue, ENTRY[0], &launch, &params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_a_short_k() {
        let takes = |sizes: [u64; 3]| TILES.iter().all(|tile| supports(&Linear::new(DType::F16, [sizes[0], sizes[2], sizes[1]]), tile, &Target::H200).is_ok());
        for sizes in [[2048, 2048, 128], [2048, 1672, 120], [1089, 2048, 128], [65, 8, 8], [2177, 2048, 128], [64, 2048, 128]] {
            assert!(takes(sizes), "{sizes:?}");
        }
        for sizes in [[2048, 2048, 136], [2048, 2041, 128], [2048, 2048, 127]] {
            assert!(!takes(sizes), "{sizes:?}");
        }
    }
}
