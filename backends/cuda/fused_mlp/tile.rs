//! `fused_mlp` on the tensor cores: the variants `sm80` and `sm90`.

use std::collections::HashSet;

use super::problem::{WAYS, all_beside, beside, bring, chunk_rows, chunks, intermediate_stride, planned_rows, tiles, up_strides, workspace};
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::entry::{gathered, listed};
use crate::backends::cuda::gemm::problem::{HALVES, fits, half};
use crate::backends::cuda::gemm::repack::{Copies, padded, repack_unit};
use crate::backends::cuda::gemm::sm80::tile::MmaTile;
use crate::backends::cuda::gemm::sm80::units::{all_mma_units, mma_units};
use crate::backends::cuda::gemm::sm90::start::WgmmaLaunch;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::gemm::sm90::units::{Form, WgmmaKernel};
use crate::backends::cuda::jit::{Arch, Unit};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{FusedMlp, FusedMlpArgs};

pub(crate) const SM80: Variant<FusedMlp> = Variant {
    name: "sm80",
    label: "fused_mlp/sm80",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports: |op, target| {
        half(op.dtype)?;
        chunk_rows(op, target)?;
        fits(mma_tile(op, target).shared_bytes(), target)
    },
    suits: |_, _| Ok(()),
    configs: None,
    unit: unit_sm80,
    units: |arch: Arch| {
        let own = [false, true].into_iter().flat_map(|gated| all_mma_units(&MmaTile::on(arch), gated));
        listed(own, HALVES.map(repack_unit))
    },
    workspace,
    launch: launch_sm80,
};

pub(crate) const SM90: Variant<FusedMlp> = Variant {
    name: "sm90",
    label: "fused_mlp/sm90",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports: supports_sm90,
    suits: |_, _| Ok(()),
    configs: None,
    unit: unit_sm90,
    units: units_sm90,
    workspace,
    launch: launch_sm90,
};

fn mma_tile(op: &FusedMlp, target: &Target) -> MmaTile {
    mma_tile_of(op, chunk_rows(op, target).unwrap_or(op.tokens), target)
}

fn mma_tile_of(op: &FusedMlp, rows: u64, target: &Target) -> MmaTile {
    MmaTile::choose(rows, op.d_ff.min(op.d_out), false, target)
}

fn wgmma_tiles(op: &FusedMlp, target: &Target) -> [WgmmaTile; 2] {
    tiles(op, chunk_rows(op, target).unwrap_or(op.tokens), target).map(|(tile, _)| tile)
}

fn supports_sm90(op: &FusedMlp, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    chunk_rows(op, target)?;
    if !op.d_ff.is_multiple_of(8) {
        return Err(format!("an intermediate of {}: its first product writes eight outputs at once", op.d_ff));
    }
    for stride in up_strides(op) {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_ff), op.d_model, stride)?;
    }
    WgmmaTile::reads(op.dtype, op.d_out, op.d_ff, op.w2_stride)?;
    fits(shared_bytes_sm90(&wgmma_tiles(op, target)), target)
}

fn shared_bytes_sm90([up, down]: &[WgmmaTile; 2]) -> u32 {
    up.shared_bytes().max(down.unaligned_shared_bytes())
}

/// Kernels of one tile for both products. A chunk of a single token has no stride of X.
fn unit_sm80(op: &FusedMlp, target: &Target) -> Unit {
    let tile = mma_tile(op, target);
    let [x, w1] = up_strides(op);
    let up = |x| mma_units(op.dtype, &tile, op.gated, [x, w1], op.d_model);
    let down = mma_units(op.dtype, &tile, false, [intermediate_stride(op), op.w2_stride], op.d_ff);
    let own = [up(x), up(padded(op.d_model)), down].concat().into_iter().chain(Copies::of_mlp(op).unit(op.dtype));
    let mut met = HashSet::new();
    gathered(own.filter(|unit| met.insert(unit.entries))).unwrap_or_else(|| repack_unit(op.dtype))
}

/// The number of the second product's kernels among a plan's units, behind the one of the first.
const DOWN: usize = 1;

fn unit_sm90(op: &FusedMlp, target: &Target) -> Unit {
    let [up, down] = wgmma_tiles(op, target);
    let form = Form { dtype: op.dtype, gated: op.gated, activation: ActivationForm::of(Some(op.activation)) };
    let down = WgmmaKernel::within(&down, op.d_out).map(|kernel| kernel.unit(&down, Form::plain(op.dtype, ActivationForm::Floor)));
    Unit { also: down.chain(beside(op)).collect(), ..WgmmaKernel::Whole.unit(&up, form) }
}

/// Those of both products, alone and in clusters.
fn units_sm90(_: Arch) -> Vec<Unit> {
    let ways = |tiles: [WgmmaTile; 7]| WAYS.into_iter().flat_map(move |way| tiles.into_iter().filter_map(way));
    let plain = ways(WgmmaTile::OF_UP).map(|tile| (tile, false));
    let gated = ways(WgmmaTile::OF_UP).filter(WgmmaTile::gates).map(|tile| (tile, true));
    let up = plain.chain(gated).flat_map(|(tile, gated)| Form::all(&HALVES, gated).map(move |form| WgmmaKernel::Whole.unit(&tile, form)));
    let down = ways(WgmmaTile::OF_DOWN).flat_map(|tile| [WgmmaKernel::Whole, WgmmaKernel::Unaligned].map(|kernel| (tile, kernel)));
    let down = down.flat_map(|(tile, kernel)| HALVES.map(|dtype| kernel.unit(&tile, Form::plain(dtype, ActivationForm::Floor))));
    listed(up.chain(down), all_beside())
}

unsafe fn launch_sm80(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>) -> Result<()> {
    let tile = mma_tile_of(&plan.op, planned_rows(&plan.op, workspace.len), &plan.target);
    for [mut up, down] in chunks(plan, workspace, args)? {
        // SAFETY: the caller's promise; a chunk's intermediate fits into the workspace.
        unsafe {
            bring(queue, plan, workspace, &mut up)?;
            up.launch_mma(queue, plan, &tile)?;
            down.launch_mma(queue, plan, &tile)?;
        }
    }
    Ok(())
}

unsafe fn launch_sm90(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>) -> Result<()> {
    let [up_tile, down_tile] = plan.once(|plan| Ok(tiles(&plan.op, planned_rows(&plan.op, workspace.len), &plan.target).map(|(tile, _)| tile)))?;
    // The first of these kernels lets the next start when all before it has ended, and none of them writes weights.
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::problem::TILE_ROWS;
    use super::*;
    use crate::dtype::DType;
    use crate::ops::Activation;
    use crate::ops::fused_mlp::MAX_WORKSPACE;

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };

    fn op(tokens: u64, d_model: u64, d_ff: u64) -> FusedMlp {
        FusedMlp::new(DType::F16, [tokens, d_model, d_ff, d_model], Activation::GeluTanh)
    }

    #[test]
    fn a_chunk_fits_into_the_workspace_and_is_whole_tiles() {
        for (tokens, d_ff) in [(1, 11008), (300, 11008), (4096, 11008), (4096, 14336), (100_000, 4095), (7, 1 << 24), (9, 3)] {
            let op = op(tokens, 4096, d_ff);
            let rows = chunk_rows(&op, &H200).unwrap();
            assert!(rows > 0 && workspace(&op, &H200) <= MAX_WORKSPACE, "{op:?}: {rows}");
            assert_eq!(planned_rows(&op, workspace(&op, &H200).next_multiple_of(16)), rows, "{op:?}");
            assert!(rows == tokens || rows.is_multiple_of(TILE_ROWS) || MAX_WORKSPACE / (d_ff * 2) < TILE_ROWS, "{op:?}: {rows}");
        }
        assert!(chunk_rows(&op(1, 8, (16 << 20) + 1), &H200).is_err());
    }

    #[test]
    fn chunks_leave_few_multiprocessors_idle() {
        // 8 × 43 and 8 × 16 tiles for 132 SMs; the largest chunk, of 1,408 rows, has 11 × 16: 44 in a second round.
        assert_eq!(chunk_rows(&op(4096, 4096, 11008), &H200), Ok(1024));
    }

    #[test]
    fn weights_packed_at_load_take_the_kernels_of_whole_rows() {
        let takes = |op: &FusedMlp| (supports_sm90(op, &H200).is_ok(), workspace(op, &H200));
        let odd = op(300, 4095, 11008);
        assert_eq!(takes(&odd), (false, 300 * 11008 * 2), "two bytes at a time");
        let padded = odd.with_padded_weights();
        assert_eq!(takes(&padded), (true, 300 * (11008 + 4096) * 2), "X alone is copied");
        assert_eq!(takes(&FusedMlp { x_stride: 4096, ..padded }), (true, 300 * 11008 * 2));
        assert!(!takes(&op(300, 4096, 11007).with_padded_weights()).0, "an odd intermediate");
        assert!(workspace(&op(100_000, 4095, 11008).with_padded_weights(), &H200) <= MAX_WORKSPACE);
    }

    #[test]
    fn both_products_of_an_mlp_fill_whole_rounds() {
        let widths = |tokens, d_model, d_ff| wgmma_tiles(&op(tokens, d_model, d_ff), &H200).map(|tile| (tile.columns, tile.last));
        assert_eq!([256, 512].map(|tokens| widths(tokens, 4096, 11008)), [[(168, 168), (64, 64)], [(168, 168), (128, 128)]]);
        assert_eq!([1024, 4096].map(|tokens| widths(tokens, 4096, 11008)), [[(256, 160), (256, 256)]; 2]);
        assert_eq!([512, 1024].map(|tokens| widths(tokens, 5120, 13824)), [[(256, 168), (160, 160)]; 2]);
        let gated = FusedMlp { gated: true, ..op(2048, 4096, 11008) };
        assert_eq!(
            wgmma_tiles(&gated, &H200).map(Some),
            [WgmmaTile::MIDDLE, WgmmaTile::WIDE].map(WgmmaTile::alone),
            "half of its columns are whole in runs of 32"
        );
    }

    #[test]
    fn the_last_chunk_takes_the_tiles_of_the_others() {
        // 4,224 tokens are 132 tiles of 192 outputs of the second product, and what is left 124.
        let op = op(8192, 768, 3072);
        assert_eq!(chunk_rows(&op, &H200), Ok(4224));
        assert_eq!(wgmma_tiles(&op, &H200).map(Some), [Some(WgmmaTile::PINGPONG), WgmmaTile::MIDDLE.alone()]);
    }
}
