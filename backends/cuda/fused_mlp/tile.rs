//! `fused_mlp` on the tensor cores: the variants `sm80` and `sm90`.

use super::problem::{WAYS, bring, chunk_rows, chunks, each_form, entries_instead, form, mma_entries, planned_rows, tiles, up_strides, workspace};
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::lora::adapter_header;
use crate::backends::cuda::gemm::problem::{fits, gemm_header, half};
use crate::backends::cuda::gemm::repack::{REPACK, repack_header};
use crate::backends::cuda::gemm::sm80::tile::MmaTile;
use crate::backends::cuda::gemm::sm90::start::WgmmaLaunch;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::dtype::DType;
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
    unit: |op, target| unit_sm80(op.dtype, op.gated, &mma_tile(op, target)),
    units: |arch: Arch| each_form(MmaTile::on(arch)).map(|(dtype, gated, tile)| unit_sm80(dtype, gated, &tile)).collect(),
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
    unit: |op, target| unit_sm90(op.dtype, op.gated, &wgmma_tiles(op, target), ActivationForm::of(Some(op.activation))),
    units: |_: Arch| {
        let pairs = WgmmaTile::OF_UP.into_iter().flat_map(|up| WgmmaTile::OF_DOWN.map(|down| [up, down]));
        let forms =
            pairs.flat_map(|pair| WAYS.map(|way| pair.map(way))).flat_map(|tiles| each_form([tiles])).filter(|(_, gated, [up, _])| !gated || up.gates());
        forms.flat_map(|(dtype, gated, tiles)| ActivationForm::ALL.map(|form| unit_sm90(dtype, gated, &tiles, form))).collect()
    },
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
    WgmmaTile::enough_rows(op.tokens)?;
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
    up.shared_bytes().max(down.odd_shared_bytes())
}

fn unit_sm80(dtype: DType, gated: bool, tile: &MmaTile) -> Unit {
    let mut defines = tile.defines();
    defines.extend([("ELEMENT", dtype.name().into()), ("MLP_GATED", gated.to_string())]);
    Unit {
        name: format!("fused_mlp/sm80 {dtype}, {}, {}", form(gated), tile.name()),
        source: source!("fused_mlp/sm80.cu"),
        headers: vec![gemm_header(), repack_header()],
        defines,
        entries: if gated {
            &[
                REPACK,
                "mlp_mma_16",
                "mlp_mma_ragged",
                "mlp_mma_4",
                "mlp_mma_2",
                "mlp_gated_mma_16",
                "mlp_gated_mma_ragged",
                "mlp_gated_mma_4",
                "mlp_gated_mma_2",
            ]
        } else {
            &[REPACK, "mlp_mma_16", "mlp_mma_ragged", "mlp_mma_4", "mlp_mma_2"]
        },
        shared_bytes: tile.shared_bytes(),
        also: Vec::new(),
    }
}

/// The tile of the kernels that take over from wgmma where an operand starts at an odd place.
const INSTEAD: MmaTile = MmaTile::MIDDLE;

fn unit_sm90(dtype: DType, gated: bool, tiles: &[WgmmaTile; 2], activation: ActivationForm) -> Unit {
    let [up, down] = tiles;
    let mut defines = [down.defines(), INSTEAD.defines(), up.up_defines().into()].concat();
    defines.extend([("ELEMENT", dtype.name().into()), ("MLP_GATED", gated.to_string()), ("ACTIVATION_FORM", activation.name().into())]);
    Unit {
        name: format!("fused_mlp/sm90 {dtype}, {}, {}; {}; {}", form(gated), up.name(), down.name(), activation.name()),
        source: source!("fused_mlp/sm90.cu"),
        headers: vec![gemm_header(), adapter_header(), repack_header()],
        defines,
        entries: if gated {
            &[REPACK, "mlp_up_wgmma", "mlp_down_wgmma", "mlp_down_wgmma_odd", "mlp_mma_4", "mlp_mma_2", "mlp_gated_mma_4", "mlp_gated_mma_2"]
        } else {
            &[REPACK, "mlp_up_wgmma", "mlp_down_wgmma", "mlp_down_wgmma_odd", "mlp_mma_4", "mlp_mma_2"]
        },
        shared_bytes: shared_bytes_sm90(tiles).max(INSTEAD.shared_bytes()),
        also: Vec::new(),
    }
}

unsafe fn launch_sm80(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>) -> Result<()> {
    let tile = mma_tile_of(&plan.op, planned_rows(&plan.op, workspace.len), &plan.target);
    for [mut up, down] in chunks(plan, workspace, args)? {
        // SAFETY: the caller's promise; a chunk's intermediate fits into the workspace.
        unsafe {
            bring(queue, plan, workspace, &mut up)?;
            up.launch_mma(queue, plan, &tile, mma_entries(&up))?;
            down.launch_mma(queue, plan, &tile, mma_entries(&down))?;
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
                    let how = WgmmaLaunch { tile: up_tile, entry: "mlp_up_wgmma", odd_entry: "", overlap: true, weights_early };
                    product.launch_wgmma(queue, plan, &how)?;
                    weights_early = true;
                }
                (true, false) => {
                    let how = WgmmaLaunch { tile: down_tile, entry: "mlp_down_wgmma", odd_entry: "mlp_down_wgmma_odd", overlap: true, weights_early };
                    product.launch_wgmma(queue, plan, &how)?;
                }
                _ => product.launch_mma(queue, plan, &INSTEAD, entries_instead(&product))?,
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
    use crate::ops::Activation;
    use crate::ops::fused_mlp::MAX_WORKSPACE;

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10 };

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
        // 8 × 43 and 8 × 16 tiles for 132 multiprocessors; the largest chunk, of 1,408 rows, has 11 × 16: 44 in a second round.
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
        assert_eq!(wgmma_tiles(&op, &H200).map(Some), [Some(WgmmaTile::IN_TURNS), WgmmaTile::MIDDLE.alone()]);
    }
}
