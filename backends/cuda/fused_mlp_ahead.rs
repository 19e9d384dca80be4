//! `fused_mlp` on 65 to 128 tokens, both products at the speed of memory: the variant `sm90_ahead`, of `kernels/tile/wgmma_ahead.cuh`.

use super::ahead::AheadTile;
use super::fused_mlp_tensor::{bring, chunk_rows, chunks, entries_instead, form, up_strides, workspace};
use super::gemm::{ActivationForm, HALVES, MmaTile, fits, gemm_header, half};
use super::jit::{Arch, Unit, source};
use super::kernel::{Plan, RunsOn, Target, TensorCores, Variant};
use super::repack::{REPACK, repack_header};
use super::wgmma::WgmmaTile;
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{FusedMlp, FusedMlpArgs};

pub(super) const AHEAD: Variant<FusedMlp> = Variant {
    name: "sm90_ahead",
    label: "fused_mlp/sm90_ahead",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    covers: |op, target| covers(op, target, Take::One),
    unit: |op, target| unit_of(op, target, Take::One),
    units: |_: Arch| units(&UP, Take::One),
    workspace,
    launch: launch_one,
};

/// What no GPU has timed yet: gated products, and several tiles a block. It stands behind what is taken today.
pub(super) const ANY: Variant<FusedMlp> = Variant {
    name: "sm90_ahead_any",
    label: "fused_mlp/sm90_ahead_any",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    covers: |op, target| covers(op, target, Take::Several),
    unit: |op, target| unit_of(op, target, Take::Several),
    units: |_: Arch| units(&[&GATED[..], &UP[1..2]].concat(), Take::Several),
    workspace,
    launch: launch_any,
};

/// Tiles of a block in the first product, at most; several are gated or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Take {
    One,
    Several,
}

impl Take {
    /// The variant.
    const fn name(self) -> &'static str {
        match self {
            Self::One => AHEAD.name,
            Self::Several => ANY.name,
        }
    }

    const fn most(self) -> u64 {
        match self {
            Self::One => 1,
            Self::Several => 4,
        }
    }
}

/// Tiles of the first product, plain and gated, and of the second, whose outputs are fewer: the widths of Llama's layers.
const UP: [AheadTile; 3] = [AheadTile::new(88, 1), AheadTile::new(112, 1), AheadTile::new(128, 1)];
const GATED: [AheadTile; 4] = [AheadTile::gated(72), AheadTile::gated(88), AheadTile::gated(112), AheadTile::gated(128)];
const DOWN: [AheadTile; 3] = [AheadTile::new(64, 2), AheadTile::new(80, 2), AheadTile::new(128, 2)];

/// Those of both products.
fn tiles(op: &FusedMlp, target: &Target, take: Take) -> Option<[AheadTile; 2]> {
    let up: &[AheadTile] = match (op.gated, take) {
        (true, _) => &GATED,
        (false, Take::One) => &UP,
        // The one that seventy billion parameters' 28,672 outputs take.
        (false, Take::Several) => &UP[1..2],
    };
    Some([AheadTile::choose(up, op.d_ff, take.most(), target)?, AheadTile::choose(&DOWN, op.d_out, 1, target)?])
}

fn covers(op: &FusedMlp, target: &Target, take: Take) -> std::result::Result<(), String> {
    half(op.dtype)?;
    WgmmaTile::enough_rows(op.tokens)?;
    if op.tokens > AheadTile::ROWS {
        return Err(format!("{} tokens: a block has one tile of {}", op.tokens, AheadTile::ROWS));
    }
    if op.gated && take == Take::One {
        return Err("a gated product has two weights, whose stages there is little room for".into());
    }
    if chunk_rows(op, target)? < op.tokens {
        return Err(format!("the intermediate of {} tokens is larger than the workspace", op.tokens));
    }
    for stride in up_strides(op) {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_ff), op.d_model, stride)?;
    }
    WgmmaTile::reads(op.dtype, op.d_out, op.d_ff, op.w2_stride)?;
    let [up, down] =
        tiles(op, target, take).ok_or_else(|| format!("{} and {} outputs: not a tile for most multiprocessors, and no more", op.d_ff, op.d_out))?;
    fits(up.shared_bytes().max(down.shared_bytes()), target)
}

/// The tile of the kernels that take over where an operand starts at an odd place.
const INSTEAD: MmaTile = MmaTile::MIDDLE;

fn unit_of(op: &FusedMlp, target: &Target, take: Take) -> Unit {
    let [up, down] = tiles(op, target, take).unwrap_or([if op.gated { GATED[0] } else { UP[1] }, DOWN[0]]);
    unit(op.dtype, &up, &down, ActivationForm::of(Some(op.activation)), take)
}

fn units(up: &[AheadTile], take: Take) -> Vec<Unit> {
    let pairs = || up.iter().flat_map(|&up| DOWN.map(|down| (up, down)));
    let forms = || pairs().flat_map(|pair| ActivationForm::ALL.map(|form| (pair, form)));
    HALVES.iter().flat_map(|&dtype| forms().map(move |((up, down), form)| unit(dtype, &up, &down, form, take))).collect()
}

fn unit(dtype: DType, up: &AheadTile, down: &AheadTile, activation: ActivationForm, take: Take) -> Unit {
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
    defines.push(("AHEAD_SEVERAL", (take == Take::Several).to_string()));
    defines.extend([("ELEMENT", dtype.name().into()), ("MLP_GATED", up.gated.to_string()), ("ACTIVATION_FORM", activation.name().into())]);
    Unit {
        name: format!("fused_mlp/{} {dtype}, {}, {} columns, {} columns, {}", take.name(), form(up.gated), up.columns, down.columns, activation.name()),
        source: source!("fused_mlp/sm90_ahead.cu"),
        headers: vec![gemm_header(), repack_header()],
        defines,
        entries: if up.gated {
            &[REPACK, "mlp_up_ahead", "mlp_down_ahead", "mlp_mma_4", "mlp_mma_2", "mlp_gated_mma_4", "mlp_gated_mma_2"]
        } else {
            &[REPACK, "mlp_up_ahead", "mlp_down_ahead", "mlp_mma_4", "mlp_mma_2"]
        },
        shared_bytes: up.shared_bytes().max(down.shared_bytes()).max(INSTEAD.shared_bytes()),
    }
}

unsafe fn launch_one(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { launch(queue, plan, workspace, args, Take::One) }
}

unsafe fn launch_any(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { launch(queue, plan, workspace, args, Take::Several) }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>, take: Take) -> Result<()> {
    for [mut up, down] in chunks(plan, workspace, args)? {
        // SAFETY: the caller's promise; the intermediate fits into the workspace, and aligned rows start where TMA can read them.
        unsafe {
            bring(queue, plan, workspace, &mut up)?;
            match tiles(&plan.op, &plan.target, take) {
                Some([up_tile, down_tile]) if up.aligned() && down.aligned() => {
                    up_tile.run(queue, plan, "mlp_up_ahead", &up)?;
                    down_tile.run(queue, plan, "mlp_down_ahead", &down)?;
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
        let of = |op: FusedMlp, take| tiles(&op, &H200, take).map(|tiles| tiles.map(|tile| tile.columns));
        let plain = |dims: [u64; 4]| FusedMlp::new(DType::F16, dims, crate::ops::Activation::Silu);
        let columns = |dims| of(plain(dims), Take::One);
        assert_eq!(columns([128, 4096, 11008, 4096]), Some([88, 64]));
        assert_eq!(columns([128, 4096, 14336, 4096]), Some([112, 64]));
        assert_eq!(columns([128, 5120, 13824, 5120]), Some([112, 80]));
        assert_eq!([[128, 8192, 28672, 8192], [128, 768, 3072, 768]].map(columns), [None; 2], "more than a tile, and fewer than multiprocessors");
        assert_eq!(of(plain([128, 8192, 28672, 8192]), Take::Several), Some([112, 128]), "two tiles a block");
        let gated = |d_ff| of(FusedMlp { gated: true, ..plain([128, 4096, d_ff, 4096]) }, Take::Several);
        assert_eq!([11008, 14336, 18944, 28672].map(gated), [Some([88, 64]), Some([112, 64]), Some([72, 64]), Some([112, 64])]);
        for tile in UP.into_iter().chain(GATED).chain(DOWN) {
            assert!(tile.shared_bytes() <= 227 << 10 && tile.stages() >= tile.x_stages(), "{tile:?}: {} stages", tile.stages());
        }
    }
}
