//! `fused_mlp` on 65 to 128 tokens, both products at the speed of memory: the variant `sm90_ahead`, of `kernels/gemm/sm90/skinny_tile.cuh`.

use crate::backends::cuda::fused_mlp::problem::{bring, chunk_rows, chunks, entries_instead, form, up_strides, workspace};
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::problem::{HALVES, fits, gemm_header, half};
use crate::backends::cuda::gemm::repack::{REPACK, repack_header};
use crate::backends::cuda::gemm::sm80::tile::MmaTile;
use crate::backends::cuda::gemm::sm90::skinny_tile::AheadTile;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{FusedMlp, FusedMlpArgs};

pub(crate) const AHEAD: Variant<FusedMlp> = Variant {
    name: "sm90_ahead",
    label: "fused_mlp/sm90_ahead",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports,
    suits: |_, _| Ok(()),
    unit: |op, target| {
        let tiles = tiles(op, target).unwrap_or(Tiles { up: if op.gated { GATED[0] } else { UP[0] }, down: DOWN[0], several: op.gated });
        unit(op.dtype, &tiles, ActivationForm::of(Some(op.activation)))
    },
    units: |_: Arch| {
        let ups = UP.map(|up| (up, false)).into_iter().chain(SEVERAL.into_iter().chain(GATED).map(|up| (up, true)));
        let tiles: Vec<Tiles> = ups.flat_map(|(up, several)| DOWN.map(|down| Tiles { up, down, several })).collect();
        let forms = || tiles.iter().flat_map(|tiles| ActivationForm::ALL.map(|form| (tiles, form)));
        HALVES.iter().flat_map(|&dtype| forms().map(move |(tiles, form)| unit(dtype, tiles, form))).collect()
    },
    workspace,
    launch,
};

/// Tiles of the first product, plain and gated, and of the second, whose outputs are fewer: the widths of Llama's layers.
const UP: [AheadTile; 3] = [AheadTile::new(88, 1), AheadTile::new(112, 1), AheadTile::new(128, 1)];
const SEVERAL: [AheadTile; 1] = [UP[1]];
const GATED: [AheadTile; 4] = [AheadTile::gated(72), AheadTile::gated(88), AheadTile::gated(112), AheadTile::gated(128)];
const DOWN: [AheadTile; 3] = [AheadTile::new(64, 2), AheadTile::new(80, 2), AheadTile::new(128, 2)];
/// Of the first product, a block takes no more.
const MOST: u64 = 4;

/// Those of both products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiles {
    up: AheadTile,
    down: AheadTile,
    /// Whether blocks of the first product may take one tile after another.
    several: bool,
}

fn tiles(op: &FusedMlp, target: &Target) -> Option<Tiles> {
    let several = |tiles| AheadTile::choose(tiles, op.d_ff, MOST, target).map(|up| (up, true));
    let (up, several) =
        if op.gated { several(&GATED) } else { AheadTile::choose(&UP, op.d_ff, 1, target).map(|up| (up, false)).or_else(|| several(&SEVERAL)) }?;
    Some(Tiles { up, down: AheadTile::choose(&DOWN, op.d_out, 1, target)?, several })
}

fn supports(op: &FusedMlp, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    WgmmaTile::enough_rows(op.tokens)?;
    if op.tokens > AheadTile::ROWS {
        return Err(format!("{} tokens: a block has tiles of {}", op.tokens, AheadTile::ROWS));
    }
    if chunk_rows(op, target)? < op.tokens {
        return Err(format!("the intermediate of {} tokens is larger than the workspace", op.tokens));
    }
    for stride in up_strides(op) {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_ff), op.d_model, stride)?;
    }
    WgmmaTile::reads(op.dtype, op.d_out, op.d_ff, op.w2_stride)?;
    let Tiles { up, down, .. } =
        tiles(op, target).ok_or_else(|| format!("{} and {} outputs: not a tile for most multiprocessors, and no more", op.d_ff, op.d_out))?;
    fits(up.shared_bytes().max(down.shared_bytes()), target)
}

/// The tile of the kernels that take over where an operand starts at an odd place.
const INSTEAD: MmaTile = MmaTile::MIDDLE;

fn unit(dtype: DType, Tiles { up, down, several }: &Tiles, activation: ActivationForm) -> Unit {
    let numbers = [
        ("UP_COLUMNS", up.columns),
        ("UP_STAGES", up.stages()),
        ("UP_PARTS", up.parts),
        ("DOWN_COLUMNS", down.columns),
        ("DOWN_STAGES", down.stages()),
        ("DOWN_PARTS", down.parts),
        ("UP_TOKEN_STAGES", up.x_stages()),
        ("DOWN_TOKEN_STAGES", down.x_stages()),
        ("CLUSTER", down.parts),
    ];
    let mut defines = [numbers.map(|(name, value)| (name, value.to_string())).into(), INSTEAD.defines()].concat();
    defines.push(("AHEAD_SEVERAL", several.to_string()));
    defines.extend([("ELEMENT", dtype.name().into()), ("MLP_GATED", up.gated.to_string()), ("ACTIVATION_FORM", activation.name().into())]);
    let turns = if *several && !up.gated { " in turn" } else { "" };
    Unit {
        name: format!("fused_mlp/sm90_ahead {dtype}, {}, {} columns{turns}, {} columns, {}", form(up.gated), up.columns, down.columns, activation.name()),
        source: source!("fused_mlp/sm90_ahead.cu"),
        headers: vec![gemm_header(), repack_header()],
        defines,
        entries: if up.gated {
            &[REPACK, "mlp_up_ahead", "mlp_down_ahead", "mlp_mma_4", "mlp_mma_2", "mlp_gated_mma_4", "mlp_gated_mma_2"]
        } else {
            &[REPACK, "mlp_up_ahead", "mlp_down_ahead", "mlp_mma_4", "mlp_mma_2"]
        },
        shared_bytes: up.shared_bytes().max(down.shared_bytes()).max(INSTEAD.shared_bytes()),
        also: Vec::new(),
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>) -> Result<()> {
    for [mut up, down] in chunks(plan, workspace, args)? {
        // SAFETY: the caller's promise; the intermediate fits into the workspace, and aligned rows start where TMA can read them.
        unsafe {
            bring(queue, plan, workspace, &mut up)?;
            match tiles(&plan.op, &plan.target) {
                Some(tiles) if up.aligned() && down.aligned() => {
                    tiles.up.run(queue, plan, "mlp_up_ahead", &up)?;
                    tiles.down.run(queue, plan, "mlp_down_ahead", &down)?;
                }
                _ => {
                    for product in [up, down] {
                        product.launch_mma(queue, plan, &INSTEAD, entries_instead(&product))?;
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

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10 };

    #[test]
    fn a_tile_a_block_of_most_multiprocessors() {
        let of = |op: FusedMlp| tiles(&op, &H200).map(|tiles| (tiles.up.columns, tiles.down.columns, tiles.several));
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
